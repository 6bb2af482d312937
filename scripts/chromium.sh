#!/usr/bin/env bash
# Chromium and its driver, in which the browser tests look at the page that `webindex serve` makes.
#
#   chromium.sh path       prints the browser and its driver, a line each; prints nothing and
#                          fails if there are none
#   chromium.sh install    finds them, or installs Debian's where that needs no password, and says
#                          which; else says in one sentence how to get them, and fails
set -euo pipefail

# The first of the names or files that is there and says its version.
first() {
  local one file
  for one in "$@"; do
    file=$(type -P "$one") || continue
    if "$file" --version </dev/null >/dev/null 2>&1; then
      echo "$file"
      return
    fi
  done
  return 1
}

# A browser and a driver of one version: a driver refuses every other.
find_both() {
  local browser driver
  browser=$(first ${CHROMIUM:+"$CHROMIUM"} chromium chromium-browser google-chrome) || return 1
  driver=$(first ${CHROMEDRIVER:+"$CHROMEDRIVER"} chromedriver /usr/lib/chromium/chromedriver) || return 1
  [ "$(major "$browser")" = "$(major "$driver")" ] || return 1
  printf '%s\n%s\n' "$browser" "$driver"
}

major() {
  "$1" --version 2>/dev/null </dev/null | sed -nE 's/^[^0-9]*([0-9]+)\..*/\1/p' | head -n 1
}

# Its output is shown only on failure.
apt_install() {
  local as_root=()
  command -v apt-get >/dev/null || return 1
  if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || return 1
    as_root=(sudo -n)
  fi
  echo "Installing Chromium with apt-get, because the browser tests need one and none is here."
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  ${as_root[@]+"${as_root[@]}"} apt-get update </dev/null >"$log" 2>&1 || true
  ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
    apt-get install --yes --no-install-recommends chromium chromium-driver </dev/null >>"$log" 2>&1 && return
  tail -n 5 "$log" >&2
  return 1
}

describe() {
  local browser driver
  { read -r browser && read -r driver; } < <(find_both) &&
    echo "$("$browser" --version 2>/dev/null </dev/null | head -n 1) in $browser, with $driver"
}

case "${1:-}" in
  path)
    find_both
    ;;
  install)
    if ! describe && ! { apt_install && describe; }; then
      echo "The browser tests need Chromium and a driver of the same version, and none was found: install them (Debian: apt-get install chromium chromium-driver) or point CHROMIUM and CHROMEDRIVER to them; everything but these tests works without." >&2
      exit 1
    fi
    ;;
  *)
    echo "usage: scripts/chromium.sh path|install" >&2
    exit 2
    ;;
esac
