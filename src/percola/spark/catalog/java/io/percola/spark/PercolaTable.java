package io.percola.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;
import java.util.stream.Collectors;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TruncatableTable;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A table of a repository at one timestamp; it reads and writes through the Python data source. */
class PercolaTable implements SupportsRead, SupportsWrite, SupportsRowLevelOperations {
  private final List<String> name;
  private final StructType schema;
  private final Map<String, String> base;
  private final String snapshot;
  private final OptionalLong rows;
  private final OptionalLong bytes;

  /** `rows` and `bytes` are what is known of the table's size: see catalog/statistics.py. */
  PercolaTable(
      List<String> name,
      StructType schema,
      Map<String, String> base,
      String snapshot,
      OptionalLong rows,
      OptionalLong bytes) {
    this.name = name;
    this.schema = schema;
    this.base = base;
    this.snapshot = snapshot;
    this.rows = rows;
    this.bytes = bytes;
  }

  @Override
  public String name() {
    return String.join(".", name);
  }

  /**
   * Another one at each timestamp: Spark takes the rows of a cached frame for those of a table with
   * the same id, and a query would read some of its tables at another timestamp than the rest.
   */
  @Override
  public String id() {
    return base.get("path") + "/" + base.get("table") + "@" + snapshot;
  }

  @Override
  @SuppressWarnings("deprecation")
  public StructType schema() {
    return schema;
  }

  @Override
  public Map<String, String> properties() {
    Map<String, String> found = new HashMap<>();
    found.put("provider", Source.NAME);
    found.put("location", base.get("path"));
    found.put("percola.snapshot", snapshot);
    return found;
  }

  @Override
  public Set<TableCapability> capabilities() {
    return Collections.unmodifiableSet(
        EnumSet.of(
            TableCapability.BATCH_READ,
            TableCapability.BATCH_WRITE,
            TableCapability.MICRO_BATCH_READ,
            TableCapability.STREAMING_WRITE));
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return new Builder(merged(options));
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return writer(info, info.schema(), Map.of());
  }

