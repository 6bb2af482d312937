#!/usr/bin/env bash
# Makes .venv hold exactly what requirements.lock says, every file checked against its hash, and
# this project itself in editable form. Does nothing, quickly, where nothing has changed.
#
# PYTHON=… chooses the interpreter; a .venv of another version is then made anew.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
  echo "setup: $*" >&2
  exit 1
}

# Prints MAJOR.MINOR of an interpreter that runs and is recent enough; fails for any other.
version_of() {
  "$1" -c 'import sys; v = sys.version_info[:2]; print("%d.%d" % v); sys.exit(v < (3, 11))' 2>/dev/null
}

find_python() {
  local name
  if [ -n "${PYTHON:-}" ]; then
    version_of "$PYTHON" >/dev/null ||
      fail "PYTHON=$PYTHON is not a Python 3.11 or later that runs; name another."
    echo "$PYTHON"
    return
  fi
  for name in python3.13 python3.12 python3.11 python3 python; do
    # A name on PATH may be a stub for a version that is not installed: only running it tells.
    if version_of "$name" >/dev/null; then
      echo "$name"
      return
    fi
  done
  fail "no Python 3.11 or later found; install one (Debian, Ubuntu: apt-get install python3 python3-venv) or name it with PYTHON=/path/to/python3."
}

make_venv() {
  "$1" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$1 cannot make virtual environments because its ensurepip module is missing; install it (Debian, Ubuntu: apt-get install python3-venv) or name another Python with PYTHON=/path/to/python3."
  echo "Making .venv with Python $(version_of "$1")."
  "$1" -m venv --clear .venv
}

# uv itself comes from the lock file, so that its version and hash are pinned in one place.
install_uv() {
  local version
  version=$(sed -n 's/^uv==\([^ ]*\).*/\1/p' requirements.lock)
  case "$(.venv/bin/uv --version 2>/dev/null)" in
    "uv $version" | "uv $version "*) return ;;
  esac
  .venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip >/dev/null
  awk '/^[^ ]/ { wanted = /^uv==/ } wanted' requirements.lock >.venv/uv.lock
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps \
    --require-hashes --requirement .venv/uv.lock
}

# The stamp lies inside .venv, so it goes when .venv goes. Its first line is this folder, because
# the scripts in .venv/bin name it: in a folder that was moved or copied they would be wrong.
stamp=$(
  echo "$PWD"
  cat requirements.lock pyproject.toml scripts/install.sh | cksum
)

has=$(version_of .venv/bin/python) || has=none
wanted=$has
if [ -n "${PYTHON:-}" ] || [ "$has" = none ]; then
  python=$(find_python)
  wanted=$(version_of "$python")
fi
installed=$(cat .venv/installed 2>/dev/null) || installed=$PWD # a .venv made by hand is kept
if [ "$has" != "$wanted" ]; then
  make_venv "$python"
elif [ "${installed%%$'\n'*}" != "$PWD" ]; then
  make_venv "$(find_python)"
elif [ "$installed" = "$stamp" ]; then
  exit 0
fi

rm -f .venv/installed
echo "Installing $(grep -c '^[^ ]' requirements.lock) packages into .venv (the first time this takes some minutes)."
install_uv
.venv/bin/uv pip sync --quiet --python .venv/bin/python --require-hashes requirements.lock
.venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable .
echo "$stamp" >.venv/installed
