#!/usr/bin/env bash
# Prints the path of promtool, which reads Prometheus' rules and plays their tests through: the one on
# PATH, or Debian's, unpacked into .cache/ of this tree, which git ignores; its package would start a
# server where it is installed. Where neither can be had, says so in one line and fails.
set -euo pipefail

folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.cache/prometheus

fail() {
  echo "promtool cannot be had: $1" >&2
  exit 1
}

# Unpacks beside the place and moves it there, so that two at once do not meet a half of it.
unpack() {
  type -P apt-get >/dev/null && type -P dpkg-deb >/dev/null ||
    fail "it is not on PATH, and this is not a Debian whose package has it."
  mkdir -p "${folder%/*}"
  work=$(mktemp -d "${folder%/*}/unpacking.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  cd "$work"
  # Lists of packages may be missing or too old, and only root can fetch them anew.
  { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; } \
    </dev/null >log 2>&1 || fail "apt-get cannot download prometheus: $(tail -n 1 log)"
  dpkg-deb --extract prometheus_*.deb unpacked
  mkdir -p "$folder"
  mv -f unpacked/usr/bin/promtool "$folder/promtool"
}

type -P promtool && exit
[ -x "$folder/promtool" ] || unpack
echo "$folder/promtool"
