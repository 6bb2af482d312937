package io.percola.spark;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;

/**
 * The Python reader's batch, whose tasks take the metrics out of the rows.
 *
 * <p>Rows keep the column {@link Totals#COLUMN} as their last one, beyond the schema, where nothing
 * looks for it: Spark projects the rows of every source that has no columnar batches.
 */
final class MeasuredRead implements Batch {
  private final Batch batch;
  private final int column;

  /** `column` is the index of the column with the metrics. */
  MeasuredRead(Batch batch, int column) {
    this.batch = batch;
    this.column = column;
  }

  @Override
  public InputPartition[] planInputPartitions() {
    return batch.planInputPartitions();
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new Factory(batch.createReaderFactory(), column);
  }

  private static final class Factory implements PartitionReaderFactory {
    private final PartitionReaderFactory factory;
    private final int column;

    Factory(PartitionReaderFactory factory, int column) {
      this.factory = factory;
      this.column = column;
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      return new Reader(factory.createReader(partition), column);
    }
  }

  private static final class Reader implements PartitionReader<InternalRow> {
    private final PartitionReader<InternalRow> reader;
    private final int column;
    private final Totals totals = new Totals();
    private InternalRow row;

    Reader(PartitionReader<InternalRow> reader, int column) {
      this.reader = reader;
      this.column = column;
    }

    @Override
    public boolean next() throws IOException {
      while (reader.next()) {
        row = reader.get();
        if (row.isNullAt(column)) {
          return true;
        }
        totals.set(row.getBinary(column));
      }
      return false;
    }

    @Override
    public InternalRow get() {
      return row;
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
      List<CustomTaskMetric> all = new ArrayList<>(List.of(totals.toMetrics()));
      all.addAll(List.of(reader.currentMetricsValues()));
      return all.toArray(new CustomTaskMetric[0]);
    }

    @Override
    public void close() throws IOException {
      reader.close();
    }
  }
}
