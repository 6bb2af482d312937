"""Figure 9's brokerage on Percola: the schema, the transactions, and the brokers' observer.

Secondary indexes are tables that transactions write themselves. Updating the broker in each
Trade-Result would conflict all the time (§3.3). So each client process adds to its own row of a
side table, which no other client writes, and notifies the broker; an observer adds these rows up.
Its runs for one broker all write that broker, so two that overlap conflict.

    python -m benchmarks.fig9_brokerage REPOSITORY DURABILITY worker
    python -m benchmarks.fig9_brokerage REPOSITORY DURABILITY CUSTOMERS CLIENT

DURABILITY is empty where it is the store's own.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import percola
from benchmarks.fig9_emulator import (
    ACCOUNTS,
    COMMISSION,
    OPENING_CASH,
    OPENING_HOLDING,
    OPENING_PRICE,
    RECENT,
    Emulator,
    Facts,
    Size,
    broker_of,
)
from percola import JSON, Repository, Table, Transaction, Worker, WorkerOptions, observer

T = TypeVar("T")

accounts = Table("accounts")
balance = accounts.column("balance", int)
brokers = Table("brokers")
commission = brokers.column("commission", JSON)  # [cents, trades]
due = brokers.weak_column("due")
earned = Table("earned")  # row: broker/client
amount = earned.column("amount", JSON)  # [cents, trades], which only grow
securities = Table("securities")
name = securities.column("name", str)
last_trades = Table("last_trades")
price = last_trades.column("price", int)
volume = last_trades.column("volume", int)
trades = Table("trades")
order = trades.column("order", JSON)  # [account, security, quantity]
done = trades.column("done", int)  # the price, once completed
trade_history = Table("trade_history")  # row: trade/status
happened = trade_history.column("happened", bytes)
by_account = Table("by_account")  # row: account/trade
of_account = by_account.column("trade", bytes)
by_security = Table("by_security")  # row: security/trade
of_security = by_security.column("trade", bytes)
holdings = Table("holdings")  # row: account/security
quantity = holdings.column("quantity", int)
holding_history = Table("holding_history")  # row: account/security/trade
change = holding_history.column("change", int)
cash = Table("cash")
paid = cash.column("paid", int)
SCHEMA: Final = [
    *(accounts, brokers, earned, securities, last_trades, trades, trade_history),
    *(by_account, by_security, holdings, holding_history, cash),
]

_LOADED: Final = 200


def key(number: int) -> str:
    """The row of an account, a security or a broker."""
    return f"{number:08d}"


@observer(due, name="commissions", rate=10.0)
def add_up(t: Transaction, broker: str) -> None:
    """Add up what the clients' trade results have earned a broker."""
    rows = [row[amount] for row in t.scan(earned, prefix=f"{broker}/")]
    t.set(commission, broker, [sum(cents for cents, _ in rows), sum(count for _, count in rows)])


