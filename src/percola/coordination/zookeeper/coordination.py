"""§2.2, §2.4: coordination between machines, with ZooKeeper in the role of Chubby.

    liveness tokens      ephemeral nodes of one session a process; see `session`
    active reads (P12)   ROOT/held/TS-PID-…: ephemeral, of processes that have read at TS for a
                         while; its data is the name of the machine
    row locks, wake-ups  served beside the oracle (`percola.coordination.lock_service`): in
                         ZooKeeper every one of them would be a write on most servers

`is_alive` caches an answer for a second. While ZooKeeper does not answer, a process that is not
known to be dead counts as alive (rule P8): locks of dead processes are then resolved when their
time to live has passed.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from percola.coordination.base import Coordination
from percola.coordination.lock_service.base import LockService
from percola.coordination.wake_ups import Place
from percola.coordination.zookeeper.connection import Settings
from percola.coordination.zookeeper.session import TURN_SECONDS, Session, getting
from percola.errors import RepositoryError, UsageError
from percola.platform import fork_safety as forks
from percola.rpc.client import is_host

SESSION_SECONDS: Final = 10.0
REQUEST_SECONDS: Final = 2.0
TIMEOUT_SECONDS: Final = 10.0

_CACHE_SECONDS: Final = 1.0
_CACHED: Final = 4096
_HOST: Final = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[^:/\s,\[\]]+):([0-9]{1,5})")


class ZooKeeperCoordination(Coordination):
    """Coordination through an ensemble of ZooKeeper servers. Safe to use from many threads.

    Connects when it is first needed, also in a child after a fork.

    Args:
        hosts: `host:port` of the ensemble's servers.
        root: the node under which all nodes of the repository are, `/percola/NAME`; it is created
            if it is missing, and is the same for all processes of a repository.
        lock_service: advisory locks and wake-ups; closed with this. Without it they are limited
            to this process.
        session_seconds: after how long without a heartbeat ZooKeeper treats a process as dead.
            Must be within what its servers allow, by default 2 to 20 of their ticks.
        request_seconds: how long a single request may take.
        timeout_seconds: for how long to wait for the first connection, and for a new token in
            place of one that was lost, before it is an error.
        auth: (scheme, credential), such as ("digest", "user:password"): nodes are then accessible
            only with the same credential.

    `token` raises StoreError while no token is known to be alive: nothing can be committed then.
    `processes`, `oldest_held` and `announce_observers` raise it while ZooKeeper cannot be reached.
    Raises UsageError for arguments that cannot work.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        root: str,
        *,
        lock_service: LockService | None = None,
        session_seconds: float = SESSION_SECONDS,
        request_seconds: float = REQUEST_SECONDS,
        timeout_seconds: float = TIMEOUT_SECONDS,
        auth: tuple[str, str] | None = None,
    ) -> None:
        if not hosts or isinstance(hosts, str):
            raise UsageError("Name at least one of ZooKeeper's servers, in a list.")
        for host in hosts:
            found = _HOST.fullmatch(host)
            if (
                found is None
                or not 0 < int(found[1]) < 2**16
                or not is_host(host.rpartition(":")[0])
            ):
                raise UsageError(f"The address of a ZooKeeper server is HOST:PORT, not {host!r}.")
        names = root.split("/")[1:]
        if not root.startswith("/") or any(name in ("", ".", "..") for name in names):
            raise UsageError(
                f"The root of a repository in ZooKeeper is a path such as /percola/NAME, not "
                f"{root!r}."
            )
        if not min(session_seconds, request_seconds, timeout_seconds) > 0:
            raise UsageError("The seconds to wait for ZooKeeper must be above 0.")
        if auth is not None and auth[0] == "digest" and not all(auth[1].partition(":")):
            raise UsageError(
                "A credential of ZooKeeper's scheme 'digest' is USER:PASSWORD, in one line. What "
                "was given, as by the file that PERCOLA_ZOOKEEPER_LOGIN_FILE names, has no colon "
                "between a name and a password: ZooKeeper would take it for the name, which others "
                "can see."
            )
        self._settings = Settings(
            tuple(hosts), root, session_seconds, request_seconds, timeout_seconds, auth
        )
        self._lock_service = lock_service or LockService()
        self._closed = False
        self._start_afresh()
        forks.at_fork(self._leave_parent)

    def _start_afresh(self) -> None:
        self._held = Held(self._settings)
        self._session = Session(self._settings, self._held.publish)
        self._known: dict[str, tuple[bool, float]] = {}

    # --- Liveness -------------------------------------------------------------------------

    @property
    def token(self) -> str:
        return self._session.good_token or self._session.token()

    def is_alive(self, token: str) -> bool:
        if not token or self._session.is_own(token):
            return True
        known = self._known.get(token)
        if known is not None and time.monotonic() < known[1]:
            return known[0]
        answer = self._query_alive(token)
        if len(self._known) >= _CACHED:
            self._known = {}
        self._known[token] = (answer, time.monotonic() + _CACHE_SECONDS)
        return answer

    def _query_alive(self, token: str) -> bool:
        # A token names one node; any other text in a lock is not a token of ours.
        if "/" in token or "\0" in token or token in (".", ".."):
            return False
        try:
            if not self._session.await_connection(self._settings.request_seconds):
                return True
            return self._session.connection.is_there(self._settings.path("live", token))
        except RepositoryError:
            return True

    def processes(self) -> list[dict[str, object]]:
        self._session.connected()
        return self._session.processes()

    def announce_observers(self, observers: dict[str, list[str]]) -> None:
        self._session.announce(observers)

    # --- Active reads (P12) ---------------------------------------------------------------

    def hold_back(self, ts: int) -> None:
        # Called for nearly every transaction, so it only records the timestamp.
        self._held.note(ts)
        with contextlib.suppress(RepositoryError, RuntimeError):
            self._session.start(connect=False)

    def oldest_held(self) -> int | None:
        connection = self._session.connected()
        stamps = [_stamp(name) for name in connection.children(self._settings.path("held"))]
        return min([ts for ts in (*stamps, self._held.ts) if ts], default=None)

    def readers(self, ts: int) -> list[str]:
        connection, held = self._session.connected(), self._settings.path("held")
        names = [one for one in connection.children(held) if _stamp(one) == ts and "-" in one]
        calls = [getting(f"{held}/{name}") for name in names]
        return [
            _reader(name, answer[0])
            for name, answer in zip(names, connection.ask_each(calls), strict=True)
            if answer is not None
        ]

    # --- Advisory row locks, wake-ups -----------------------------------------------------

    def try_lock(self, table: str, row: bytes) -> bool:
        return self._lock_service.try_lock(table, row)

    def unlock(self, table: str, row: bytes) -> None:
        self._lock_service.unlock(table, row)

    def try_lock_many(self, rows: Sequence[tuple[str, bytes]]) -> list[bool]:
        return self._lock_service.try_lock_many(rows)

    def unlock_many(self, rows: Iterable[tuple[str, bytes]]) -> None:
        self._lock_service.unlock_many(rows)

    def keep_lock(self, table: str, row: bytes) -> bool:
        return self._lock_service.keep_lock(table, row)

    def wake(self, places: Iterable[Place] | None = None) -> None:
        self._lock_service.wake(places)

    def on_wake(self, callback: Callable[[bytes], float | None]) -> Callable[[], None]:
        return self._lock_service.on_wake(callback)

    def idle(self, pool: bytes) -> None:
        self._lock_service.idle(pool)

    # --- The end --------------------------------------------------------------------------

    def close(self) -> None:
        self._closed = True
        self._held.note(0)
        self._lock_service.close()
        self._session.close()

    def _leave_parent(self) -> None:
        try:
            self._session.connection.leave_parent()
        finally:
            self._start_afresh()
        if self._closed:
            self._session.close()


