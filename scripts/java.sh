#!/usr/bin/env bash
# The Java runtime for Spark, which needs version 17 or later.
#
#   java.sh home       prints its folder, for JAVA_HOME; prints nothing and fails if there is none
#   java.sh describe   prints its version and folder on one line; likewise
#   java.sh install    finds one, or installs Debian's where that needs no password, and describes
#                      it; else says in one sentence how to get one, and fails
set -euo pipefail

# Where runtimes usually are, in order of preference; the versions that Spark is tested with first.
candidates() {
  [ -z "${JAVA_HOME:-}" ] || echo "$JAVA_HOME/bin/java"
  type -P java || true
  ls -d /usr/lib/jvm/*17*/bin/java /usr/lib/jvm/*21*/bin/java /usr/lib/jvm/*/bin/java \
    /opt/homebrew/opt/openjdk*/bin/java /usr/local/opt/openjdk*/bin/java \
    /Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java 2>/dev/null || true
}

# Prints the version and the home of the first candidate that runs and is recent enough.
find_java() {
  local java settings
  while IFS= read -r java; do
    settings=$("$java" -XshowSettings:properties -version 2>&1 </dev/null) || continue
    if awk -F ' = ' '
      $1 ~ /^ *java\.home$/ { home = $2 }
      $1 ~ /^ *java\.version$/ { version = $2 }
      $1 ~ /^ *java\.specification\.version$/ { release = $2 }
      END { if (home == "" || release < 17) exit 1; print version; print home }
    ' <<<"$settings"; then
      return
    fi
  done < <(candidates)
  return 1
}

# Installs the first of the packages that this Debian has. Its output is shown only on failure.
apt_install() {
  local package as_root=()
  command -v apt-get >/dev/null || return 1
  if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || return 1
    as_root=(sudo -n)
  fi
  echo "Installing a Java runtime with apt-get, because Spark needs one and none is here."
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  ${as_root[@]+"${as_root[@]}"} apt-get update </dev/null >"$log" 2>&1 || true
  for package in openjdk-17-jre-headless openjdk-21-jre-headless; do
    ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
      apt-get install --yes --no-install-recommends "$package" </dev/null >>"$log" 2>&1 && return
  done
  tail -n 5 "$log" >&2
  return 1
}

describe() {
  local version home
  { read -r version && read -r home; } < <(find_java) && echo "Java $version in $home"
}

case "${1:-}" in
  home)
    find_java | sed -n 2p
    ;;
  describe)
    describe
    ;;
  install)
    if ! describe && ! { apt_install && describe; }; then
      echo "Spark needs a Java runtime of version 17 or later and none was found: install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) or point JAVA_HOME to one; everything but Spark works without." >&2
      exit 1
    fi
    ;;
  *)
    echo "usage: scripts/java.sh home|describe|install" >&2
    exit 2
    ;;
esac
