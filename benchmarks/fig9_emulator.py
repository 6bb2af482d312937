"""Figure 9's customers, market and invariants, for any database; standard library only.

An emulator draws transactions in TPC-E's mix. Each Trade-Order is answered by a Trade-Result of the
market, and each ten results send their prices as a Market-Feed, which gives the two TPC-E's share.
Broker-Volume and Trade-Update (7 % of TPC-E) are left out. Money is in cents.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

ACCOUNTS: Final = 5
"""Accounts of a customer."""
HELD: Final = 4
"""Securities that an account holds at the beginning."""
OPENING_CASH: Final = 10_000_000
OPENING_HOLDING: Final = 100
OPENING_PRICE: Final = 2_500
COMMISSION: Final = 199
CUSTOMERS_OF_A_BROKER: Final = 100
FEED: Final = 10
RECENT: Final = 20
"""Trades that Trade-Lookup and Trade-Status show at most."""

MIX: Final = {
    "trade_order": 10.1,
    "trade_lookup": 8.0,
    "trade_status": 19.0,
    "customer_position": 13.0,
    "market_watch": 18.0,
    "security_detail": 14.0,
}
"""Shares of what customers begin, as in TPC-E."""

_LAST: Final = 10**19
_LOOKED_UP: Final = 100


@dataclass(frozen=True, slots=True)
class Size:
    """How many customers there are, and what follows from it."""

    customers: int

    @property
    def accounts(self) -> int:
        """Number of accounts."""
        return self.customers * ACCOUNTS

    @property
    def securities(self) -> int:
        """Number of securities: 685 for a thousand customers, as in TPC-E."""
        return max(HELD, self.customers * 685 // 1000)

    @property
    def brokers(self) -> int:
        """Number of brokers."""
        return -(-self.customers // CUSTOMERS_OF_A_BROKER)

    def held(self, account: int) -> list[int]:
        """The securities that an account holds at the beginning."""
        return [(account * 7 + one) % self.securities for one in range(HELD)]


def broker_of(account: int) -> int:
    """The broker who services an account."""
    return account // ACCOUNTS // CUSTOMERS_OF_A_BROKER


class Brokerage(Protocol):
    """The transactions, in some database. `conflicts` counts attempts that had to be repeated."""

    conflicts: int

    def trade_order(self, trade: str, account: int, security: int, quantity: int) -> None:
        """Submit an order; it sells if the quantity is negative."""

    def trade_result(self, trade: str) -> tuple[int, int]:
        """Complete a submitted trade; its security and price."""

    def market_feed(self, ticks: Sequence[tuple[int, int]]) -> None:
        """Record new prices: (security, price)."""

    def trade_lookup(self, security: int) -> Sequence[Sequence[Any]]:
        """The recent trades of a security, the newest first; second is the price, if completed."""

    def trade_status(self, account: int) -> Sequence[Sequence[Any]]:
        """The recent trades of an account, likewise."""

    def customer_position(self, customer: int) -> Sequence[Sequence[Any]]:
        """The accounts of a customer; last are the cash and the value of the holdings of each."""

    def market_watch(self, account: int) -> Any:
        """The value of the securities that an account holds."""

    def security_detail(self, security: int) -> Sequence[Any]:
        """The name of a security and its price."""


@dataclass
class Emulator:
    """Customers and market of one client process."""

    brokerage: Brokerage
    size: Size
    client: int
    seed: int = 0
    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self._rng = random.Random(f"{self.seed}-{self.client}")
        self._submitted: deque[str] = deque()
        self._ticks: list[tuple[int, int]] = []

    def step(self) -> None:
        """Run one transaction of a customer, and what the market owes for the last ones."""
        rng, size, does = self._rng, self.size, self.brokerage
        if len(self._ticks) >= FEED:
            ticks, self._ticks = self._ticks, []
            self._time("market_feed", does.market_feed, ticks)
        elif len(self._submitted) > 2:
            self.complete()
        (kind,) = rng.choices(list(MIX), list(MIX.values()))
        account, security = rng.randrange(size.accounts), rng.randrange(size.securities)
        if kind == "trade_order":
            # The newest trade has the least name, so a scan meets it first.
            trade = f"{_LAST - time.time_ns():020d}-{self.client:03d}"
            held = rng.choice(size.held(account))
            quantity = rng.randint(1, 20) * rng.choice((-1, 1))
            self._time(kind, does.trade_order, trade, account, held, quantity)
            self._submitted.append(trade)
        elif kind == "customer_position":
            self._time(kind, does.customer_position, account // ACCOUNTS)
        elif kind in ("trade_status", "market_watch"):
            self._time(kind, getattr(does, kind), account)
        else:
            self._time(kind, getattr(does, kind), security)

    def complete(self) -> None:
        """Complete the oldest submitted trade."""
        security, price = self._time(
            "trade_result", self.brokerage.trade_result, self._submitted.popleft()
        )
        self._ticks.append((security, max(100, price + self._rng.randint(-5, 5))))

    def _time(self, kind: str, function: Any, *arguments: Any) -> Any:
        began = time.perf_counter()
        found = function(*arguments)
        self.times[kind].append((time.perf_counter() - began) * 1000)
        return found

    def serve(self) -> None:
        """Say that it is ready, run for so many seconds, print the times.

        Standard input says the seconds, and after them those to warm up for. `warm` tells how many
        of each kind's times are from then: the first ones. Conflicts of then do not count.
        """
        print("ready", flush=True)
        seconds, warm = map(float, [*sys.stdin.readline().split(), "0"][:2])
        until = time.monotonic() + warm
        while time.monotonic() < until:
            self.step()
        first = {kind: len(times) for kind, times in self.times.items()}
        before = self.brokerage.conflicts
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            self.step()
        told = {"began": began, "ended": time.monotonic(), "times": self.times, "warm": first}
        print(json.dumps({**told, "conflicts": self.brokerage.conflicts - before}), flush=True)


# --- Invariants -----------------------------------------------------------------------------


class InvariantError(Exception):
    """The brokerage's tables contradict each other, or what the clients were told."""


