#!/usr/bin/env bash
# Builds the jars that wheels contain from their Java source: the catalog for Spark SQL, against the
# jars that PySpark brings, and the commits on HBase, which need none.
# Does nothing where a jar is newer than its source; says in one line why one is not built.
#   scripts/java_jars.sh [PYTHON]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python="${1:-.venv/bin/python}"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

# Builds one: the jar, beside the folder 'java' with its source; the oldest Java that it runs on;
# what it is; what prints its class path.
build() {
  local jar=$1 release=$2 what=$3 path=${4:-true} source classes home compiler
  source="$(dirname "$jar")/java"
  if [ -f "$jar" ] && [ -z "$(find "$source" -newer "$jar" -name '*.java')" ]; then
    return
  fi
  home="$(scripts/java.sh home || true)"
  compiler="${home:+$home/bin/javac}"
  if [ ! -x "$compiler" ]; then
    echo "$what not built: there is no Java compiler (install a JDK of version 17 or newer)." >&2
    return 1
  fi
  classes="$scratch/$(basename "$jar" .jar)"
  find "$source" -name '*.java' -print0 |
    xargs -0 "$compiler" -nowarn -encoding UTF-8 --release "$release" -proc:none -d "$classes" -cp "$($path)" 2>&1 |
    grep -v '^Note:' >&2 || true
  "$home/bin/jar" --create --file "$classes.jar" --date=2020-01-01T00:00:00Z -C "$classes" . &&
    mv "$classes.jar" "$jar"
}

jars_of_pyspark() {
  "$python" -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent / "jars" / "*")'
}

status=0
build src/percola/spark/catalog/percola-catalog.jar 17 "The catalog for Spark SQL is" jars_of_pyspark || status=1
build src/percola/store/hbase/percola-hbase.jar 11 "The faster commits on HBase are" || status=1
exit "$status"
