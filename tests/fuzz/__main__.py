"""Runs the coverage-guided fuzzer: `python -m tests.fuzz --seconds 60 [TARGET …]`.

Each target in a process of its own, one after another, for so many seconds each. What it finds
interesting is kept in a corpus folder, from which the next run goes on; what makes a target fail is
saved beside it and shown. A failure becomes a test in `test_found.py`, in as few bytes as will do.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
# How much longer than asked a run may take: its corpus is read before the clock starts.
_GRACE = 300
_STATUS = re.compile(r"#(\d+)\s+\S+.*?\bcov: (\d+) ft: (\d+) corp: (\d+)")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "build" / "fuzz",
        help="where corpora and what failed are kept (build/fuzz)",
    )
    given = parser.parse_args()
    unknown = sorted(set(given.targets) - set(TARGETS))
    if unknown:
        parser.error(f"there is no target {unknown[0]!r}; there are: {', '.join(TARGETS)}")
    if importlib.util.find_spec("atheris") is None:
        parser.error("the fuzzer, atheris, is not installed: it has no wheel for this system")
    failed = []
    lines = []
    for name in given.targets or TARGETS:
        line, sound = fuzz(name, given.seconds, given.folder)
        print(line, flush=True)
        lines.append(line)
        if not sound:
            failed.append(name)
    which = f": {', '.join(failed)}" if failed else "."
    print(f"\nfuzz: {len(lines)} targets, {len(failed)} failed{which}")
    return 1 if failed else 0


def fuzz(name: str, seconds: int, folder: Path) -> tuple[str, bool]:
    """Fuzz one target: a line of the summary, and whether it held."""
    corpus, failures = folder / name / "corpus", folder / name / "failures"
    for one in (corpus, failures):
        one.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(TARGETS[name].seeds()):
        (corpus / f"seed-{number:03}").write_bytes(seed)
    known = set(failures.iterdir())
    command = [
        sys.executable,
        "-m",
        "tests.fuzz.child",
        name,
        f"-max_total_time={seconds}",
        f"-max_len={TARGETS[name].max_bytes}",
        f"-artifact_prefix={failures}/",
        "-timeout=30",
        "-rss_limit_mb=2048",
        str(corpus),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=seconds + _GRACE,
        check=False,
    )
    output = done.stdout.decode("utf-8", "replace")
    statuses = _STATUS.findall(output)
    if not statuses:
        return f"{name:8} did not run:\n{output[-3000:]}", False
    executions, coverage, features, size = statuses[-1]
    line = (
        f"{name:8} {int(executions):>9,} executions  {int(coverage):>5,} branches  "
        f"{int(features):>6,} features  {int(size):>5,} inputs in the corpus"
    )
    new = sorted(set(failures.iterdir()) - known)
    if done.returncode == 0 and not new:
        return line, True
    story = re.split(r"\n(?=#\d+)", output)[-1]
    shown = [f"{one}: {one.read_bytes()[:300]!r}" for one in new]
    return "\n".join([line, f"{name} FAILED", story.strip()[-4000:], *shown]), False


if __name__ == "__main__":
    sys.exit(main())
