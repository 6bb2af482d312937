package io.percola.spark;

import java.lang.ref.WeakReference;
import java.util.HashMap;
import java.util.Map;

import org.apache.spark.sql.catalyst.analysis.AnalysisContext;

/**
 * One timestamp for all references to a repository in a query, and a new one for the next query.
 *
 * <p>Spark loads every reference by itself, and tells a catalog nothing of the query that it
 * belongs to. But each analysis has a cache of relations of its own, which views inside the query
 * share: its identity is the query's.
 */
final class QuerySnapshots {
  private static final class Pins {
    final WeakReference<Object> query;
    final Map<String, String> timestamps = new HashMap<>();

    Pins(Object query) {
      this.query = new WeakReference<>(query);
    }
  }

  private final ThreadLocal<Pins> pins = new ThreadLocal<>();

  /** The timestamp that this thread's query reads the repository at; null if it has none yet. */
  String of(String address) {
    Pins known = pins.get();
    return known == null || known.query.get() != query() ? null : known.timestamps.get(address);
  }

  /** Let the rest of this thread's query read the repository at the timestamp. */
  void pin(String address, String timestamp) {
    Object query = query();
    Pins known = pins.get();
    if (known == null || known.query.get() != query) {
      known = new Pins(query);
      pins.set(known);
    }
    known.timestamps.put(address, timestamp);
  }

  private static Object query() {
    return AnalysisContext.get().relationCache();
  }
}
