package io.percola.spark;

import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;
import java.util.TreeMap;

import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableWritePrivilege;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A Spark catalog whose tables are those of Percola repositories.
 *
 * <pre>
 * spark.sql.catalog.shop               io.percola.spark.PercolaCatalog
 * spark.sql.catalog.shop.path          the repository of shop.TABLE and shop.default.TABLE
 * spark.sql.catalog.shop.path.archive  the repository of shop.archive.TABLE
 * spark.sql.catalog.shop.option.NAME   an option of format("percola") for every read and write
 * </pre>
 *
 * The catalog knows nothing of Percola's storage: it asks the Python data source "percola" what
 * tables there are, and its tables read and write through that source. All references to one
 * repository in one query read at the same timestamp ({@link QuerySnapshots}).
 */
public final class PercolaCatalog implements TableCatalog, SupportsNamespaces {
  private static final String DEFAULT = "default";

  private final QuerySnapshots snapshots = new QuerySnapshots();
  private String name;
  private final Map<String, String> addresses = new TreeMap<>();
  private final Map<String, String> options = new HashMap<>();

  @Override
  public void initialize(String name, CaseInsensitiveStringMap given) {
    this.name = name;
    for (Map.Entry<String, String> entry : given.asCaseSensitiveMap().entrySet()) {
      String key = entry.getKey();
      String lower = key.toLowerCase();
      if (lower.equals("path")) {
        addresses.put(DEFAULT, entry.getValue());
      } else if (lower.startsWith("path.")) {
        addresses.put(key.substring("path.".length()), entry.getValue());
      } else if (lower.startsWith("option.")) {
        options.put(key.substring("option.".length()), entry.getValue());
      } else {
        throw new IllegalArgumentException(
            "The catalog " + name + " has no setting '" + key + "': use path, path.NAMESPACE or option.NAME.");
      }
    }
    if (addresses.isEmpty()) {
      throw new IllegalArgumentException(
          "The catalog " + name + " needs a repository: set spark.sql.catalog." + name + ".path to its address.");
    }
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public String[] defaultNamespace() {
    return new String[] {DEFAULT};
  }

  // --- Tables ----------------------------------------------------------------------------

  @Override
  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    String address = addressOf(namespace);
    if (address == null) {
      throw new NoSuchNamespaceException(namespace);
    }
    Map<String, String> asked = new HashMap<>();
    asked.put("path", address);
    asked.put("describe", "repository");
    List<Identifier> found = new ArrayList<>();
    for (StructField field : Source.ask(asked).fields()) {
      found.add(Identifier.of(namespace, field.name()));
    }
    return found.toArray(new Identifier[0]);
  }

  /** For reading, and for TRUNCATE TABLE, which Spark does not ask for by a privilege. */
  @Override
  public Table loadTable(Identifier ident) throws NoSuchTableException {
    return now(ident).truncatable();
  }

  /** For INSERT, UPDATE, DELETE and MERGE. */
  @Override
  public Table loadTable(Identifier ident, Set<TableWritePrivilege> privileges)
      throws NoSuchTableException {
    return now(ident);
  }

  private PercolaTable now(Identifier ident) throws NoSuchTableException {
    String address = addressOf(ident.namespace());
    return load(ident, address, "snapshot", address == null ? null : snapshots.of(address));
  }

  /** VERSION AS OF: the version is a timestamp of Percola. */
  @Override
  public Table loadTable(Identifier ident, String version) throws NoSuchTableException {
    return load(ident, addressOf(ident.namespace()), "snapshot", version);
  }

  /** TIMESTAMP AS OF: the newest version that was certainly there, by the repository's log of times. */
  @Override
  public Table loadTable(Identifier ident, long microseconds) throws NoSuchTableException {
    String time = Instant.EPOCH.plus(microseconds, ChronoUnit.MICROS).toString();
    return load(ident, addressOf(ident.namespace()), "timestampAsOf", time);
  }

  /** The table at what an option says: `snapshot` or `timestampAsOf`; null: at the newest timestamp. */
  private PercolaTable load(Identifier ident, String address, String option, String version) throws NoSuchTableException {
    if (address == null) {
      throw new NoSuchTableException(ident);
    }
    Map<String, String> base = new HashMap<>(options);
    base.put("path", address);
    base.put("table", ident.name());
    Map<String, String> asked = new HashMap<>(base);
    asked.put("describe", "table");
    if (version != null) {
      asked.put(option, version);
    }
    StructType answer = Source.ask(asked);
    if (answer.isEmpty()) {
      throw new NoSuchTableException(ident);
    }
    StructField table = answer.fields()[0];
    String snapshot = String.valueOf(table.metadata().getLong("snapshot"));
    if (version == null) {
      snapshots.pin(address, snapshot);
    }
    List<String> full = new ArrayList<>(List.of(name));
    full.addAll(List.of(ident.namespace().length == 0 ? defaultNamespace() : ident.namespace()));
    full.add(ident.name());
    return new PercolaTable(
        full,
        (StructType) table.dataType(),
        base,
        snapshot,
        known(table.metadata(), "rows"),
        known(table.metadata(), "bytes"));
  }

  private static OptionalLong known(Metadata answer, String name) {
    return answer.contains(name) ? OptionalLong.of(answer.getLong(name)) : OptionalLong.empty();
  }

  private String addressOf(String[] namespace) {
    return namespace.length > 1 ? null : addresses.get(namespace.length == 0 ? DEFAULT : namespace[0]);
  }

  @Override
  public Table createTable(
      Identifier ident, StructType schema, Transform[] partitions, Map<String, String> properties) {
    throw declared("created");
  }

  @Override
  public Table alterTable(Identifier ident, TableChange... changes) {
    throw declared("altered");
  }

  @Override
  public boolean dropTable(Identifier ident) {
    throw declared("dropped");
  }

  @Override
  public void renameTable(Identifier from, Identifier to) {
    throw declared("renamed");
  }

  private static UnsupportedOperationException declared(String done) {
    return new UnsupportedOperationException(
        "Tables of Percola are declared in Python and cannot be " + done
            + " in SQL: declare them with percola.Table, open the repository with them once, and INSERT INTO them.");
  }

  // --- Namespaces ------------------------------------------------------------------------

  @Override
  public String[][] listNamespaces() {
    return addresses.keySet().stream().map(one -> new String[] {one}).toArray(String[][]::new);
  }

  @Override
  public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
    if (namespace.length == 0) {
      return listNamespaces();
    }
    loadNamespaceMetadata(namespace);
    return new String[0][];
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
    String address = addressOf(namespace);
    if (address == null) {
      throw new NoSuchNamespaceException(namespace);
    }
    return Collections.singletonMap("location", address);
  }

  @Override
  public void createNamespace(String[] namespace, Map<String, String> metadata) {
    throw configured(namespace);
  }

  @Override
  public void alterNamespace(String[] namespace, NamespaceChange... changes) {
    throw configured(namespace);
  }

  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade) {
    throw configured(namespace);
  }

  private UnsupportedOperationException configured(String[] namespace) {
    return new UnsupportedOperationException(
        "Namespaces of the catalog " + name + " are repositories, named in the session's configuration: set spark.sql.catalog."
            + name + ".path." + String.join(".", Arrays.asList(namespace)) + ".");
  }
}
