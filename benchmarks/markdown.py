"""Tables as Markdown, aligned so that they can be read as they stand."""

from __future__ import annotations

from collections.abc import Sequence


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; its first column is text, the others are numbers, aligned to the right.

    A row may be shorter than the columns. Raises ValueError for one that is longer.
    """
    lines = [list(columns), *(list(row) for row in rows)]
    for line in lines:
        if len(line) > len(columns):
            raise ValueError(f"A row of {len(line)} cells in a table of {len(columns)}: {line}")
        line += [""] * (len(columns) - len(line))
        line[:] = [one.replace("|", "\\|") for one in line]
    widths = [max(3, *(len(line[at]) for line in lines)) for at in range(len(columns))]
    ruler = [
        ("-" * width if not at else "-" * (width - 1) + ":") for at, width in enumerate(widths)
    ]
    shown = [
        [
            cell.ljust(width) if not at else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in [shown[0], ruler, *shown[1:]])
