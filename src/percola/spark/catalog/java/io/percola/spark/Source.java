package io.percola.spark;

import java.util.Map;

import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The Python data source "percola", which knows what a repository is. */
final class Source {
  static final String NAME = "percola";

  private Source() {}

  /** A source that has not been asked anything yet: Spark's object keeps its first answer. */
  static PythonDataSourceV2 fresh() {
    PythonDataSourceV2 source = new PythonDataSourceV2();
    source.setShortName(NAME);
    return source;
  }

  /**
   * What the source answers to a question in its option "describe", which comes as a schema: that
   * is all that a Python data source can tell the JVM without a job.
   *
   * @throws IllegalArgumentException with the source's own sentence, if it refuses the options.
   */
  static StructType ask(Map<String, String> options) {
    StructType answer = fresh().inferSchema(new CaseInsensitiveStringMap(options));
    for (StructField field : answer.fields()) {
      if (field.metadata().contains("error")) {
        throw new IllegalArgumentException(field.metadata().getString("error"));
      }
    }
    return answer;
  }

  /** A name as SQL takes it, whatever characters it has. */
  static String quoted(String name) {
    return "`" + name.replace("`", "``") + "`";
  }
}
