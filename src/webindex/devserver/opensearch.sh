#!/usr/bin/env bash
# OpenSearch for development and tests: finds it, or has Maven fetch its minimal distribution.
#
#   opensearch.sh find       prints its folder
#   opensearch.sh install    fetches it where it is not yet, and prints its folder
#
# It stands in ~/.cache/percola/opensearch-VERSION, about 60 MB, or where WEBINDEX_OPENSEARCH_HOME
# says: that folder is yours, nothing is fetched. The minimal distribution has no plugin for TLS and
# logins, so `webindex dev-opensearch` listens on 127.0.0.1 only. Version 3 takes Java 21.
# Where Maven takes it from is for its own settings to say.
set -euo pipefail

VERSION=2.19.6
home=${WEBINDEX_OPENSEARCH_HOME:-${HOME:?}/.cache/percola/opensearch-$VERSION}

fail() {
  echo "OpenSearch cannot be had: $1" >&2
  exit 1
}

find_it() {
  if compgen -G "$home/lib/opensearch-[0-9]*.jar" >/dev/null; then
    echo "$home"
  elif [ -n "${WEBINDEX_OPENSEARCH_HOME:-}" ]; then
    fail "there is none in $home, which WEBINDEX_OPENSEARCH_HOME names."
  else
    return 1
  fi
}

# Fetches an artifact (group:name:version:type) into a folder.
fetch() {
  mvn --batch-mode --quiet org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy \
    -Dartifact="$1" -DoutputDirectory="$2" </dev/null >"$work/log" 2>&1 ||
    fail "Maven says: $(grep -m 1 ERROR "$work/log" || tail -n 1 "$work/log")"
}

# Puts it together beside the place and moves it there as one, so that nobody ever meets a half.
install_it() {
  local tool module
  for tool in mvn unzip; do
    type -P "$tool" >/dev/null ||
      fail "it is not here, and there is no $tool to fetch it with (Debian, Ubuntu: apt-get install maven unzip)."
  done
  mkdir -p "$(dirname "$home")"
  work=$(mktemp -d "$home.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  echo "Fetching OpenSearch $VERSION with Maven; the first time takes a minute." >&2
  fetch "org.opensearch.distribution.integ-test-zip:opensearch:$VERSION:zip" "$work"
  unzip -q "$work/opensearch-$VERSION.zip" -d "$work" || fail "what Maven fetched cannot be unpacked."
  # The tokenizers and filters of the index are a module, which the minimal distribution lacks.
  module=$work/opensearch-$VERSION/modules/analysis-common
  fetch "org.opensearch.plugin:analysis-common:$VERSION:jar" "$module"
  cat >"$module/plugin-descriptor.properties" <<END
name=analysis-common
description=Tokenizers and filters
version=$VERSION
opensearch.version=$VERSION
java.version=11
classname=org.opensearch.analysis.common.CommonAnalysisPlugin
has.native.controller=false
END
  mv "$work/opensearch-$VERSION" "$home" 2>/dev/null || true # another one may just have done the same
  rm -rf "$work"
}

case "${1:-}" in
  find)
    find_it || fail "it is not here; 'webindex dev-opensearch up' fetches it."
    ;;
  install)
    find_it || { install_it; find_it || fail "it was fetched, but is not there."; }
    ;;
  *)
    echo "usage: opensearch.sh find|install" >&2
    exit 2
    ;;
esac
