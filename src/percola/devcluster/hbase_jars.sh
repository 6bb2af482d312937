#!/usr/bin/env bash
# The jars of HBase, for the store and for the development cluster: finds them, or has Maven fetch them.
#
#   hbase_jars.sh find client      prints the folder of HBase's client, which the store needs
#   hbase_jars.sh find server      prints the folder of ZooKeeper, HDFS and HBase, for a cluster
#   hbase_jars.sh install          fetches both where they are not yet, and prints their folders;
#                                  `install client` or `install server` fetches one
#   hbase_jars.sh install kdc      fetches a Kerberos server for tests, which nothing else needs;
#                                  so does `install kafka` a Kafka broker with Connect's JSON, and
#                                  `install spark-kafka` Spark's connector to Kafka
#
# They stand in ~/.cache/percola/hbase-client and hbase-server, about 190 MB together, or where
# PERCOLA_HBASE_JARS and PERCOLA_HBASE_SERVER_JARS say: those folders are yours, nothing is fetched.
# The Kerberos server is 4 MB in hbase-kdc, Kafka is 45 MB in hbase-kafka and 10 MB in
# hbase-spark-kafka.
# `percola hbase-jars` calls it, and set-up of the source tree, which has no Percola yet.
# Where Maven takes them from is for its own settings to say.
set -euo pipefail

HBASE=2.6.4-hadoop3
HADOOP=3.4.2
LOG4J=2.17.2
KAFKA=4.3.1
# The newest connector that there is; it works with Spark 4.3, too.
SPARK_KAFKA=4.2.0
cache=${HOME:-}/.cache/percola

# One dependency of a project: group, artifact, version; with a fourth word without those that it
# requires. Reload4j would be a second place where logs go, besides Log4j 2.
dependency() {
  echo "<dependency><groupId>$1</groupId><artifactId>$2</artifactId><version>$3</version><exclusions>${4:+
<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>}
<exclusion><groupId>ch.qos.reload4j</groupId><artifactId>reload4j</artifactId></exclusion>
<exclusion><groupId>org.slf4j</groupId><artifactId>slf4j-reload4j</artifactId></exclusion>
</exclusions></dependency>"
}

# What a set consists of, as a Maven project; a copy of it in a folder says what that folder holds.
project() {
  echo "<project><modelVersion>4.0.0</modelVersion>
<groupId>percola</groupId><artifactId>hbase-$1</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>"
  if [ "$1" = client ]; then
    dependency org.apache.hbase hbase-shaded-client "$HBASE"
  elif [ "$1" = kdc ]; then
    dependency org.apache.hadoop hadoop-minikdc "$HADOOP"
  elif [ "$1" = kafka ]; then
    LOG4J=2.25.4 # Kafka's own
    dependency org.apache.kafka kafka_2.13 "$KAFKA"
    dependency org.apache.kafka connect-json "$KAFKA"
  elif [ "$1" = spark-kafka ]; then # Spark has all else.
    dependency org.apache.spark spark-sql-kafka-0-10_2.13 "$SPARK_KAFKA" alone
    dependency org.apache.spark spark-token-provider-kafka-0-10_2.13 "$SPARK_KAFKA" alone
    dependency org.apache.kafka kafka-clients 3.9.2 alone
    dependency org.apache.commons commons-pool2 2.13.1 alone
    echo "</dependencies></project>"
    return
  else
    dependency org.apache.hbase hbase-server "$HBASE"
    dependency org.apache.hadoop hadoop-hdfs "$HADOOP"
    dependency org.apache.hadoop hadoop-common "$HADOOP"
    dependency org.apache.logging.log4j log4j-1.2-api "$LOG4J"
  fi
  dependency org.apache.logging.log4j log4j-slf4j-impl "$LOG4J"
  dependency org.apache.logging.log4j log4j-core "$LOG4J"
  echo "</dependencies></project>"
}

named() {
  case $set in
    *kafka) echo "The $set jars" ;;
    *) echo "HBase's $set jars" ;;
  esac
}

fail() {
  echo "$(named) cannot be had: $1" >&2
  exit 1
}

# Prints the folder of the set if it is there, whole, and of the versions named above.
find_jars() {
  local variable= own=
  [ "$set" != client ] || variable=PERCOLA_HBASE_JARS
  [ "$set" != server ] || variable=PERCOLA_HBASE_SERVER_JARS
  [ -z "$variable" ] || own=${!variable:-}
  if [ -n "$own" ]; then
    compgen -G "$own/*.jar" >/dev/null ||
      fail "there are none in $own, which $variable names, and nothing is fetched to a folder of yours: unset it to have them fetched."
    echo "$own"
  else
    [ -n "${HOME:-}" ] ||
      fail "they are kept below the user's home folder, and HOME names none: set it${variable:+, or have $variable name a folder that holds them}."
    cmp -s <(project "$set") "$cache/hbase-$set/pom.xml" && echo "$cache/hbase-$set"
  fi
}

# Copies beside the place and moves it there as one, so that nobody ever meets a half of it.
install_jars() {
  type -P mvn >/dev/null ||
    fail "they are not here, and there is no Maven to fetch them with (Debian, Ubuntu: apt-get install maven; macOS: brew install maven)."
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/fetching.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  jars=$work/hbase-$set
  mkdir "$jars"
  project "$set" >"$jars/pom.xml"
  echo "Fetching $(named | sed 's/^The/the/') with Maven; the first time takes minutes." >&2
  mvn --batch-mode --quiet --file "$jars/pom.xml" \
    org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$jars" </dev/null >"$work/log" 2>&1 ||
    fail "Maven says: $(grep -m 1 ERROR "$work/log" || tail -n 1 "$work/log")"
  [ ! -e "$cache/hbase-$set" ] || mv "$cache/hbase-$set" "$work/old"
  mv "$jars" "$cache/" 2>/dev/null || true # another one may just have done the same
  rm -rf "$work"
}

usage() {
  echo "usage: hbase_jars.sh find client|server, or install [client|server|kdc|kafka|spark-kafka]" >&2
  exit 2
}

case "${1:-} ${2:-}" in
  "find client" | "find server")
    set=$2
    find_jars || fail "they are not here; 'percola hbase-jars $set' fetches them."
    ;;
  "install " | "install client" | "install server" | "install kdc" | "install kafka" | "install spark-kafka")
    for set in ${2:-client server}; do
      find_jars || { install_jars; find_jars || fail "they were fetched, but are not there."; }
    done
    ;;
  *) usage ;;
esac
