#!/usr/bin/env bash
# Builds the jar of the Spark catalog from its Java source, against the jars that PySpark brings.
# Does nothing where the jar is newer than its source; says in one line why it is not built.
#   scripts/catalog_jar.sh [PYTHON]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python="${1:-.venv/bin/python}"
catalog=src/percola/spark/catalog
jar="$catalog/percola-catalog.jar"

if [ -f "$jar" ] && [ -z "$(find "$catalog/java" -newer "$jar" -name '*.java')" ]; then
  exit 0
fi
home="$(scripts/java.sh home || true)"
compiler="${home:+$home/bin/javac}"
if [ ! -x "$compiler" ]; then
  echo "The catalog for Spark SQL is not built: there is no Java compiler (install a JDK of version 17 or newer)." >&2
  exit 1
fi
jars="$("$python" -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent / "jars")')"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
"$compiler" -nowarn --release 17 -proc:none -d "$scratch/classes" -cp "$jars/*" "$catalog"/java/io/percola/spark/*.java 2>&1 |
  grep -v '^Note:' >&2 || true
"$home/bin/jar" --create --file "$scratch/percola-catalog.jar" --date=2020-01-01T00:00:00Z -C "$scratch/classes" .
mv "$scratch/percola-catalog.jar" "$jar"
