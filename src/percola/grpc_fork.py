"""gRPC does not survive a fork, so what is built on it says so instead of trying.

A child has the state of gRPC's core and none of the threads that look after it. Whatever it calls
there may end the process or wait for ever: with an idle connection that happened to two children
in a hundred, with all connections closed before the fork to one in four hundred. gRPC's own
support for forks does not change that.

A process that has used gRPC and forks may go on; its children may not use it, nor may theirs.
"""

from __future__ import annotations

import os

from percola.errors import StoreError

_used_in = 0


def is_barred() -> bool:
    """Whether this process was forked from one that had used gRPC."""
    return bool(_used_in) and _used_in != os.getpid()


def begin_use(what: str) -> None:
    """To be called before anything of gRPC is made, and before a lock is taken for it.

    Raises StoreError in a child of a process that has called it; `what` is what was in use there.
    """
    global _used_in
    if is_barred():
        raise StoreError(
            f"{what} was in use in this process's parent before it forked, and gRPC, by which it "
            "is reached, does not survive a fork. Start processes with 'spawn' or 'forkserver', "
            "or open the repository first in the child."
        )
    _used_in = os.getpid()
