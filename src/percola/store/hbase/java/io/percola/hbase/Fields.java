package io.percola.hbase;

import java.util.Arrays;

/** Fields of a message of protocol buffers, in the order in which they are added. */
final class Fields {
  private static final int VARINT = 0;
  private static final int BYTES = 2;

  private byte[] data = new byte[128];
  private int size;

  /** Add a number. */
  Fields number(int field, long value) {
    return varint(field << 3 | VARINT).varint(value);
  }

  /** Add bytes, which are given in parts. */
  Fields bytes(int field, byte[]... parts) {
    int length = 0;
    for (byte[] part : parts) {
      length += part.length;
    }
    varint(field << 3 | BYTES).varint(length);
    for (byte[] part : parts) {
      raw(part);
    }
    return this;
  }

  /** Add a message. */
  Fields message(int field, Fields message) {
    return varint(field << 3 | BYTES).varint(message.size).raw(message.data, message.size);
  }

  /** Add fields that are encoded already. */
  Fields raw(byte[] fields) {
    return raw(fields, fields.length);
  }

  byte[] toBytes() {
    return Arrays.copyOf(data, size);
  }

  private Fields raw(byte[] from, int length) {
    room(length);
    System.arraycopy(from, 0, data, size, length);
    size += length;
    return this;
  }

  private Fields varint(long value) {
    room(10);
    long left = value;
    while ((left & ~0x7fL) != 0) {
      data[size++] = (byte) (left & 0x7f | 0x80);
      left >>>= 7;
    }
    data[size++] = (byte) left;
    return this;
  }

  private void room(int more) {
    if (size + more > data.length) {
      data = Arrays.copyOf(data, Math.max(2 * data.length, size + more));
    }
  }
}
