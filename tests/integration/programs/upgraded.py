"""The application of the upgrade test, which this release and the one before it both run.

python upgraded.py ADDRESS load WHO FIRST LAST     write words, a transaction each
python upgraded.py ADDRESS lengths                 print the answers as JSON
"""

from __future__ import annotations

import json
import sys

import percola
from percola import Table, Transaction, observer

words = Table("words")
word = words.column("word", str, observed=True)
length = words.column("length", int, observed=True)
totals = Table("totals")
rows_of = totals.column("rows", int)


@observer(word)
def measure(t: Transaction, row: str) -> None:
    """How long the word is."""
    t.set(length, row, len(t.get(word, row) or ""))


@observer(length)
def tally(t: Transaction, row: str) -> None:
    """How many rows have a word of this length; each is measured once."""
    key = str(t.get(length, row))
    t.set(rows_of, key, (t.get(rows_of, key) or 0) + 1)


observers = [measure, tally]


def main(address: str, what: str, *arguments: str) -> None:
    """Run one of the commands above."""
    with percola.open(address, [words, totals]) as repo:
        if what == "load":
            who, first, last = arguments
            for number in range(int(first), int(last)):
                text = "x" * (number % 5 + 1)
                repo.run(lambda t, n=number, text=text: t.set(word, f"{who}-{n:04}", text))
            return
        with repo.snapshot() as now:
            lengths = {row.key: row[length] for row in now.scan(words, columns=[length])}
            counts = {row.key: row[rows_of] for row in now.scan(totals)}
        print(json.dumps([lengths, counts]))


if __name__ == "__main__":
    main(*sys.argv[1:])
