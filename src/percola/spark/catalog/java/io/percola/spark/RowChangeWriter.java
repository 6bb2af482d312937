package io.percola.spark;

import java.io.IOException;
import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.Objects;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;

import org.apache.spark.TaskContext;
import org.apache.spark.TaskContext$;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DeltaWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Hands changes of rows to the Python writer of a task.
 *
 * <p>Spark pushes one change after the other, and the Python writer pulls rows from an iterator. So
 * the writer runs in a thread of its own, and a short queue lies between the two.
 */
final class RowChangeWriter implements DeltaWriter<InternalRow> {
  private static final int QUEUED = 256;
  private static final long LOOK_MS = 100;
  private static final UTF8String INSERT = UTF8String.fromString("insert");
  private static final UTF8String UPDATE = UTF8String.fromString("update");
  private static final UTF8String DELETE = UTF8String.fromString("delete");

  private final DataWriter<InternalRow> writer;
  private final DataType[] types;
  private final BlockingQueue<InternalRow> queue = new ArrayBlockingQueue<>(QUEUED);
  private final InternalRow end = new GenericInternalRow(0);
  private final TaskContext task = TaskContext.get();
  private final Thread thread;
  private volatile Throwable failure;
  private volatile boolean aborted;

  RowChangeWriter(DataWriter<InternalRow> writer, StructType columns) {
    this.writer = writer;
    StructField[] fields = columns.fields();
    types = new DataType[fields.length];
    for (int at = 0; at < fields.length; at++) {
      types[at] = fields[at].dataType();
    }
    thread = new Thread(this::writeAll, "percola-row-changes");
    thread.setDaemon(true);
    thread.setContextClassLoader(Thread.currentThread().getContextClassLoader());
    thread.start();
  }

  // --- The writer's thread ----------------------------------------------------------------

  private void writeAll() {
    TaskContext$.MODULE$.setTaskContext(task);
    try {
      writer.writeAll(new Rows());
    } catch (Throwable error) {
      failure = error;
    }
  }

  private final class Rows implements Iterator<InternalRow> {
    private InternalRow next;

    @Override
    public boolean hasNext() {
      while (next == null) {
        if (aborted) {
          throw new IllegalStateException("The task has been aborted.");
        }
        try {
          next = queue.poll(LOOK_MS, TimeUnit.MILLISECONDS);
        } catch (InterruptedException error) {
          Thread.currentThread().interrupt();
          throw new IllegalStateException("The task has been ended.", error);
        }
      }
      return next != end;
    }

    @Override
    public InternalRow next() {
      if (!hasNext()) {
        throw new NoSuchElementException();
      }
      InternalRow row = next;
      next = null;
      return row;
    }
  }

  // --- Spark's thread ---------------------------------------------------------------------

  @Override
  public void insert(InternalRow row) throws IOException {
    put(changed(row, INSERT));
  }

  @Override
  public void update(InternalRow metadata, InternalRow id, InternalRow row) throws IOException {
    // Keys of bytes are arrays, which are equal by themselves only to themselves.
    if (Objects.deepEquals(id.get(0, types[0]), row.get(0, types[0]))) {
      put(changed(row, UPDATE));
    } else {
      delete(metadata, id);
      insert(row);
    }
  }

  @Override
  public void delete(InternalRow metadata, InternalRow id) throws IOException {
    Object[] values = new Object[types.length + 1];
    values[0] = InternalRow.copyValue(id.get(0, types[0]));
    values[types.length] = DELETE;
    put(new GenericInternalRow(values));
  }

  /** A copy, since Spark reuses its rows, with what happens to it. */
  private InternalRow changed(InternalRow row, UTF8String change) {
    Object[] values = new Object[types.length + 1];
    for (int at = 0; at < types.length; at++) {
      values[at] = row.isNullAt(at) ? null : InternalRow.copyValue(row.get(at, types[at]));
    }
    values[types.length] = change;
    return new GenericInternalRow(values);
  }

  /** Python may end before the rows do: in an error, or as another attempt has written them all. */
  private void put(InternalRow row) throws IOException {
    try {
      while (thread.isAlive() && !queue.offer(row, LOOK_MS, TimeUnit.MILLISECONDS)) {}
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new IOException("The task has been ended.", error);
    }
    check();
  }

  private void check() throws IOException {
    Throwable error = failure;
    if (error instanceof RuntimeException) {
      throw (RuntimeException) error;
    }
    if (error instanceof Error) {
      throw (Error) error;
    }
    if (error != null) {
      throw new IOException(error);
    }
  }

  @Override
  public WriterCommitMessage commit() throws IOException {
    put(end);
    join();
    check();
    return writer.commit();
  }

  /**
   * Python looks for more rows, and sees that there are none, unless it waits for a lock. Spark ends
   * the Python worker of an interrupted task within seconds, so the task is one from now on.
   */
  @Override
  public void abort() throws IOException {
    aborted = true;
    task.markInterrupted("the task's rows cannot be written");
    join();
    writer.abort();
  }

  @Override
  public void close() throws IOException {
    aborted = true;
    writer.close();
  }

  private void join() throws IOException {
    try {
      thread.join();
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new IOException("The task has been ended.", error);
    }
  }
}
