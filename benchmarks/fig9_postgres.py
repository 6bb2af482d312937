"""Figure 9's brokerage on PostgreSQL: the same transactions as plain statements.

A Trade-Result updates the broker in the same transaction, as TPC-E says; there is no side table.
What only reads is one statement, which is a transaction by itself: a BEGIN and a COMMIT around it
would be two more messages each. It runs in an environment of its own, with psycopg.

    python benchmarks/fig9_postgres.py DSN COMMIT ISOLATION CUSTOMERS load
    python benchmarks/fig9_postgres.py DSN COMMIT ISOLATION CUSTOMERS check ORDERS RESULTS FEEDS
    python benchmarks/fig9_postgres.py DSN COMMIT ISOLATION CUSTOMERS CLIENT
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# This needs nothing but the standard library.
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
    check,
    check_reads,
)

psycopg: Any = importlib.import_module("psycopg")

_TABLES: Final = """
drop table if exists accounts, brokers, securities, last_trades, trades, trade_history, holdings,
    holding_history, cash;
create table accounts (account int primary key, balance bigint not null);
create table brokers (broker int primary key, commission bigint not null, trades int not null);
create table securities (security int primary key, name text not null);
create table last_trades (security int primary key, price bigint not null, volume int not null);
create table trades (trade text primary key, account int not null, security int not null,
    quantity int not null, price bigint);
create table trade_history (trade text, status text, primary key (trade, status));
create table holdings (account int, security int, quantity int not null,
    primary key (account, security));
create table holding_history (account int, security int, trade text, change int not null,
    primary key (account, security, trade));
