"""What a type checker tells the authors of programs, and what `Transaction` offers them."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
from commands import answer_of

from percola import Transaction

ROOT = Path(__file__).resolve().parents[2]

DECLARED = """
from decimal import Decimal
import percola
from percola import JSON, Repository, Row, Table, Transaction, decimal_of

users = Table("users")
age = users.column("age", int)
name = users.column("name", str)
price = users.column("price", decimal_of(5, 2))
score = users.family("score", float)
extra = users.column("extra", JSON)
poke = users.weak_column("poke")
days = Table("days", rows=bytes)
note = days.column("note")

"""


def complaints(tmp_path: Path, program: str) -> list[str]:
    """What mypy says of a function's lines: "the line's text: the message"."""
    text = DECLARED + textwrap.dedent(program).strip() + "\n"
    file = tmp_path / "program.py"
    file.write_text(text)
    options = f"--config-file {ROOT}/pyproject.toml --cache-dir {tmp_path}/cache --no-pretty"
    mypy = [sys.executable, "-m", "mypy", *options.split(), "--hide-error-codes", file.name]
    done = answer_of(mypy, cwd=tmp_path, seconds=300)
    assert done.err == ""
    lines = text.splitlines()
    found = []
    for said in done.out.splitlines()[:-1]:
        _, line, _, message = said.split(":", 3)
        found.append(f"{lines[int(line) - 1].strip()}: {message.strip()}")
    return found


def test_mypy_names_the_wrong_argument_of_a_write_and_the_columns_type(tmp_path: Path) -> None:
    program = """
        def write(t: Transaction) -> None:
            t.set(age, "ann", "x")
            t.set(age, 5, 5)
            t.set(name, "ann", t.get(name, "bob"))
            t.set(price, "ann", 1.5)
            t.set(score["a"], "ann", "1")
            t.set(note, "ann", b"text")
            t.set(age, "ann")
            t.set(poke, "ann", 1)
            t.get_many([(age, "ann"), (name, 5)])
    """
    *said, too_few, weak, many = complaints(tmp_path, program)
    wrong = 'error: Argument {} to "set" of "Transaction" has incompatible type "{}"; expected "{}"'
    assert said == [
        f't.set(age, "ann", "x"): {wrong.format(3, "str", "int")}',
        f"t.set(age, 5, 5): {wrong.format(2, 'int', 'str')}",
        f't.set(name, "ann", t.get(name, "bob")): {wrong.format(3, "str | None", "str")}',
        f't.set(price, "ann", 1.5): {wrong.format(3, "float", "Decimal")}',
        f't.set(score["a"], "ann", "1"): {wrong.format(3, "str", "float")}',
        f't.set(note, "ann", b"text"): {wrong.format(2, "str", "bytes")}',
    ]
    assert 'Missing positional argument "value"' in too_few
    assert 'Argument 1 to "set" of "Transaction" has incompatible type "WeakColumn[str]"' in weak
    assert "list[tuple[object, object]]" in many


def test_mypy_accepts_right_calls(tmp_path: Path) -> None:
    program = """
        @percola.transactional
        def write(t: Transaction, row: Row[str]) -> int:
            t.set(age, "ann", t.get(age, "ann") or 0)
            t.set(age, "ann", row[age])
            t.set(age, row.key, value=row.get(age, 0))
            t.set(price, "ann", Decimal(4))
            t.set(score["a"], "ann", 1)
            t.set(extra, "ann", {"any": ["thing"]})
            t.set(note, b"ann", b"text")
            some: list[int | None] = t.get_many([(age, "ann"), (age, "bob")])
            older, named = t.get_many([(age, "ann"), (name, "ann")])
            known = bool(t.get(age, "ann")) or bool(t.get_for_update(age, "ann"))
            said = [str(t.get(price, "ann")), str(row.get(age)), repr(row[age]), known]
            anything: dict[str, object] = {"age": t.get(age, "ann"), "of": row.get(age, "none")}
            total: float = t.get(age, "ann") or 0.5
            return 5

        def call(repo: Repository, t: Transaction, row: Row[str]) -> int:
            return write(repo, row) + write(t, row)
    """
    assert complaints(tmp_path, program) == []


@pytest.mark.long
def test_mypy_knows_what_recipes_have_in_common(tmp_path: Path) -> None:
    """As docs/recipes.md puts them together; `recipe` was an object."""
    program = """
        from percola.recipes import MAX, Distinct, Export, Index, Sums, Tree, check

        recipes = [
            Sums("spent", users, {"price": float}),
            Distinct("buyers", users),
            Tree("oldest", users, monoid=MAX),
            Index("by_name", users),
        ]
        listed = Export("listed")
        schema = [users, *(table for recipe in recipes for table in recipe.tables)]
        observers = [one for recipe in recipes for one in recipe.observers]

        def look(repo: Repository) -> list[str]:
            return check(repo, [*recipes, listed])
    """
    assert complaints(tmp_path, program) == []


def test_mypy_knows_arguments_and_result_of_a_transactional_function(tmp_path: Path) -> None:
    program = """
        @percola.transactional
        def add(t: Transaction, row: str, amount: int) -> int:
            return amount

        def call(repo: Repository) -> None:
            add(repo, "ann", "5")
            add(repo.snapshot(), "ann", 5)
            text: str = add(repo, "ann", 5)
    """
    value, first, result = complaints(tmp_path, program)
    assert value.endswith('Argument 3 to "add" has incompatible type "str"; expected "int"')
    assert first.endswith(
        'Argument 1 to "add" has incompatible type "Snapshot"; expected "Repository | Transaction"'
    )
    assert "int" in result
    assert "str" in result


def test_a_transaction_offers_programs_nothing_that_only_observers_need() -> None:
    offered = {name for name in dir(Transaction) if not name.startswith("_")}
    assert offered == {
        *("get", "get_many", "get_row", "get_rows", "scan", "version", "get_for_update"),
        *("set", "delete", "notify", "on_conflict", "commit", "rollback", "close"),
        *("start_ts", "commit_ts", "unfinished"),
    }
