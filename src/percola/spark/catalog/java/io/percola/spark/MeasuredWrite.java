package io.percola.spark;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriterCommitMessage;

/**
 * The Python writer, whose metrics are the sum of what its tasks report when they end.
 *
 * <p>They are the driver's metrics: a task hands over its message too late for metrics of its own,
 * at least one of row changes. Streams have none, as Spark asks only batches for such metrics.
 */
final class MeasuredWrite implements Write {
  private final Write write;
  private final Totals totals = new Totals();
  private boolean streams;

  MeasuredWrite(Write write) {
    this.write = write;
  }

  @Override
  public String description() {
    return write.description();
  }

  @Override
  public BatchWrite toBatch() {
    return new MeasuredBatch(write.toBatch());
  }

  @Override
  public StreamingWrite toStreaming() {
    streams = true;
    return write.toStreaming();
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    CustomMetric[] python = write.supportedCustomMetrics();
    return streams ? python : Totals.ofWrites(python);
  }

  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    return totals.toMetrics();
  }

  private final class MeasuredBatch implements BatchWrite {
    private final BatchWrite batch;

    MeasuredBatch(BatchWrite batch) {
      this.batch = batch;
    }

    @Override
    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
      return batch.createBatchWriterFactory(info);
    }

    @Override
    public boolean useCommitCoordinator() {
      return batch.useCommitCoordinator();
    }

    @Override
    public void onDataWriterCommit(WriterCommitMessage message) {
      totals.add(((PythonWriterCommitMessage) message).pickledMessage());
      batch.onDataWriterCommit(message);
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
      batch.commit(messages);
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
      batch.abort(messages);
    }
  }
}