  /** UPDATE, DELETE and MERGE, of the rows at this table's snapshot. */
  @Override
  public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
    return () -> new RowChanges(this, info.command());
  }

  /** The timestamp that the table is read at. */
  String snapshot() {
    return snapshot;
  }

  /** The Python data source's writer of rows of this schema; `more` goes before other options. */
  WriteBuilder writer(LogicalWriteInfo info, StructType rows, Map<String, String> more) {
    Map<String, String> all = new HashMap<>(new CaseInsensitiveStringMap(merged(info.options())));
    more.forEach((name, value) -> all.put(name.toLowerCase(), value));
    CaseInsensitiveStringMap options = new CaseInsensitiveStringMap(all);
    WriteBuilder python = new PythonTable(Source.fresh(), Source.NAME, rows)
        .newWriteBuilder(
            new LogicalWriteInfo() {
              @Override
              public CaseInsensitiveStringMap options() {
                return options;
              }

              @Override
              public String queryId() {
                return info.queryId();
              }

              @Override
              public StructType schema() {
                return rows;
              }
            });
    return new Writer(python);
  }

  /** Rows are written over by their key, so a stream's updates are appended like other rows. */
  private static final class Writer implements SupportsStreamingUpdateAsAppend {
    private final WriteBuilder python;

    Writer(WriteBuilder python) {
      this.python = python;
    }

    @Override
    public Write build() {
      return new MeasuredWrite(python.build());
    }
  }

  /** This table for TRUNCATE TABLE. */
  PercolaTable truncatable() {
    return new Truncatable(this);
  }

  /**
   * TRUNCATE TABLE is DELETE without a condition: one transaction, which observers see.
   *
   * <p>Not every table is one of these, since Spark would truncate them for such a DELETE.
   */
  private static final class Truncatable extends PercolaTable implements TruncatableTable {
    Truncatable(PercolaTable of) {
      super(of.name, of.schema, of.base, of.snapshot, of.rows, of.bytes);
    }

    @Override
    public boolean truncateTable() {
      String quoted = super.name.stream().map(Source::quoted).collect(Collectors.joining("."));
      SparkSession.active().sql("DELETE FROM " + quoted);
      return true;
    }
  }

  private Map<String, String> merged(CaseInsensitiveStringMap options) {
    Map<String, String> all = new HashMap<>(base);
    all.putAll(options.asCaseSensitiveMap());
    return all;
  }

  /** Reads the columns that the query needs, and hands filters down. */
  private final class Builder
      implements SupportsPushDownFilters, SupportsPushDownRequiredColumns {
    private final Map<String, String> options;
    private StructType required = schema;
    private Filter[] offered = new Filter[0];
    private Filter[] pushed = new Filter[0];

    Builder(Map<String, String> options) {
      this.options = options;
    }

    @Override
    public Filter[] pushFilters(Filter[] filters) {
      Map<Boolean, List<Filter>> parts =
          Arrays.stream(filters).collect(Collectors.partitioningBy(PythonTimes::hasAll));
      offered = parts.get(true).toArray(new Filter[0]);
      if (offered.length == 0) {
        return filters;
      }
      PythonScanBuilder builder = batch(schema);
      Filter[] left = push(builder, offered);
      pushed = builder.pushedFilters();
      if (left == offered) {
        offered = new Filter[0]; // Spark has no form of them, such as of OR, that Python would read.
      }
      List<Filter> all = new ArrayList<>(List.of(left));
      all.addAll(parts.get(false));
      return all.toArray(new Filter[0]);
    }

    @Override
    public Filter[] pushedFilters() {
      return pushed;
    }

    @Override
    public void pruneColumns(StructType needed) {
      // Filters that were taken are applied to columns that nothing else may need.
      Set<String> names = new LinkedHashSet<>(List.of(needed.fieldNames()));
      for (Filter filter : offered) {
        for (String reference : filter.references()) { // With backquotes, where SQL needs them.
          names.add(Expressions.column(reference).fieldNames()[0]);
        }
      }
      List<StructField> fields = new ArrayList<>();
      for (StructField field : schema.fields()) {
        if (names.contains(field.name())) {
          fields.add(field);
        }
      }
      if (fields.isEmpty()) {
        fields.add(schema.fields()[0]); // The row key, which every row has.
      }
      required = new StructType(fields.toArray(new StructField[0]));
    }

    @Override
    public Scan build() {
      return new TableScan(this);
    }

    /** An option of the query goes before the timestamp that it was planned at. */
    String snapshot() {
      return new CaseInsensitiveStringMap(options).getOrDefault("snapshot", snapshot);
    }

    Scan batchScan() {
      PythonScanBuilder builder = batch(required.asNullable().add(Totals.COLUMN, DataTypes.BinaryType));
      if (offered.length > 0) {
        push(builder, offered);
      }
      return builder.build();
    }

    /** The table's size, of which the columns that are read have a share by their types. */
    Statistics statistics() {
      OptionalLong share = bytes;
      if (bytes.isPresent()) {
        double part = (double) required.defaultSize() / schema.defaultSize();
        share = OptionalLong.of(Math.max(1, Math.round(bytes.getAsLong() * part)));
      }
      OptionalLong size = share;
      return new Statistics() {
        @Override
        public OptionalLong sizeInBytes() {
          return size;
        }

        @Override
        public OptionalLong numRows() {
          return rows;
        }
      };
    }

    Scan streamScan() {
      return new PythonScanBuilder(
              Source.fresh(), Source.NAME, required, new CaseInsensitiveStringMap(options))
          .build();
    }

    private PythonScanBuilder batch(StructType columns) {
      Map<String, String> all = new HashMap<>(new CaseInsensitiveStringMap(options));
      all.put("snapshot", snapshot());
      all.remove("timestampasof"); // Spark has asked for this snapshot by it, and leaves it here.
      all.remove("versionasof");
      if (offered.length > 0) {
        all.put("pushfilters", "true"); // Spark refuses a reader with this that gets none.
      }
      all.put("allrows", "true");
      PythonDataSourceV2 source = Source.fresh();
      return new PythonScanBuilder(source, Source.NAME, columns, new CaseInsensitiveStringMap(all));
    }

    /** Spark hands filters to Python sources only with a setting, which this need not change. */
    private Filter[] push(PythonScanBuilder builder, Filter[] filters) {
      SQLConf conf = SQLConf.get().clone();
      conf.setConfString("spark.sql.python.filterPushdown.enabled", "true");
      return SQLConf.withExistingConf(conf, () -> builder.pushFilters(filters));
    }
  }

  private static final class TableScan implements SupportsReportStatistics {
    private final Builder builder;
    private Scan batch;

    TableScan(Builder builder) {
      this.builder = builder;
    }

    @Override
    public StructType readSchema() {
      return builder.required;
    }

    @Override
    public String description() {
      StringBuilder text = new StringBuilder("percola ");
      text.append(builder.options.get("table")).append(" snapshot=");
      text.append(builder.snapshot()).append(" columns=");
      text.append(String.join(",", builder.required.fieldNames()));
      for (Filter filter : builder.pushed) {
        text.append(" pushed=").append(filter);
      }
      return text.toString();
    }

    @Override
    public Batch toBatch() {
      return new MeasuredRead(python().toBatch(), builder.required.size());
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
      return builder.streamScan().toMicroBatchStream(checkpointLocation);
    }

    @Override
    public CustomMetric[] supportedCustomMetrics() {
      return Totals.ofReads(python().supportedCustomMetrics());
    }

    @Override
    public Statistics estimateStatistics() {
      return builder.statistics();
    }

    private Scan python() {
      if (batch == null) {
        batch = builder.batchScan();
      }
      return batch;
    }
  }
}
