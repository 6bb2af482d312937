"""§2.5: the store's readers of single columns, which all snapshots of one process share.

A child of a fork gets a new, empty dictionary, and the one that its parent's snapshots refer to is
cleared. So an inherited snapshot finds no reader, and then checks why: refusing snapshots that
began before a fork costs the other reads nothing.
"""

from __future__ import annotations

from percola.platform import fork_safety as forks
from percola.store.base import Reader


class Readers:
    """The readers of one repository object.

    Attributes:
        by_column: created as needed, by table and column; each process has its own.
    """

    def __init__(self) -> None:
        self.by_column: dict[tuple[str, bytes], Reader] = {}
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        self.by_column.clear()
        self.by_column = {}
