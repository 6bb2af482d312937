"""Transfers between accounts: whoever reads them all sees the same total."""

from __future__ import annotations

from typing import ClassVar

from percola import Repository, Table
from percola.testing.histories.recorder import RecordedTransaction
from percola.testing.simulation import Client, Sizes, Workload

accounts = Table("accounts")
balance = accounts.column("bal", int)

FIRST = 100_000_000


class Bank(Workload):
    """Clients move money and count it."""

    name = "bank"
    tables = (accounts,)
    sizes: ClassVar[Sizes] = {"accounts": (2, 6)}

    def names(self) -> list[str]:
        return ["Ann", "Bob", "Cid", "Dot", "Eve", "Fay"][: self.size("accounts")]

    def set_up(self, client: Client) -> None:
        def pay_in(t: RecordedTransaction) -> None:
            for name in self.names():
                t.set(balance, name, FIRST)

        client.transact(pay_in)

    def turn(self, client: Client, number: int) -> None:
        if client.rng.random() < 0.3:
            self.count(client)
        else:
            self.transfer(client)

    def transfer(self, client: Client) -> None:
        payer, payee = client.rng.sample(self.names(), 2)
        # So many that balances tell writers apart, which the check of a history needs.
        amount = client.rng.randint(1, 10_000_000)

        def move(t: RecordedTransaction) -> None:
            t.set(balance, payer, (t.get(balance, payer) or 0) - amount)
            t.set(balance, payee, (t.get(balance, payee) or 0) + amount)

        client.transact(move)

    def count(self, client: Client) -> None:
        scans = client.rng.random() < 0.5

        def read(t: RecordedTransaction) -> list[int]:
            if scans:
                return [row[balance] for row in t.scan(accounts, columns=[balance])]
            return [value or 0 for value in t.get_many([(balance, one) for one in self.names()])]

        attempt = client.transact(read)
        if attempt:
            self.check_total(
                attempt.value, f"{client.process.name}, reading at {attempt.start_ts},"
            )

    def at_rest(self, repo: Repository) -> None:
        found = [row[balance] for row in repo.snapshot().scan(accounts)]
        self.check_total(found, "A reader at rest")

    def check_total(self, found: list[int], who: str) -> None:
        expected = FIRST * len(self.names())
        if sum(found) != expected:
            self.violate(
                f"{who} saw the balances {found}: {sum(found)} in all, and not {expected}.",
                *((balance, name) for name in self.names()),
            )
