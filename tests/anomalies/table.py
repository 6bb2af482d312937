"""Run every anomaly on every store, and write the outcomes into `docs/anomalies.md`.

python -m tests.anomalies.table          writes the table
python -m tests.anomalies.table --print  prints it

The rest of the page is written by hand; the table is between two markers.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
if str(ROOT / "tests" / "support") not in sys.path:  # Where the scripts find `stores`.
    sys.path.insert(0, str(ROOT / "tests" / "support"))

from stores import Ground  # noqa: E402

from tests.anomalies.verdicts import Play, Script, Verdict  # noqa: E402

PAGE: Final = ROOT / "docs" / "anomalies.md"
BEGIN: Final = "<!-- made by python -m tests.anomalies.table: begin -->"
END: Final = "<!-- end -->"
GROUNDS: Final = [(kind, one_step) for kind in ("memory", "lmdb") for one_step in (True, False)]
HEADS: Final = [
    "Anomaly",
    "What it is",
    *(
        f"{'LMDB' if kind == 'lmdb' else kind}, {'one step' if one_step else 'two phases'}"
        for kind, one_step in GROUNDS
    ),
    "How to close it",
    "Script",
]

# From the weakest isolation that forbids it to the strongest.
ORDER: Final = (
    "G0", "G1a", "G1b", "G1c", "OTV", "PMP", "PMP, write", "P4", "P3", "G-single",
    "G-single, condition", "G-single, write", "Long fork", "G2-item", "G2", "Fekete",
)  # fmt: skip


def scripts() -> Iterator[tuple[ModuleType, Script]]:
    """Every script of this folder with its module, in the order of the table."""
    found = []
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        if path.stem == "test_table":
            continue
        module = importlib.import_module(f"tests.anomalies.{path.stem}")
        found += [(module, script) for script in getattr(module, "SCRIPTS", ())]
    codes = [script.code for _, script in found]
    assert sorted(codes) == sorted(ORDER), f"ORDER lists other scripts than there are: {codes}"
    yield from sorted(found, key=lambda entry: ORDER.index(entry[1].code))


def verdicts(module: ModuleType, play: Play) -> list[Verdict]:
    """The outcomes of a script on each ground, in the order of GROUNDS."""
    shown = []
    for kind, one_step in GROUNDS:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            ground = Ground(kind, one_step, Path(folder) / "ground", stack)
            shown.append(play(ground.repo(module.TABLES)))
    return shown


def table() -> str:
    """The table, in Markdown."""
    lines = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    for module, script in scripts():
        shown = [verdict.value for verdict in verdicts(module, script.play)]
        shown = [f"**{value}**" if value == Verdict.HAPPENED.value else value for value in shown]
        closing = script.closing
        if script.closed is not None:
            after = sorted({verdict.value for verdict in verdicts(module, script.closed)})
            closing += f": {' or '.join(after)}"
        file = f"`{Path(str(module.__file__)).name}`"
        name = f"{script.name} ({script.code})" if script.name != script.code else script.name
        lines.append(f"| {' | '.join([name, script.what, *shown, closing, file])} |")
    return "\n".join(lines)


def in_page(text: str) -> str:
    """The table in the page; AssertionError if its markers are missing."""
    assert BEGIN in text and END in text, f"{PAGE} has no markers for the table: {BEGIN} … {END}"
    return text.partition(BEGIN)[2].partition(END)[0].strip()


def main(arguments: list[str]) -> None:
    """Write the table into the page, or print it."""
    made = table()
    if "--print" in arguments:
        print(made)
        return
    text = PAGE.read_text(encoding="utf-8")
    in_page(text)
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {len(list(scripts()))} anomalies on {len(GROUNDS)} grounds")


if __name__ == "__main__":
    main(sys.argv[1:])
