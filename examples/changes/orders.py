"""Orders, in a table that keeps a feed of its changes."""

from __future__ import annotations

from percola import Table

orders = Table("orders", feed=True)
customer = orders.column("customer", str)
cents = orders.column("cents", int)

followers = Table("followers")
position = followers.column("position", int)
"""How far a follower is that has no place of its own to store it: `publish.py`."""
first = followers.column("first", int)
"""The timestamp at which it began to read the rows that were there."""

there = Table("there")
lsn = there.column("lsn", int)
"""Of an order that another database has: where in its log the last change of it is: `apply.py`."""

SCHEMA = [orders, followers, there]