class PercolaBrokerage:
    """The transactions of one client, whose number no other running client has."""

    def __init__(self, repo: Repository, client: int) -> None:
        self.conflicts = 0
        self._repo = repo
        self._client = client

    def _run(self, function: Callable[[Transaction], T]) -> T:
        attempts = itertools.count()

        def attempt(t: Transaction) -> T:
            if next(attempts):
                self.conflicts += 1
            return function(t)

        return self._repo.run(attempt)

    def trade_order(self, trade: str, account: int, security: int, shares: int) -> None:
        """Submit an order."""

        def submit(t: Transaction) -> None:
            has, at = t.get_many([(balance, key(account)), (price, key(security))])
            if has is None or at is None:
                raise LookupError(f"There is no account {account} or no security {security}.")
            t.set(order, trade, [account, security, shares])
            t.set(happened, f"{trade}/SBMT", b"")
            t.set(of_account, f"{key(account)}/{trade}", b"")
            t.set(of_security, f"{key(security)}/{trade}", b"")

        self._run(submit)

    def trade_result(self, trade: str) -> tuple[int, int]:
        """Complete a trade; its security and price."""
        return self._run(lambda t: self.complete(t, trade))

    def complete(self, t: Transaction, trade: str) -> tuple[int, int]:
        """Write all that follows from a completed trade."""
        account, security, shares = t.get(order, trade) or [0, 0, 0]
        owner, held, broker = key(account), f"{key(account)}/{key(security)}", broker_of(account)
        side = f"{key(broker)}/{self._client:03d}"
        at, before = t.get_many([(price, key(security)), (quantity, held)])
        funds, mine = t.get(balance, owner), t.get(amount, side) or [0, 0]
        assert at is not None and funds is not None
        t.set(done, trade, at)
        t.set(happened, f"{trade}/CMPT", b"")
        t.set(quantity, held, (before or 0) + shares)
        t.set(change, f"{held}/{trade}", shares)
        t.set(paid, trade, -shares * at - COMMISSION)
        t.set(balance, owner, funds - shares * at - COMMISSION)
        t.set(amount, side, [mine[0] + COMMISSION, mine[1] + 1])
        t.notify(due, key(broker))
        return security, at

    def market_feed(self, ticks: Sequence[tuple[int, int]]) -> None:
        """Record new prices."""

        def feed(t: Transaction) -> None:
            for security, at in ticks:
                t.set(price, key(security), at)
                t.set(volume, key(security), (t.get(volume, key(security)) or 0) + 1)

        self._run(feed)

    def trade_lookup(self, security: int) -> list[tuple[Any, Any]]:
        """The recent trades of a security."""
        return self._recent(by_security, security)

    def trade_status(self, account: int) -> list[tuple[Any, Any]]:
        """The recent trades of an account."""
        return self._recent(by_account, account)

    def _recent(self, index: Table[str], number: int) -> list[tuple[Any, Any]]:
        with self._repo.snapshot() as now:
            rows = itertools.islice(now.scan(index, prefix=f"{key(number)}/"), RECENT)
            found = [row.key.partition("/")[2] for row in rows]
            orders = now.get_many((order, trade) for trade in found)
            prices = now.get_many((done, trade) for trade in found)
            return list(zip(orders, prices, strict=True))

    def customer_position(self, customer: int) -> list[tuple[Any, int]]:
        """Cash and value of each account of a customer."""
        own = range(customer * ACCOUNTS, (customer + 1) * ACCOUNTS)
        with self._repo.snapshot() as now:
            funds = now.get_many((balance, key(one)) for one in own)
            return list(zip(funds, (self._value(now, one) for one in own), strict=True))

    def market_watch(self, account: int) -> int:
        """The value of what an account holds."""
        with self._repo.snapshot() as now:
            return self._value(now, account)

    def _value(self, now: percola.Snapshot, account: int) -> int:
        rows = [
            (row.key[9:], row[quantity]) for row in now.scan(holdings, prefix=f"{key(account)}/")
        ]
        prices = now.get_many((price, security) for security, _ in rows)
        return sum(many * (at or 0) for (_, many), at in zip(rows, prices, strict=True))

    def security_detail(self, security: int) -> tuple[str, int]:
        """The name of a security and its price, out of all that is stored about it."""
        with self._repo.snapshot() as now:
            row = now.get_row(securities, key(security))
            last = now.get_row(last_trades, key(security))
            assert row is not None and last is not None
            return row[name], last[price]


def load(repo: Repository, size: Size) -> None:
    """The brokerage before the first trade."""
    with repo.transaction() as t:
        for broker in range(size.brokers):
            t.set(commission, key(broker), [0, 0])
    for begin in range(0, size.securities, _LOADED):
        with repo.transaction() as t:
            for one in range(begin, min(begin + _LOADED, size.securities)):
                t.set(name, key(one), f"Security {one}")
                t.set(price, key(one), OPENING_PRICE)
    for begin in range(0, size.accounts, _LOADED):
        with repo.transaction() as t:
            for one in range(begin, min(begin + _LOADED, size.accounts)):
                t.set(balance, key(one), OPENING_CASH)
                for security in size.held(one):
                    held = f"{key(one)}/{key(security)}"
                    t.set(quantity, held, OPENING_HOLDING)
                    t.set(change, f"{held}/", OPENING_HOLDING)


def facts(repo: Repository) -> Facts:
    """All that is stored, in one snapshot."""

    def pair(row: str) -> tuple[int, str]:
        number, _, trade = row.partition("/")
        return int(number), trade

    with repo.snapshot() as now:
        found = Facts({}, set(), {}, {}, {}, [], {}, {})
        for row in now.scan(trades):
            account, security, shares = row[order]
            at = row.get(done)
            found.trades[row.key] = (account, security, shares, at or 0, at is not None)
        for row in now.scan(trade_history):
            trade, _, status = row.key.partition("/")
            found.history.add((trade, status))
        for row in now.scan(last_trades):
            found.prices[int(row.key)] = row[price]
            found.ticks += row.get(volume) or 0
        found.balances = {int(row.key): row[balance] for row in now.scan(accounts)}
        found.cash = {row.key: row[paid] for row in now.scan(cash)}
        for row in now.scan(holdings):
            account, security = map(int, row.key.split("/"))
            found.holdings[account, security] = row[quantity]
        for row in now.scan(holding_history):
            one, two, trade = row.key.split("/")
            found.changes.append((int(one), int(two), trade, row[change]))
        for row in now.scan(brokers):
            cents, count = row[commission]
            found.brokers[int(row.key)] = (cents, count)
        found.by_account = {pair(row.key) for row in now.scan(by_account)}
        found.by_security = {pair(row.key) for row in now.scan(by_security)}
    return found


def main(arguments: Sequence[str]) -> None:
    """Run a client or a worker."""
    address, durability, *rest = arguments
    with percola.open(address, SCHEMA, durability=durability or None) as repo:
        if rest == ["worker"]:
            worker = Worker(repo, [add_up], WorkerOptions(threads=1))
            with worker.ending_with_input():
                print("ready", flush=True)
                worker.run()
        else:
            customers, client = map(int, rest)
            Emulator(PercolaBrokerage(repo, client), Size(customers), client).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