@dataclass
class Facts:
    """All that a brokerage has stored, however it stores it.

    Attributes:
        trades: (account, security, quantity, price, is completed) of each.
        history: (trade, status), for each change of status.
        changes: (account, security, trade, quantity); opening holdings have the trade "".
        brokers: commission and number of trades of each.
        prices: the last price of each security.
        ticks: how many prices Market-Feeds have recorded, by the volumes of all securities.
        by_account, by_security: the secondary indexes, (key, trade); None: the database's own.
    """

    trades: dict[str, tuple[int, int, int, int, bool]]
    history: set[tuple[str, str]]
    balances: dict[int, int]
    cash: dict[str, int]
    holdings: dict[tuple[int, int], int]
    changes: list[tuple[int, int, str, int]]
    brokers: dict[int, tuple[int, int]]
    prices: dict[int, int]
    ticks: int = 0
    by_account: set[tuple[int, str]] | None = None
    by_security: set[tuple[int, str]] | None = None


def check(facts: Facts, size: Size, orders: int, results: int, feeds: int | None = None) -> None:
    """Raise InvariantError unless the facts agree, and hold as many trades as clients were told.

    `feeds` are the Market-Feeds that they were told of; None if some of them are not known.
    """
    done = {trade: one for trade, one in facts.trades.items() if one[4]}
    _same("trades", len(facts.trades), orders)
    _same("completed trades", len(done), results)
    if feeds is not None:
        _same("volumes of securities", facts.ticks, FEED * feeds)
    submitted = {(trade, "SBMT") for trade in facts.trades}
    _same("trade history", facts.history, submitted | {(trade, "CMPT") for trade in done})
    _same("cash", facts.cash, {t: -q * p - COMMISSION for t, (_, _, q, p, _) in done.items()})
    balances = Counter(dict.fromkeys(range(size.accounts), OPENING_CASH))
    brokers = dict.fromkeys(range(size.brokers), (0, 0))
    changes = []
    for trade, (account, security, quantity, price, _) in done.items():
        balances[account] -= quantity * price + COMMISSION
        commission, count = brokers[broker_of(account)]
        brokers[broker_of(account)] = (commission + COMMISSION, count + 1)
        changes.append((account, security, trade, quantity))
    for account in range(size.accounts):
        changes += [(account, one, "", OPENING_HOLDING) for one in size.held(account)]
    _same("balances", facts.balances, dict(balances))
    _same("holding history", sorted(facts.changes), sorted(changes))
    sums: Counter[tuple[int, int]] = Counter()
    for account, security, _, quantity in facts.changes:
        sums[account, security] += quantity
    _same("holdings", facts.holdings, dict(sums))
    _same("commissions", facts.brokers, brokers)
    for place, index in ((0, facts.by_account), (1, facts.by_security)):
        if index is not None:
            name = ("trades by account", "trades by security")[place]
            _same(name, index, {(one[place], trade) for trade, one in facts.trades.items()})


def check_reads(brokerage: Brokerage, facts: Facts, size: Size) -> None:
    """Raise InvariantError unless transactions that only read find what there is.

    One that finds nothing would be the fastest of all, and change no invariant.
    """
    of_account: dict[int, list[int | None]] = defaultdict(list)
    of_security: dict[int, list[int | None]] = defaultdict(list)
    for _, (account, security, _, price, is_completed) in sorted(facts.trades.items()):
        for trades in (of_account[account], of_security[security]):
            trades.append(price if is_completed else None)
    worth: Counter[int] = Counter()
    for (account, security), quantity in facts.holdings.items():
        worth[account] += quantity * facts.prices[security]
    for account in range(0, size.accounts, max(1, size.accounts // _LOOKED_UP)):
        _recent("Trade-Status", brokerage.trade_status(account), of_account[account])
        _same("values in a Market-Watch", brokerage.market_watch(account), worth[account])
        customer = account // ACCOUNTS
        found = brokerage.customer_position(customer)
        _same("accounts in a Customer-Position", len(found), ACCOUNTS)
        own = range(customer * ACCOUNTS, (customer + 1) * ACCOUNTS)
        positions = sorted((facts.balances[one], worth[one]) for one in own)
        told = sorted((one[-2], one[-1]) for one in found)
        _same("cash and values in a Customer-Position", told, positions)
    for security in range(0, size.securities, max(1, size.securities // _LOOKED_UP)):
        _recent("Trade-Lookup", brokerage.trade_lookup(security), of_security[security])
        detail = tuple(brokerage.security_detail(security))
        wanted = (f"Security {security}", facts.prices[security])
        _same("names and prices in a Security-Detail", detail, wanted)


def _recent(what: str, found: Sequence[Sequence[Any]], prices: Sequence[int | None]) -> None:
    _same(f"trades in a {what}", len(found), min(RECENT, len(prices)))
    _same(f"prices in a {what}", [one[1] for one in found], list(prices[:RECENT]))


def _same(what: str, found: Any, wanted: Any) -> None:
    if found != wanted:
        shown = "" if not isinstance(found, int) else f": {found:,} and not {wanted:,}"
        raise InvariantError(f"The {what} are not what the completed trades make of them{shown}.")
