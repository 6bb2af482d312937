package io.percola.hbase;

import static java.nio.charset.StandardCharsets.US_ASCII;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.function.Function;

/**
 * The two phases of a commit (figure 6 of the paper), each with all of its requests in one call.
 *
 * <p>It sends the first attempt of what percola/transactions/two_phase.py sends, in the same order,
 * and nothing after a request that was not applied: the rest is for Python to do. The requests are
 * those of percola/store/hbase/mutations.py and wire.py, byte for byte.
 */
public final class Commit {
  /** The states of a request. */
  public static final byte NOT_SENT = 0;

  public static final byte APPLIED = 1;
  public static final byte REFUSED = 2;
  public static final byte FAILED = 3;

  private static final byte[] LOCK = {'l'};
  private static final byte[] WRITE = {'w'};
  private static final byte[] NOTIFY = {'n'};

  /** The timestamp in HBase of every lock. */
  private static final long LOCK_AT = 1;

  /** Begins every value but those of locks. */
  private static final byte[] FULL = {1};

  private static final int INLINE = 1;
  private static final int OBSERVED = 2;

  private static final int EQUAL = 2;
  private static final int PUT = 2;
  private static final int SKIP_WAL = 1;
  private static final byte[] NO_VALUE = comparator("BinaryComparator");

  /** Whether all rows are locked. */
  public final boolean isLocked;

  private final Sender sender;
  private final Object[] tables;
  private final long startTs;
  private final byte[] start;
  private final byte[] lock;
  private final Request[] requests;
  private final byte[] states;
  private final Throwable[] failures;

  /**
   * Lock the primary's row, and after it all others.
   *
   * <p>This and `commit` are all of Java that a commit calls: a field is read without another turn
   * at Python's interpreter lock.
   *
   * @param sender sends the requests
   * @param tables the table of each step
   * @param packed the requests of each step: first that of the primary's row, then those of one
   *     table each; as percola/store/hbase/commits.py packs them
   * @param nanos how long it may take before it sends nothing more
   */
  public Commit(Sender sender, Object[] tables, long startTs, byte[] packed, long nanos) {
    this.sender = sender;
    this.tables = tables;
    this.startTs = startTs;
    start = ByteBuffer.allocate(Long.BYTES).putLong(startTs).array();
    ByteBuffer from = ByteBuffer.wrap(packed);
    int lockSize = from.getShort() & 0xffff;
    requests = new Request[from.get() & 0xff];
    lock = bytes(from, lockSize);
    for (int at = 0; at < requests.length; at++) {
      requests[at] = new Request(from);
    }
    states = new byte[requests.length];
    failures = new Throwable[requests.length];
    isLocked = send(this::prewriteOf, nanos);
  }

  /** Commit the primary's row, and after it all others; true if all are committed now. */
  public boolean commit(long commitTs) {
    return send(request -> commitOf(request, commitTs), Long.MAX_VALUE);
  }

  /** What came of each request of the last call. */
  public byte[] states() {
    return states.clone();
  }

  /** Why a request of the last call has failed. */
  public Throwable failure(int request) {
    return failures[request];
  }

  // --- Sending --------------------------------------------------------------------------

  private boolean send(Function<Request, byte[]> message, long nanos) {
    long began = System.nanoTime();
    for (int at = 0; at < requests.length; at++) {
      states[at] = NOT_SENT;
      failures[at] = null;
    }
    int end;
    for (int begin = 0; begin < requests.length; begin = end) {
      if (begin > 0 && System.nanoTime() - began > nanos) {
        return false;
      }
      end = begin + 1;
      while (end < requests.length && requests[end].step == requests[begin].step) {
        end++;
      }
      if (!sendTogether(begin, end, message)) {
        return false;
      }
    }
    return true;
  }

  /** Send the requests of a step; true if all were applied. */
  private boolean sendTogether(int begin, int end, Function<Request, byte[]> message) {
    byte[][] rows = new byte[end - begin][];
    byte[][] messages = new byte[end - begin][];
    for (int at = begin; at < end; at++) {
      rows[at - begin] = requests[at].rows[0].key;
      messages[at - begin] = message.apply(requests[at]);
    }
    Object[] answers;
    try {
      answers = sender.send(tables[requests[begin].step], rows, messages);
    } catch (Throwable error) {
      answers = new Object[end - begin];
      Arrays.fill(answers, error);
    }
    boolean all = true;
    for (int at = begin; at < end; at++) {
      Object answer = answers[at - begin];
      if (answer instanceof byte[]) {
        states[at] = isApplied((byte[]) answer) ? APPLIED : REFUSED;
      } else {
        states[at] = FAILED;
        failures[at] =
            answer instanceof Throwable ? (Throwable) answer : new IOException("no answer");
      }
      all &= states[at] == APPLIED;
    }
    return all;
  }

