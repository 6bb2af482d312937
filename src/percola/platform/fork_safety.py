"""Libraries that do not survive a fork, so that what is built on them says so instead of trying.

A child has the state of such a library and none of the threads that look after it. Whatever it
calls there may end the process or wait for ever. With gRPC and an idle connection that happened to
two children in a hundred, with all connections closed before the fork to one in four hundred;
gRPC's own support for forks does not change that. A JVM always waits for ever.

A process that has used one and forks may go on; its children may not use it, nor may theirs.
"""

from __future__ import annotations

import os
from typing import Final

from percola.errors import StoreError


class Unforkable:
    """A library that does not survive a fork, and the process in which it is used.

    Args:
        described: what it is called in the error of a child.
    """

    def __init__(self, described: str) -> None:
        self._described = described
        self._used_in = 0

    @property
    def is_used(self) -> bool:
        """Whether this process has used it."""
        return self._used_in == os.getpid()

    @property
    def is_barred(self) -> bool:
        """Whether this process was forked from one that had used it."""
        return bool(self._used_in) and not self.is_used

    def refuse_child(self, what: str) -> None:
        """StoreError in a child of a process that has used it; `what` is what was in use there.

        To be called before a lock is taken for it.
        """
        if self.is_barred:
            raise StoreError(
                f"{what} was in use in this process's parent before it forked, and "
                f"{self._described} does not survive a fork. Start processes with 'spawn' or "
                "'forkserver', or open the repository first in the child."
            )

    def begin_use(self, what: str) -> None:
        """To be called before anything of it is made; raises what `refuse_child` does."""
        self.refuse_child(what)
        self._used_in = os.getpid()


GRPC: Final = Unforkable("gRPC, by which it is reached,")

JAVA: Final = Unforkable("Java")
