"""Features of users, which follow the events of a shop.

- events: one row an event, with its user, kind, product and cents
- spent: how many events a user has, how many of them are purchases, and for how much
- looked_at: the different products that a user has looked at
- last: the time of a user's last event
- hourly: how many events a user has in each hour; those of a window are added up when it is read
"""

from __future__ import annotations

from percola import Table, Transaction, observer
from percola.recipes import MAX, Distinct, Sums, Tree

events = Table("events")
user = events.column("user", str)
kind = events.column("kind", str, observed=True)  # written or deleted with each event
product = events.column("product", str)
cents = events.column("cents", int)
at = events.column("at", str)

spent = Sums("spent", events, {"purchases": int, "cents": int})
looked_at = Distinct("looked_at", events)
last = Tree("last", events, MAX)
hourly = Sums("hourly", events)  # USER/HOUR, as in ann/2026-11-02T09


def hour_of(who: str, when: str) -> str:
    """The group in `hourly` of a user's event at this time."""
    return f"{who}/{when[:13]}"


@observer(kind)
def follow(t: Transaction, event: str) -> None:
    """Let an event contribute to the features of its user; a deleted one takes it back."""
    row = t.get_row(events, event)
    what, who, which, when = row.get(kind), row.get(user), row.get(product), row.get(at)
    bought, looked, is_there = what == "buy", what == "look", what is not None
    purchase = {"purchases": int(bought), "cents": (row.get(cents) or 0) if bought else 0}
    spent.contribute(t, event, {who: purchase} if is_there and who else {})
    looked_at.contribute(t, event, {who: [which]} if looked and who and which else {})
    last.contribute(t, event, {who: when} if is_there and who else {})
    hourly.contribute(t, event, {hour_of(who, when): {}} if is_there and who and when else {})


RECIPES = [spent, looked_at, last, hourly]
SCHEMA = [events, *(table for recipe in RECIPES for table in recipe.tables)]
OBSERVERS = [follow, *(one for recipe in RECIPES for one in recipe.observers)]
