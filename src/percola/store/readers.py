"""§2.5: the store's readers of single columns, which all snapshots of one process share.

A child of a fork has another, empty dictionary, and the one that its parent's snapshots refer to is
emptied. So a snapshot that was inherited finds no reader, and looks why: it costs a read nothing
that what began before a fork is refused after it.
"""

from __future__ import annotations

from percola.platform import fork_safety as forks
from percola.store.base import Reader


class Readers:
    """The readers of one repository object.

    Attributes:
        by_column: made as they are needed, by table and column; another one in each process.
    """

    def __init__(self) -> None:
        self.by_column: dict[tuple[str, bytes], Reader] = {}
        forks.at_fork(self._start_afresh)

    def _start_afresh(self) -> None:
        self.by_column.clear()
        self.by_column = {}
