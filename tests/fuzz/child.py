"""One target under the fuzzer, in this process: `python -m tests.fuzz.child TARGET …`."""

from __future__ import annotations

import sys

import atheris

# Only what is ours is watched, and only if it is imported from here on.
with atheris.instrument_imports(include=["percola", "webindex"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    target = TARGETS[sys.argv[1]]
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
