#!/usr/bin/env bash
# Google's emulator of Cloud Bigtable, for the tests: finds it, or builds it with Go.
#
#   bigtable_emulator.sh         prints the path of the program; builds it where there is none yet,
#                                else says in one line why it cannot be had, and fails
#   bigtable_emulator.sh find    the same without building anything
#
# What it builds stays in .cache/ of this tree, which git ignores.
set -euo pipefail

VERSION=v1.58.0
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$here/.cache/bigtable-emulator-$VERSION

# Where it may be: on the path, beside gcloud as its component, where this script builds it.
candidates() {
  local gcloud
  type -P cbtemulator || true
  gcloud=$(type -P gcloud) && gcloud=$(readlink -f "$gcloud") &&
    echo "$(dirname "$(dirname "$gcloud")")/platform/bigtable-emulator/cbtemulator" || true
  echo "$folder/cbtemulator"
}

find_emulator() {
  local program
  while IFS= read -r program; do
    if [ -x "$program" ]; then
      echo "$program"
      return
    fi
  done < <(candidates)
  return 1
}

fail() {
  echo "Cloud Bigtable's emulator cannot be had: $1" >&2
  exit 1
}

# Builds beside the place and moves it there, so that two at once do not meet a half of it.
build() {
  type -P go >/dev/null ||
    fail "it is not here, and there is no Go to build it with (gcloud components install bigtable has it)."
  mkdir -p "$here/.cache"
  work=$(mktemp -d "$here/.cache/building.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  GOBIN=$work go install "cloud.google.com/go/bigtable/cmd/emulator@$VERSION" \
    </dev/null >"$work/log" 2>&1 || fail "Go cannot build it: $(tail -n 1 "$work/log")"
  mkdir -p "$folder"
  mv -f "$work/emulator" "$folder/cbtemulator"
}

case ${1:-} in
  "") find_emulator || { build; find_emulator || fail "it was built, but does not run."; } ;;
  find) find_emulator || fail "it is not here; run scripts/bigtable_emulator.sh to build it." ;;
  *) echo "usage: bigtable_emulator.sh [find]" >&2; exit 2 ;;
esac
