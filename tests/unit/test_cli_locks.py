"""`locks`: which cells are locked, by which transactions, and whether their owners live."""

from __future__ import annotations

from pathlib import Path

from commands import call, is_error, run
from stores import Program

import percola
from percola import Table


def test_locks_shows_transactions_their_cells_and_whether_the_owner_lives(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    table = Table("bank")
    table.column("bal", int, observed=True)
    percola.open(folder, schema=[table]).close()
    assert run("--repo", folder, "locks").out == "No cell is locked.\n"
    assert run("--repo", folder, "locks", "--json").json == {"locks": []}
    with Program("crashing_writer.py", folder, 3) as program:
        program.expect("stopped")
        answer = run("--repo", folder, "locks")
        lines = answer.out.splitlines()
        assert "which is alive" in lines[0] and "Nothing is wrong" not in answer.out
        assert lines[1:] == ["  bank['a'].bal  (primary)", "  bank['b'].bal", "  bank['c'].bal"]
        # A job of Spark may hold a million.
        few = call("--repo", folder, "locks", "--limit", 2).out.splitlines()
        assert few[1:] == [*lines[1:3], "  … and 1 more (--limit 0 shows all)"]
        assert call("--repo", folder, "locks", "--limit", 0).out.splitlines()[1:] == lines[1:]
        two = call("--repo", folder, "locks", "--limit", 2, "--json").json["locks"]
        assert [one["row"] for one in two] == ["a", "b"]
        program.kill()
    answer = run("--repo", folder, "locks")
    assert "which has ended" in answer.out and "whoever reads or writes" in answer.out
    found = run("--repo", folder, "locks", "--json").json["locks"]
    assert [(one["row"], one["is_primary"], one["owner_alive"]) for one in found] == [
        ("a", True, False),
        ("b", False, False),
        ("c", False, False),
    ]
    assert all(one["primary"]["row"] == "a" and one["age_seconds"] >= 0 for one in found)
    assert "3, 3 of them of ended processes" in run("--repo", folder, "status").out
    # Whoever reads the primary undoes it there; the other locks then name a decided primary.
    assert is_error(run("--repo", folder, "get", "a", "bal"), "no value")
    out = run("--repo", folder, "locks").out
    assert "its primary, bank['a'].bal, is decided already" in out
    for row in ("b", "c"):
        run("--repo", folder, "get", row, "bal")
    assert run("--repo", folder, "locks").out == "No cell is locked.\n"
