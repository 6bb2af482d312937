"""Rows of several columns and a family, read one by one: what came ahead is what a read finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from percola import Observer, Repository, Table, Transaction, observer
from percola.testing.histories.recorder import RecordedTransaction
from percola.testing.simulation import Client, Sizes, Workload

people = Table("people")
cash = people.column("cash", int)
bank = people.column("bank", int)
debt = people.column("debt", int)
purse = people.family("purse", int)
check = people.weak_column("check")
sheets = Table("sheets")
worth = sheets.column("worth", int)

COLUMNS: Final = (cash, bank, debt)
PURSES: Final = (purse["coins"], purse["notes"])
ALL: Final = (*COLUMNS, *PURSES)
FIRST: Final = 100


class ReadingAhead(Workload):
    """Clients move money between people and between what each has, and count all of it; an
    observer balances the sheets of those whose money moved, several in one transaction. Nobody
    asks for two columns, or the purses of two, in one call: what comes together came ahead."""

    name = "reading-ahead"
    tables = (people, sheets)
    sizes: ClassVar[Sizes] = {"people": (2, 5), "turns": (4, 10), "batch": (1, 5)}
    prefetches = True

    def names(self) -> list[str]:
        return ["Ann", "Bob", "Cid", "Dot", "Eve"][: self.size("people")]

    def observers(self) -> Sequence[Observer[Any]]:
        @observer(check, batch=self.size("batch"))
        def balance(t: Transaction, name: str) -> None:
            found = sum(self.had(t, name).values())
            if t.get(worth, name) != found:
                t.set(worth, name, found)

        return [balance]

    def set_up(self, client: Client) -> None:
        def pay_in(t: RecordedTransaction) -> None:
            for name in self.names():
                for column in COLUMNS:
                    t.set(column, name, FIRST)
                # The purses are empty: their cells come and go.
                t.notify(check, name)

        client.transact(pay_in)

    def had(self, t: Transaction | RecordedTransaction, name: str) -> dict[Any, int]:
        """What a person has, by the column that it is in."""
        found = {column: t.get(column, name) or 0 for column in COLUMNS}
        coins = t.get_row(people, name, [purse]).family(purse)
        return found | {purse[kind]: amount for kind, amount in coins.items()}

    def turn(self, client: Client, number: int) -> None:
        if client.rng.random() < 0.4:
            self.count(client)
        else:
            self.move(client)

    def move(self, client: Client) -> None:
        rng = client.rng
        payer, payee = rng.sample(self.names(), 2)
        given, taken = rng.choice(ALL), rng.choice(ALL)
        amount = rng.randint(1, 10)
        expects = rng.random() < 0.5

        def pay(t: RecordedTransaction) -> None:
            if expects:
                t.expect((payer.encode(), payee.encode()))
            had, got = self.had(t, payer), self.had(t, payee)
            for column, name, after in (
                (given, payer, had.get(given, 0) - amount),
                (taken, payee, got.get(taken, 0) + amount),
            ):
                if after or column in COLUMNS:
                    t.set(column, name, after)
                else:
                    t.delete(column, name)
            t.notify(check, payer)
            t.notify(check, payee)

        client.transact(pay)

    def count(self, client: Client) -> None:
        expects = client.rng.random() < 0.5

        def read(t: RecordedTransaction) -> list[int]:
            if expects:
                t.expect([name.encode() for name in self.names()])
            return [amount for name in self.names() for amount in self.had(t, name).values()]

        attempt = client.transact(read)
        if attempt:
            self.check_total(
                attempt.value, f"{client.process.name}, reading at {attempt.start_ts},"
            )

    def at_rest(self, repo: Repository) -> None:
        now = repo.snapshot()
        self.check_total(
            [now.get(column, name) or 0 for name in self.names() for column in ALL],
            "A reader at rest",
        )
        for name in self.names():
            has = sum(now.get(column, name) or 0 for column in ALL)
            if now.get(worth, name) != has:
                self.violate(
                    f"{name} has {has}, and the sheet says {now.get(worth, name)}.",
                    (worth, name),
                    *((column, name) for column in ALL),
                )

    def check_total(self, found: list[int], who: str) -> None:
        expected = FIRST * len(COLUMNS) * len(self.names())
        if sum(found) != expected:
            self.violate(
                f"{who} saw {found}: {sum(found)} in all, and not {expected}.",
                *((column, name) for name in self.names() for column in ALL),
            )
