"""The table in docs/anomalies.md says what the scripts show here and now."""

from __future__ import annotations

from typing import Any

import pytest

from percola.transactions.transaction import Transaction
from tests.anomalies import table
from tests.anomalies.verdicts import Verdict


def test_the_table_in_the_docs_is_what_the_scripts_show() -> None:
    shown, written = table.table(), table.in_page(table.PAGE.read_text(encoding="utf-8"))
    assert written == shown, "run python -m tests.anomalies.table, and look at what has changed"


def test_what_is_possible_is_closed_by_what_the_table_says() -> None:
    for module, script in table.scripts():
        shown = set(table.verdicts(module, script.play))
        assert len(shown) == 1, f"{script.name} differs between the stores: {shown}"
        assert (Verdict.HAPPENED in shown) == (script.closed is not None), script.name
        if script.closed is not None:
            assert set(table.verdicts(module, script.closed)) == {Verdict.CONFLICT}, script.name


# --- The scripts see what happens where it is not prevented -----------------------------

_read, _scan, _set = Transaction._read, Transaction._scan, Transaction.set
_commit = Transaction.commit


def newest(transaction: Transaction) -> None:
    """Move a transaction to now, as if it had begun this moment."""
    transaction.start_ts = transaction._context.oracle.read_timestamp()


def commit_over_anything(self: Transaction) -> int:
    newest(self)
    return _commit(self)


def read_the_newest(self: Transaction, cells: Any) -> Any:
    newest(self)
    return _read(self, cells)


def get_the_newest(self: Transaction, column: Any, row: Any) -> Any:
    return self.get_many([(column, row)])[0]


def scan_the_newest(self: Transaction, *arguments: Any) -> Any:
    newest(self)
    return _scan(self, *arguments)


def set_at_once(self: Transaction, column: Any, row: Any, value: Any) -> None:
    hasty = Transaction(self._context, two_phase=self._two_phase)
    _set(hasty, column, row, value)
    _commit(hasty)


READ_COMMITTED = {
    "_read": read_the_newest,
    "get": get_the_newest,
    "_scan": scan_the_newest,
    "commit": commit_over_anything,
}
WITHOUT: dict[str, tuple[dict[str, Any], set[str]]] = {
    "conflicts": ({"commit": commit_over_anything}, {"P4", "G-single, write"}),
    "snapshots": (
        READ_COMMITTED,
        {"OTV", "PMP", "PMP, write", "P3", "P4", "G-single", "G-single, condition", "Long fork"},
    ),
    "transactions": (
        {**READ_COMMITTED, "set": set_at_once},
        {"G0", "G1a", "G1b", "G1c", "PMP", "G-single"},
    ),
}


@pytest.mark.parametrize("what", WITHOUT)
def test_the_scripts_see_what_happens_without(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced, expected = WITHOUT[what]
    for name, function in replaced.items():
        monkeypatch.setattr(Transaction, name, function)
    happened = {
        script.code
        for module, script in table.scripts()
        if script.code in expected and Verdict.HAPPENED in table.verdicts(module, script.play)
    }
    assert happened == expected


def test_every_anomaly_that_is_prevented_was_seen_where_it_is_not() -> None:
    seen = set().union(*(expected for _, expected in WITHOUT.values()))
    assert seen == {script.code for _, script in table.scripts() if script.closed is None}