  /** Whether changes were made: the answer has one field, 1 for yes; without conditions none. */
  private static boolean isApplied(byte[] answer) {
    return answer.length != 2 || answer[0] != 1 << 3 || answer[1] != 0;
  }

  // --- The requests ---------------------------------------------------------------------

  /** Locks rows on the condition that there is no newer write and no lock. */
  private byte[] prewriteOf(Request request) {
    Fields out = new Fields();
    for (Row row : request.rows) {
      Fields locks = new Fields().bytes(1, LOCK);
      for (Cell cell : row.cells) {
        Fields newer = new Fields().number(1, startTs).number(2, Long.MAX_VALUE);
        out.message(5, where(row, WRITE, cell).raw(NO_VALUE).message(6, newer));
        out.message(5, where(row, LOCK, cell).raw(NO_VALUE));
        byte[] head = {cell.op, cell.flags};
        locks.message(2, entry(cell, LOCK_AT, start, head, lock, cell.value));
      }
      Fields puts = puts(row).message(3, locks);
      if (request == requests[0]) {
        puts.number(6, SKIP_WAL);
      }
      out.message(1, puts);
    }
    return out.toBytes();
  }

  /** Replaces the locks of rows by write records, on the condition that they are there. */
  private byte[] commitOf(Request request, long commitTs) {
    byte[] held = comparator("BinaryPrefixComparator", start);
    Fields out = new Fields();
    for (Row row : request.rows) {
      Fields writes = new Fields().bytes(1, WRITE);
      Fields locks = new Fields().bytes(1, LOCK);
      Fields notifies = new Fields().bytes(1, NOTIFY);
      boolean isObserved = false;
      for (Cell cell : row.cells) {
        out.message(5, where(row, LOCK, cell).raw(held));
        byte[] head = {cell.op, (byte) (cell.flags & INLINE)};
        writes.message(2, entry(cell, commitTs, FULL, head, start, cell.value));
        locks.message(2, entry(cell, LOCK_AT));
        if ((cell.flags & OBSERVED) != 0) {
          notifies.message(2, entry(cell, commitTs, FULL));
          isObserved = true;
        }
      }
      // The families are in the order in which the changes of the cells name them.
      Fields puts = puts(row).message(3, writes);
      if ((row.cells[0].flags & OBSERVED) != 0) {
        puts.message(3, notifies).message(3, locks);
      } else {
        puts.message(3, locks);
        if (isObserved) {
          puts.message(3, notifies);
        }
      }
      out.message(1, puts).raw(row.removals);
    }
    return out.toBytes();
  }

  private static Fields puts(Row row) {
    return new Fields().bytes(1, row.key).number(2, PUT);
  }

  private static Fields entry(Cell cell, long ts, byte[]... value) {
    return new Fields().bytes(1, cell.column).bytes(2, value).number(3, ts);
  }

  /** The fields of a condition before those that say how the entry is compared. */
  private static Fields where(Row row, byte[] family, Cell cell) {
    return new Fields().bytes(1, row.key).bytes(2, family).bytes(3, cell.column).number(4, EQUAL);
  }

  private static byte[] comparator(String name, byte[]... value) {
    Fields compared = value.length == 0 ? new Fields() : new Fields().bytes(1, value);
    byte[] type = ("org.apache.hadoop.hbase.filter." + name).getBytes(US_ASCII);
    Fields made = new Fields().bytes(1, type).message(2, new Fields().message(1, compared));
    return new Fields().message(5, made).toBytes();
  }

  // --- What is committed ----------------------------------------------------------------

  private static byte[] bytes(ByteBuffer from, int length) {
    byte[] found = new byte[length];
    from.get(found);
    return found;
  }

  /** Rows of one region. */
  private static final class Request {
    final int step;
    final Row[] rows;

    Request(ByteBuffer from) {
      step = from.get() & 0xff;
      rows = new Row[from.get() & 0xff];
      for (int at = 0; at < rows.length; at++) {
        rows[at] = new Row(from);
      }
    }
  }

  private static final class Row {
    final byte[] key;
    final byte[] removals;
    final Cell[] cells;

    Row(ByteBuffer from) {
      int keySize = from.getShort() & 0xffff;
      cells = new Cell[from.getShort() & 0xffff];
      int removalsSize = from.getInt();
      key = bytes(from, keySize);
      removals = bytes(from, removalsSize);
      for (int at = 0; at < cells.length; at++) {
        cells[at] = new Cell(from);
      }
    }
  }

  private static final class Cell {
    final byte op;
    final byte flags;
    final byte[] column;
    final byte[] value;

    Cell(ByteBuffer from) {
      op = from.get();
      flags = from.get();
      int columnSize = from.getShort() & 0xffff;
      int valueSize = from.getShort() & 0xffff;
      column = bytes(from, columnSize);
      value = bytes(from, valueSize);
    }
  }
}
