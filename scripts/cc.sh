#!/usr/bin/env bash
# The C compiler for the power-cut tests, which record what LMDB writes to the disk.
#
#   cc.sh path       prints the compiler's path; prints nothing and fails if there is none
#   cc.sh install    finds one, or installs Debian's where that needs no password, and prints its
#                    path; else says in one sentence how to get one, and fails
set -euo pipefail

# Prints the path of the first compiler that makes a shared library.
find_cc() {
  local name path folder
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' RETURN
  for name in ${CC:+"$CC"} cc gcc clang; do
    path=$(type -P "$name") || continue
    echo '#include <dlfcn.h>' >"$folder/try.c"
    if "$path" -shared -fPIC -o "$folder/try.so" "$folder/try.c" -ldl >/dev/null 2>&1; then
      echo "$path"
      return
    fi
  done
  return 1
}

# Its output is shown only on failure.
apt_install() {
  local as_root=()
  command -v apt-get >/dev/null || return 1
  if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || return 1
    as_root=(sudo -n)
  fi
  echo "Installing a C compiler with apt-get, because the power-cut tests need one and none is here." >&2
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  ${as_root[@]+"${as_root[@]}"} apt-get update </dev/null >"$log" 2>&1 || true
  ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
    apt-get install --yes --no-install-recommends gcc libc6-dev </dev/null >>"$log" 2>&1 && return
  tail -n 5 "$log" >&2
  return 1
}

case "${1:-}" in
  path)
    find_cc
    ;;
  install)
    if ! find_cc && ! { apt_install && find_cc; }; then
      echo "The power-cut tests need a C compiler and none was found: install one (Debian, Ubuntu: apt-get install gcc libc6-dev) or point CC to one; everything else works without." >&2
      exit 1
    fi
    ;;
  *)
    echo "usage: scripts/cc.sh path|install" >&2
    exit 2
    ;;
esac