create table cash (trade text primary key, paid bigint not null);
create index on trades (account, trade);
create index on trades (security, trade);
"""
_RECENT: Final = "select trade, price, quantity from trades where {} = %s order by trade limit %s"
_VALUE: Final = (
    "select coalesce(sum(quantity * price), 0) from holdings join last_trades using (security) "
    "where account = %s"
)


class PostgresBrokerage:
    """The transactions of one client."""

    def __init__(self, connection: Any) -> None:
        self.conflicts = 0
        self._connection = connection
        self._cursor = connection.cursor()

    def _run(self, function: Callable[[], Any]) -> Any:
        def transaction() -> Any:
            with self._connection.transaction():
                return function()

        return self._again(transaction)

    def _again(self, attempt: Callable[[], Any]) -> Any:
        while True:
            try:
                return attempt()
            except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
                self.conflicts += 1

    def _do(self, statement: str, *values: object) -> Any:
        return self._cursor.execute(statement, values, prepare=True)

    def trade_order(self, trade: str, account: int, security: int, quantity: int) -> None:
        """Submit an order."""

        def submit() -> None:
            self._do("select balance from accounts where account = %s", account).fetchone()
            self._do("select price from last_trades where security = %s", security).fetchone()
            self._do(
                "insert into trades values (%s, %s, %s, %s)", trade, account, security, quantity
            )
            self._do("insert into trade_history values (%s, 'SBMT')", trade)

        self._run(submit)

    def trade_result(self, trade: str) -> tuple[int, int]:
        """Complete a trade; its security and price."""

        def complete() -> tuple[int, int]:
            account, security, quantity, price = self._do(
                "select account, security, quantity, l.price from trades "
                "join last_trades l using (security) where trade = %s",
                trade,
            ).fetchone()
            amount = -quantity * price - COMMISSION
            self._do("update trades set price = %s where trade = %s", price, trade)
            self._do("insert into trade_history values (%s, 'CMPT')", trade)
            self._do(
                "insert into holdings values (%s, %s, %s) on conflict (account, security) "
                "do update set quantity = holdings.quantity + excluded.quantity",
                account,
                security,
                quantity,
            )
            self._do(
                "insert into holding_history values (%s, %s, %s, %s)",
                account,
                security,
                trade,
                quantity,
            )
            self._do("insert into cash values (%s, %s)", trade, amount)
            self._do(
                "update accounts set balance = balance + %s where account = %s", amount, account
            )
            self._do(
                "update brokers set commission = commission + %s, trades = trades + 1 "
                "where broker = %s",
                COMMISSION,
                broker_of(account),
            )
            return security, price

        found: tuple[int, int] = self._run(complete)
        return found

    def market_feed(self, ticks: Sequence[tuple[int, int]]) -> None:
        """Record new prices."""

        def feed() -> None:
            for security, price in ticks:
                self._do(
                    "update last_trades set price = %s, volume = volume + 1 where security = %s",
                    price,
                    security,
                )

        self._run(feed)

    def _all(self, statement: str, *values: object) -> list[Any]:
        found: list[Any] = self._again(lambda: self._do(statement, *values).fetchall())
        return found

    def trade_lookup(self, security: int) -> list[Any]:
        """The recent trades of a security."""
        return self._all(_RECENT.format("security"), security, RECENT)

    def trade_status(self, account: int) -> list[Any]:
        """The recent trades of an account."""
        return self._all(_RECENT.format("account"), account, RECENT)

    def customer_position(self, customer: int) -> list[Any]:
        """Cash and value of each account of a customer."""
        first = customer * ACCOUNTS
        return self._all(
            "select account, balance, sum(quantity * price) from accounts "
            "left join holdings using (account) left join last_trades using (security) "
            "where account between %s and %s group by account",
            first,
            first + ACCOUNTS - 1,
        )

    def market_watch(self, account: int) -> Any:
        """The value of what an account holds."""
        return self._all(_VALUE, account)[0][0]

    def security_detail(self, security: int) -> tuple[str, int]:
        """The name of a security and its price, out of all that is stored about it."""
        ((_, name, price, _),) = self._all(
            "select * from securities join last_trades using (security) where security = %s",
            security,
        )
        return name, price


def load(cursor: Any, size: Size) -> None:
    """The brokerage before the first trade."""
    cursor.execute(_TABLES)
    held = [(one, security) for one in range(size.accounts) for security in size.held(one)]
    for table, rows in (
        ("accounts", [(one, OPENING_CASH) for one in range(size.accounts)]),
        ("brokers", [(one, 0, 0) for one in range(size.brokers)]),
        ("securities", [(one, f"Security {one}") for one in range(size.securities)]),
        ("last_trades", [(one, OPENING_PRICE, 0) for one in range(size.securities)]),
        ("holdings", [(*one, OPENING_HOLDING) for one in held]),
        ("holding_history", [(*one, "", OPENING_HOLDING) for one in held]),
    ):
        with cursor.copy(f"copy {table} from stdin") as copy:
            for row in rows:
                copy.write_row(row)
    cursor.execute("analyze")
    cursor.execute("checkpoint")


def facts(cursor: Any) -> Facts:
    """All that is stored. The indexes on trades are the server's."""

    def rows(table: str) -> Any:
        return cursor.execute(f"select * from {table}").fetchall()

    return Facts(
        {t: (a, s, q, p or 0, p is not None) for t, a, s, q, p in rows("trades")},
        set(rows("trade_history")),
        dict(rows("accounts")),
        dict(rows("cash")),
        {(account, security): quantity for account, security, quantity in rows("holdings")},
        rows("holding_history"),
        {broker: (cents, count) for broker, cents, count in rows("brokers")},
        {security: price for security, price, _ in rows("last_trades")},
        sum(volume for _, _, volume in rows("last_trades")),
    )


def main(arguments: Sequence[str]) -> None:
    """Do what the command line says."""
    dsn, commit, isolation, customers, what, *rest = arguments
    size = Size(int(customers))
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.cursor()
        if what == "load":
            load(cursor, size)
        elif what == "check":
            found = facts(cursor)
            check(found, size, *map(int, rest))
            check_reads(PostgresBrokerage(connection), found, size)
        else:
            cursor.execute(f"set synchronous_commit = {commit}")
            # Also of single statements, which psycopg does not begin.
            level = isolation.lower().replace("_", " ")
            cursor.execute(f"set default_transaction_isolation = '{level}'")
            Emulator(PostgresBrokerage(connection), size, int(what)).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