class Held:
    """The oldest timestamp that this process reads at, and its node in ZooKeeper.

    It is checked once a second. A timestamp that is the same at two checks is published: shorter
    reads never cost a write. When the timestamp changes, the published one stays for one more
    check: the new one may have been read for just as long, and is then published at that check.
    While older ones come and go, it stays.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._name = f"{os.getpid()}-{secrets.token_hex(6)}"
        # A new tuple for each change, so that a timestamp that comes back counts as a new one.
        self._noted: tuple[int] = (0,)
        self._seen: tuple[int] = self._noted
        self._checked = 0.0
        self._wanted = 0
        # The timestamps that may have a node, and whether the node is known to exist.
        self._published: dict[int, bool] = {}
        self._generation = 0

    @property
    def ts(self) -> int:
        """The oldest timestamp that is read at; 0 for none."""
        return self._noted[0]

    def note(self, ts: int) -> None:
        """Set the oldest timestamp to `ts`; 0: nothing is read."""
        if ts != self._noted[0]:  # It is noted again now and then, in case it is wrong.
            self._noted = (ts,)

    def check(self) -> int:
        """The timestamp to publish in ZooKeeper, 0 for none. To be called once a second."""
        noted, seen, wanted = self._noted, self._seen, self._wanted
        self._seen = noted
        if noted is seen:
            self._wanted = noted[0]
        elif not noted[0] or (noted[0] > wanted and seen[0] != wanted):
            self._wanted = 0
        return self._wanted

    def publish(self, session: Session) -> bool:
        """Create and delete nodes as needed; returns whether that needs a connection."""
        now = time.monotonic()
        if now - self._checked >= TURN_SECONDS * 0.9:
            self._checked = now
            self.check()
        if session.generation != self._generation:
            self._generation = session.generation
            # All nodes are gone, except those written at the moment of the change.
            self._published = dict.fromkeys(self._published, False)
        wanted, connection = self._wanted, session.connection
        if self._published == ({wanted: True} if wanted else {}):
            return False
        if not connection.is_connected:
            return True
        if wanted and not self._published.get(wanted):
            self._published[wanted] = False
            connection.create(self._path(wanted), socket.gethostname().encode())
            self._published[wanted] = True
        for old in [ts for ts in self._published if ts != wanted]:
            connection.delete(self._path(old))
            del self._published[old]
        return False

    def _path(self, ts: int) -> str:
        return self._settings.path("held", f"{ts}-{self._name}")


def _stamp(name: str) -> int:
    stamp = name.partition("-")[0]
    return int(stamp) if stamp.isdecimal() else 0


def _reader(name: str, host: bytes) -> str:
    """A process that reads, by its node: earlier releases do not say on which machine."""
    process = f"process {name.split('-')[1]}"
    return f"{process} on {host.decode(errors='replace')}" if host else process
