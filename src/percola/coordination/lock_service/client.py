"""§2.4 "a lightweight lock service", client side: advisory locks and wake-ups between processes.

Every process of `percola oracle` serves a share of the rows.

    sessions    one with each of these processes, a connection that a thread reads. While it is
                open, wake-ups come on it, and the process keeps its locks
    try_lock    first among the threads of this process, then a request a row to the process that
                serves it; those to one process are sent together and answered together. No answer
                counts as taken by this process
    keep_lock   the request once more: the process that serves it may have been restarted
    unlock      a message a row, which is not answered
    idle        a message to each process that does not know it yet, which is not answered
    wake        calls the callbacks of this process at once; a thread notifies one process of the
                service, with one call at a time. Who listens has a session with each of them

A hash of the row and an address says how much a process is preferred for it, so that clients agree
without talking to each other, and if one process is lost, its rows go to all others. Clients that
disagree for a moment, as while a process starts, may both lock a row, which costs one of them a
conflict.

Everything continues without the service: rows are then locked against the threads of this process
only, and wake-ups of other processes do not arrive; scanning makes up for both. A process that did
not answer is not called again for a second, so that its loss does not slow scanning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from percola.coordination.lock_service.base import LockService
from percola.coordination.lock_service.link import Link, Locking, Waker
from percola.coordination.wake_ups import Place, wake_up_of
from percola.errors import UsageError
from percola.rpc.client import Access, Connection, split_address

LOCK_SECONDS: Final = 0.3


class _Turn(NamedTuple):
    """A lock as it was taken: from a process of the service, or in this process alone."""

    link: Link | None
    key: bytes
    number: int


class LockServiceClient(LockService):
    """Advisory locks and wake-ups of a repository, served beside its oracles.

    Connects when it is first used; a child after a fork opens its own connections.

    Args:
        addresses: `host:port` of each of the repository's oracle processes, in any order, but
            written alike by all clients.
        access: the oracles' token and TLS.
        lock_seconds: for how long `try_lock` waits for the service.

    Raises UsageError for options that cannot work.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        access: Access | None = None,
        lock_seconds: float = LOCK_SECONDS,
    ) -> None:
        if not addresses or isinstance(addresses, str):
            raise UsageError("Name the address of at least one oracle, in a list.")
        for address in addresses:
            split_address(address)
        if not lock_seconds > 0:
            raise UsageError("The seconds to wait for an advisory lock must be above 0.")
        self.addresses = tuple(addresses)
        self.lock_seconds = lock_seconds
        self.access = access or Access()
        self.context = self.access.context()
        self._opened: list[Link | Waker] = []
        super().__init__()

    def _start_afresh(self) -> None:
        super()._start_afresh()
        self._turns: dict[tuple[str, bytes], _Turn] = {}
        for inherited in self._opened:
            inherited.leave_to_parent()
        # Two connections to one process would be two sessions, which exclude each other.
        self._links = [self._link_to(one) for one in dict.fromkeys(self.addresses)]
        self._preferred: dict[int, list[Link]] = {}
        self._waker = Waker(self._links, self._connect)
        self._opened = [*self._links, self._waker]

    @property
    def sessions(self) -> frozenset[str]:
        """The addresses of the processes with which this one has a session now."""
        return frozenset(link.address for link in self._links if link.session is not None)

    def _link_to(self, address: str) -> Link:
        return Link(address, self._connect, self.lock_seconds, self._run_callbacks)

    def _connect(self, address: str, seconds: float) -> Connection:
        return Connection(address, self.access, self.context, seconds)

    def try_lock_many(self, rows: Sequence[tuple[str, bytes]]) -> list[bool]:
        free = super().try_lock_many(rows)
        mine = [row for row, is_free in zip(rows, free, strict=True) if is_free]
        taken: dict[tuple[str, bytes], _Turn] = {}
        try:
            turns = self._take([_key(*row) for row in mine])
            taken = {row: turn for row, turn in zip(mine, turns, strict=True) if turn}
        finally:
            self._turns |= taken
            super().unlock_many(row for row in mine if row not in taken)
        return [is_free and row in taken for row, is_free in zip(rows, free, strict=True)]

    def _take(self, keys: Sequence[bytes]) -> list[_Turn | None]:
        """The turn in which each lock was taken; None where another process has it."""
        turns: list[_Turn] = []
        requests: dict[Link, Locking] = {}
        for key in keys:
            link = self._link_of(key)
            if link is None:
                turns.append(_Turn(None, key, 0))
                continue
            request = requests.get(link)
            if request is None:
                request = requests[link] = Locking(link)
            turns.append(_Turn(link, key, request.add(key)))
        try:
            # All are sent before one is waited for.
            for request in requests.values():
                request.send()
            for request in requests.values():
                request.wait()
        except BaseException:
            # An interrupt: any of these processes may have granted locks.
            for request in requests.values():
                request.give_up()
            raise
        return [
            turn if turn.link is None or requests[turn.link].is_taken(turn.number) else None
            for turn in turns
        ]

    def _link_of(self, key: bytes) -> Link | None:
        """The process to ask for a lock; None if none is there."""
        slot = key[0]
        preferred = self._preferred.get(slot)
        if preferred is None:
            preferred = sorted(self._links, key=lambda link: _preference(slot, link.address))
            self._preferred[slot] = preferred
        return next((link for link in preferred if link.is_usable()), None)

    def unlock_many(self, rows: Iterable[tuple[str, bytes]]) -> None:
        rows = list(rows)
        turns: dict[Link, list[_Turn]] = {}
        for row in rows:
            turn = self._turns.pop(row, None)
            if turn is not None and turn.link is not None:
                turns.setdefault(turn.link, []).append(turn)
        super().unlock_many(rows)
        for link, given in turns.items():
            link.unlock([(turn.key, turn.number) for turn in given])

    def keep_lock(self, table: str, row: bytes) -> bool:
        held = self._turns.get((table, row))
        if held is None:
            return False
        # The service grants a session the lock that it has.
        [turn] = self._take([held.key])
        if turn is None:
            self.unlock(table, row)
            return False
        self._turns[table, row] = turn
        if held.link is not None and held.link is not turn.link:
            held.link.unlock([(held.key, held.number)])
        return True

    def wake(self, places: Iterable[Place] | None = None) -> None:
        wake_up = wake_up_of(places)
        self._run_callbacks(wake_up)
        self._waker.wake(wake_up)

    def on_wake(self, callback: Callable[[bytes], float | None]) -> Callable[[], None]:
        forget = super().on_wake(callback)
        for link in self._links:
            link.open_session()

        def stop() -> None:
            forget()
            if not self._callbacks:
                # Else the service would tell this process, and no other, of some rows.
                self.idle(b"")

        return stop

    def idle(self, pool: bytes) -> None:
        """This process has nothing to do; see `Coordination.idle`."""
        for link in self._links:
            link.idle(pool)

    def close(self) -> None:
        super().close()
        self._waker.finish()
        # All connections first, so that no thread is waited for longer than the others.
        for one in self._opened:
            one.end()
        for one in self._opened:
            one.join()


def _key(table: str, row: bytes) -> bytes:
    # Two rows of one hash share a lock, which is harmless: the locks are advisory.
    return hashlib.blake2b(table.encode() + b"\0" + row, digest_size=16).digest()


def _preference(slot: int, address: str) -> bytes:
    """The process with the lowest one serves the rows of a slot, the first byte of their keys."""
    return hashlib.blake2b(b"%d %s" % (slot, address.encode()), digest_size=8).digest()
