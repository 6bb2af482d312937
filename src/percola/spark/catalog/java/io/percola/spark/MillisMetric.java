package io.percola.spark;

import org.apache.spark.util.Utils;

/** A {@link CountMetric} of milliseconds. */
public final class MillisMetric extends CountMetric {
  public MillisMetric() {
    super();
  }

  MillisMetric(String name, String description) {
    super(name, description);
  }

  @Override
  String shown(long total) {
    return Utils.msDurationToString(total);
  }
}
