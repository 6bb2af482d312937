"""§2.4 `rerun` and silent writes on Bigtable, where notify entries stand in another table."""

from __future__ import annotations

from emulator import Emulator, repository
from stores import put_all

from percola import Table, Transaction, Worker, observer, rerun
from percola.maintenance.check import Severity, check

pages = Table("pages")
body = pages.column("body", str, observed=True)
size = pages.column("size", int)


@observer(body)
def measure(t: Transaction, row: str) -> None:
    t.set(size, row, len(t.get(body, row) or ""))


@observer(body, name="measure")
def changed(t: Transaction, row: str) -> None:
    t.set(size, row, -len(t.get(body, row) or ""))


def test_a_changed_observer_runs_again_over_silent_and_loud_rows(emulator: Emulator) -> None:
    repo = repository(emulator.store(), [pages])
    put_all(repo, body, {f"loud {number:02}": "x" for number in range(40)})
    put_all(repo, body, {f"silent {number:02}": "x" for number in range(40)}, notify=False)
    assert repo.pending() == {"pages.body": 40}
    Worker(repo, [measure]).run_until_idle()
    assert repo.snapshot().get(size, "silent 07") is None
    assert rerun(repo, changed, prefixes=["loud 0", "silent"]).rows == 50
    Worker(repo, [changed]).run_until_idle()
    with repo.snapshot() as s:
        sizes = {row.key: row[size] for row in s.scan(pages, columns=[size])}
    assert sizes == {
        **{f"loud {n:02}": 1 if n >= 10 else -1 for n in range(40)},
        **{f"silent {n:02}": -1 for n in range(40)},
    }
    assert [str(one) for one in check(repo) if one.severity is not Severity.NOTE] == []
