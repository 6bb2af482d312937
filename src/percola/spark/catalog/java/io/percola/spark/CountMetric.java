package io.percola.spark;

import java.util.Arrays;

import org.apache.spark.sql.connector.metric.CustomMetric;

/**
 * A metric of Spark's SQL tab that is a number; the tasks' values are added.
 *
 * <p>Spark's UI makes one without arguments to add and show the values.
 */
public class CountMetric implements CustomMetric {
  private final String name;
  private final String description;

  public CountMetric() {
    this("", "");
  }

  CountMetric(String name, String description) {
    this.name = name;
    this.description = description;
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public String description() {
    return description;
  }

  @Override
  public String aggregateTaskMetrics(long[] values) {
    return shown(Arrays.stream(values).sum());
  }

  String shown(long total) {
    return String.format("%,d", total);
  }
}
