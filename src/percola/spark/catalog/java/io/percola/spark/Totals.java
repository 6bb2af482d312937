package io.percola.spark;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/**
 * What a task of the Python data source has counted so far: rows, bytes, calls to the store,
 * conflicts, and milliseconds that it waited because of them.
 *
 * <p>Spark has no way for a Python data source to report metrics. So they come inside of what it
 * does return: a column of its own in the rows that it reads, and a field of the message with which
 * a task of a write ends (percola/spark/metrics.py).
 */
final class Totals {
  /** The last column of the rows that are read: null, except in rows that have nothing else. */
  static final String COLUMN = "_percola_metrics";

  private static final byte[] MARK = "percola-metrics:".getBytes(StandardCharsets.US_ASCII);
  private static final String[] NAMES = {
    "percolaRows", "percolaBytes", "percolaCalls", "percolaConflicts", "percolaWaited"
  };

  /** Spark's count of what Python returns: rows with metrics, or messages, count as well. */
  private static final String ROWS_OF_PYTHON = "pythonNumRowsReceived";

  private final long[] values = new long[NAMES.length];

  /** Take those in bytes of Python instead. */
  void set(byte[] bytes) {
    Arrays.fill(values, 0);
    add(bytes);
  }

  /** Add those in bytes of Python; bytes without any add nothing. */
  void add(byte[] bytes) {
    int begin = find(bytes);
    if (begin >= 0) {
      ByteBuffer buffer = ByteBuffer.wrap(bytes, begin, Long.BYTES * values.length);
      for (int at = 0; at < values.length; at++) {
        values[at] += buffer.getLong();
      }
    }
  }

  CustomTaskMetric[] toMetrics() {
    CustomTaskMetric[] metrics = new CustomTaskMetric[values.length];
    for (int at = 0; at < values.length; at++) {
      String name = NAMES[at];
      long value = values[at];
      metrics[at] =
          new CustomTaskMetric() {
            @Override
            public String name() {
              return name;
            }

            @Override
            public long value() {
              return value;
            }
          };
    }
    return metrics;
  }

  /** The metrics of reads, and those of Spark's Python reader or writer that remain true. */
  static CustomMetric[] ofReads(CustomMetric[] python) {
    return with(
        python,
        new CountMetric(NAMES[0], "rows read from the store"),
        new BytesMetric(NAMES[1], "bytes read from the store"),
        new CountMetric(NAMES[2], "calls to the store"),
        new CountMetric(NAMES[3], "locks in the way"),
        new MillisMetric(NAMES[4], "time waiting for locks"));
  }

  /** The same for writes. */
  static CustomMetric[] ofWrites(CustomMetric[] python) {
    return with(
        python,
        new CountMetric(NAMES[0], "rows written"),
        new BytesMetric(NAMES[1], "bytes written"),
        new CountMetric(NAMES[2], "calls to the store"),
        new CountMetric(NAMES[3], "conflicts"),
        new MillisMetric(NAMES[4], "time waiting for conflicts"));
  }

  private static CustomMetric[] with(CustomMetric[] python, CustomMetric... ours) {
    List<CustomMetric> all = new ArrayList<>(List.of(ours));
    for (CustomMetric one : python) {
      if (!one.name().equals(ROWS_OF_PYTHON)) {
        all.add(one);
      }
    }
    return all.toArray(new CustomMetric[0]);
  }

  /** Where the values begin; -1 if there are none. Pickle keeps bytes as they are. */
  private static int find(byte[] bytes) {
    for (int at = 0; at + MARK.length + Long.BYTES * NAMES.length <= bytes.length; at++) {
      int same = 0;
      while (same < MARK.length && bytes[at + same] == MARK[same]) {
        same++;
      }
      if (same == MARK.length) {
        return at + MARK.length;
      }
    }
    return -1;
  }
}
