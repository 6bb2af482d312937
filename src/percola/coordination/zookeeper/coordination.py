"""§2.2, §2.4: coordination between machines: ZooKeeper in the place of Chubby.

    liveness tokens      ephemeral nodes of one session a process; see `session`
    what is read (P12)   ROOT/held/TS-NAME: ephemeral, of processes that have read at TS for a while
    row locks, the bell  served beside the oracle (`percola.coordination.lock_service`): in
                         ZooKeeper every lock and every ring would be a write on most servers

`is_alive` remembers for a second what it was told. While ZooKeeper does not answer, whoever is not
known to be dead counts as alive (rule P8): locks of the dead are then settled when their time to
live is over.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final

from percola.coordination.base import Coordination
from percola.coordination.lock_service.base import LockService
from percola.coordination.zookeeper.connection import Settings
from percola.coordination.zookeeper.session import TURN_SECONDS, Session
from percola.errors import RepositoryError, UsageError
from percola.platform import fork_safety as forks

SESSION_SECONDS: Final = 10.0
REQUEST_SECONDS: Final = 2.0
PATIENCE_SECONDS: Final = 10.0

_REMEMBERED_SECONDS: Final = 1.0
_REMEMBERED: Final = 4096
_HOST: Final = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[^:/\s,\[\]]+):([0-9]{1,5})")


class ZooKeeperCoordination(Coordination):
    """Coordination through an ensemble of ZooKeeper servers. Safe to use from many threads.

    Connects when it is first needed, also in a child after a fork.

    Args:
        hosts: `host:port` of the ensemble's servers.
        root: the node under which everything of the repository stands, `/percola/NAME`; it is made
            if it is missing. All processes of a repository name the same.
        lock_service: advisory locks and the bell; closed with this. Without it they reach no
            further than this process.
        session_seconds: after how long without a sign of life ZooKeeper counts a process as dead.
            Has to be within what its servers allow, by default 2 to 20 of their ticks.
        request_seconds: how long a single question may take.
        patience_seconds: for how long to wait for the first connection, and for a new token in
            place of one that was lost, before it is an error.
        auth: (scheme, credential), such as ("digest", "user:password"): what is made is then for
            those only who show the same.

    `token` raises StoreError while there is none that is known to live: nothing can be committed
    then. `processes`, `oldest_held` and `announce_observers` raise it while ZooKeeper cannot be
    asked. Raises UsageError for arguments that cannot work.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        root: str,
        *,
        lock_service: LockService | None = None,
        session_seconds: float = SESSION_SECONDS,
        request_seconds: float = REQUEST_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
        auth: tuple[str, str] | None = None,
    ) -> None:
        if not hosts or isinstance(hosts, str):
            raise UsageError("Name at least one of ZooKeeper's servers, in a list.")
        for host in hosts:
            found = _HOST.fullmatch(host)
            if found is None or not 0 < int(found[1]) < 2**16:
                raise UsageError(f"The address of a ZooKeeper server is HOST:PORT, not {host!r}.")
        names = root.split("/")[1:]
        if not root.startswith("/") or any(name in ("", ".", "..") for name in names):
            raise UsageError(
                f"The root of a repository in ZooKeeper is a path such as /percola/NAME, not "
                f"{root!r}."
            )
        if not min(session_seconds, request_seconds, patience_seconds) > 0:
            raise UsageError("The seconds to wait for ZooKeeper must be above 0.")
        self._settings = Settings(
            tuple(hosts), root, session_seconds, request_seconds, patience_seconds, auth
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
        answer = self._ask_whether_alive(token)
        if len(self._known) >= _REMEMBERED:
            self._known = {}
        self._known[token] = (answer, time.monotonic() + _REMEMBERED_SECONDS)
        return answer

    def _ask_whether_alive(self, token: str) -> bool:
        # A token names one node; what else a lock may carry was never one of ours.
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

    # --- What is read (P12) ---------------------------------------------------------------

    def hold_back(self, ts: int) -> None:
        # Called for nearly every transaction: it only notes it down.
        self._held.note(ts)
        with contextlib.suppress(RepositoryError, RuntimeError):
            self._session.start(connect=False)

    def oldest_held(self) -> int | None:
        connection = self._session.connected()
        stamps = [_stamp(name) for name in connection.children(self._settings.path("held"))]
        return min([ts for ts in (*stamps, self._held.ts) if ts], default=None)

    # --- Advisory row locks, the bell -----------------------------------------------------

    def try_lock(self, table: str, row: bytes) -> bool:
        return self._lock_service.try_lock(table, row)

    def unlock(self, table: str, row: bytes) -> None:
        self._lock_service.unlock(table, row)

    def ring(self) -> None:
        self._lock_service.ring()

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        return self._lock_service.listen(heard)

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
    """What this process reads at, and what of that stands in ZooKeeper.

    It is looked at once a second, and what is the same at two looks is published: what is shorter
    never costs a write. What stands there stays for one look more when something else is read:
    that may have been read for just as long, and is published at the next look if it still is.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._name = f"{os.getpid()}-{secrets.token_hex(6)}"
        # A new tuple for every word, so that the same timestamp again is not taken for the old one.
        self._said: tuple[int] = (0,)
        self._seen: tuple[int] = self._said
        self._looked = 0.0
        self._wish = 0
        # What may stand there, and whether it is known to.
        self._standing: dict[int, bool] = {}
        self._generation = 0

    @property
    def ts(self) -> int:
        """The oldest timestamp that is read at; 0 for none."""
        return self._said[0]

    def note(self, ts: int) -> None:
        """From now on `ts` is the oldest; 0: nothing is read."""
        self._said = (ts,)

    def look(self) -> int:
        """What should stand in ZooKeeper, 0 for nothing. To be called once a second."""
        said, seen = self._said, self._seen
        self._seen = said
        if said is seen:
            self._wish = said[0]
        elif not (said[0] and seen[0] == self._wish):
            self._wish = 0
        return self._wish

    def publish(self, session: Session) -> bool:
        """Write what has to be written; whether that needs a connection which is not there."""
        now = time.monotonic()
        if now - self._looked >= TURN_SECONDS * 0.9:
            self._looked = now
            self.look()
        if session.generation != self._generation:
            self._generation = session.generation
            # All of it is gone, but for what was written in the very moment of the change.
            self._standing = dict.fromkeys(self._standing, False)
        wish, connection = self._wish, session.connection
        if self._standing == ({wish: True} if wish else {}):
            return False
        if not connection.is_connected:
            return True
        if wish and not self._standing.get(wish):
            self._standing[wish] = False
            connection.create(self._path(wish))
            self._standing[wish] = True
        for old in [ts for ts in self._standing if ts != wish]:
            connection.delete(self._path(old))
            del self._standing[old]
        return False

    def _path(self, ts: int) -> str:
        return self._settings.path("held", f"{ts}-{self._name}")


def _stamp(name: str) -> int:
    stamp = name.partition("-")[0]
    return int(stamp) if stamp.isdecimal() else 0
