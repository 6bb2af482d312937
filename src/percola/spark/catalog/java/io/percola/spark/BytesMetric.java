package io.percola.spark;

import org.apache.spark.util.Utils;

/** A {@link CountMetric} of bytes. */
public final class BytesMetric extends CountMetric {
  public BytesMetric() {
    super();
  }

  BytesMetric(String name, String description) {
    super(name, description);
  }

  @Override
  String shown(long total) {
    return Utils.bytesToString(total);
  }
}
