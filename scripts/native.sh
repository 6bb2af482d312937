#!/usr/bin/env bash
# Builds percola._native, the native engine of the store on LMDB, with the Rust that is there. Does
# nothing where the built file is newer than its source; says in one line why it is not built.
#   scripts/native.sh            for set-up
#   scripts/native.sh --errors   shows the compiler's errors
#   scripts/native.sh --check    does not build it, but checks its format and lints, if there is Rust
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

built=src/percola/_native.abi3.so
if [ "${1:-}" != --check ] && [ -f "$built" ] &&
  [ -z "$(find native -newer "$built" \( -name '*.rs' -o -name 'Cargo.*' \))" ]; then
  exit 0
fi
# Where rustup puts it, if this shell has not been told.
PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
if ! cargo --version >/dev/null 2>&1; then
  [ "${1:-}" != --check ] || exit 0
  echo "The native engine for LMDB is not built: there is no Rust (install rustc and cargo 1.85 or newer). Percola uses py-lmdb." >&2
  exit 1
fi
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/.cache/native}"
mkdir -p "$CARGO_TARGET_DIR"
if [ "${1:-}" = --check ]; then
  # Parts of Rust's tools that a distribution may leave out.
  cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 || exit 0
  cargo fmt --check --manifest-path native/Cargo.toml
  exec cargo clippy --quiet --release --locked --manifest-path native/Cargo.toml -- --deny warnings
fi
log="$CARGO_TARGET_DIR/build.log"
if ! cargo build --quiet --release --locked --manifest-path native/Cargo.toml >"$log" 2>&1; then
  [ "${1:-}" != --errors ] || cat "$log" >&2
  echo "The native engine for LMDB is not built: cargo failed ('make native' shows why). Percola uses py-lmdb." >&2
  exit 1
fi
library="$CARGO_TARGET_DIR/release/lib_native.so"
[ -f "$library" ] || library="${library%.so}.dylib"
# In one step: processes that have loaded the old file keep it.
cp "$library" "$built.new"
mv "$built.new" "$built"
