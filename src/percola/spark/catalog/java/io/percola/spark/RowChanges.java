package io.percola.spark;

import java.util.Map;

import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.DeltaWriter;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsDelta;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * UPDATE, DELETE or MERGE of a table, as one transaction.
 *
 * <p>Spark reads the table at its snapshot and works out which rows change. They are written by the
 * Python data source, which checks that nobody has changed them since that snapshot
 * (percola/spark/write/changes.py).
 */
final class RowChanges implements SupportsDelta {
  /** The last column of the rows for the Python writer: what happens to the row. */
  private static final String CHANGE = "_percola_change";

  private final PercolaTable table;
  private final Command command;

  RowChanges(PercolaTable table, Command command) {
    this.table = table;
    this.command = command;
  }

  @Override
  public Command command() {
    return command;
  }

  @Override
  public String description() {
    return command + " of " + table.name();
  }

  @Override
  public NamedReference[] rowId() {
    String name = table.schema().fields()[0].name();
    return new NamedReference[] {Expressions.column(Source.quoted(name))};
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return table.newScanBuilder(options);
  }

  @Override
  public DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return new DeltaWriteBuilder() {
      @Override
      public DeltaWrite build() {
        StructType columns = table.schema();
        StructType rows = columns.asNullable().add(CHANGE, DataTypes.StringType);
        Map<String, String> options =
            Map.of("atomicity", "job", "changesAt", table.snapshot());
        Write write = table.writer(info, rows, options).build();
        return new DeltaWrite() {
          @Override
          public String description() {
            return RowChanges.this.description();
          }

          @Override
          public DeltaBatchWrite toBatch() {
            return new Changes(write.toBatch(), columns);
          }

          @Override
          public CustomMetric[] supportedCustomMetrics() {
            return write.supportedCustomMetrics();
          }

          @Override
          public CustomTaskMetric[] reportDriverMetrics() {
            return write.reportDriverMetrics();
          }
        };
      }
    };
  }

  /** The Python writer's batch, whose tasks take changes instead of rows. */
  private static final class Changes implements DeltaBatchWrite {
    private final BatchWrite write;
    private final StructType columns;

    Changes(BatchWrite write, StructType columns) {
      this.write = write;
      this.columns = columns;
    }

    @Override
    public DeltaWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
      return new Factory(write.createBatchWriterFactory(info), columns);
    }

    /**
     * Of the attempts of a task the joint transaction takes one by itself. Spark may take the one
     * before, which has just failed, for the one that commits: its denial would hide the reason.
     */
    @Override
    public boolean useCommitCoordinator() {
      return false;
    }

    @Override
    public void onDataWriterCommit(WriterCommitMessage message) {
      write.onDataWriterCommit(message);
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
      write.commit(messages);
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
      write.abort(messages);
    }
  }

  private static final class Factory implements DeltaWriterFactory {
    private final DataWriterFactory factory;
    private final StructType columns;

    Factory(DataWriterFactory factory, StructType columns) {
      this.factory = factory;
      this.columns = columns;
    }

    @Override
    public DeltaWriter<InternalRow> createWriter(int partition, long task) {
      return new RowChangeWriter(factory.createWriter(partition, task), columns);
    }
  }
}
