"""§2.2 liveness tokens in ZooKeeper: a process's one session, and the token tied to it.

    ROOT/live/TOKEN     ephemeral: deleted with its session. Its data describe the process:
                        {"pid": 4711, "host": "b", "since_ms": 1700000000000,
                         "observers": {"docs.contents": ["cluster"]}}
    ROOT/observers      empty; changes with every announcement, so that of two processes that
                        announce at once one sees the other

A token is good for one session time-out after the last request for its node that ZooKeeper answered
with the node; the session does not expire sooner. A thread sends four such requests per time-out.
So the token survives a lost connection; a token that was not confirmed for that long is not used
until it is confirmed again; and one that is gone is replaced by a new one, never recreated.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
)

from percola.clock import backoff
from percola.coordination.observer_agreement import check_agreement
from percola.coordination.zookeeper.connection import Connection, Settings, UnreachableError
from percola.errors import ObserverMismatchError, PercolaError, RepositoryClosedError, StoreError
from percola.platform.fork_safety import new_random

log = logging.getLogger("percola.zookeeper")

TURN_SECONDS: Final = 1.0
"""Seconds between the thread's checks for work."""
_TURN_TAKING: Final = 60.0
"""Seconds for which a process tries to announce its observers beside others that do."""
_PAUSES: Final = (0.02, 1.0)
"""Seconds between two tries: at first, and at most."""


class Session:
    """One process's session; begins in the background when it is first needed.

    Args:
        settings: where ZooKeeper is, and for how long to wait.
        turn: called about once a second by the session's thread; returns whether it needs a
            connection and there is none.
    """

    def __init__(self, settings: Settings, turn: Callable[[Session], bool]) -> None:
        self.connection = Connection(settings, self._note)
        self.generation = 0
        """Increases when a session is lost, and with it all ephemeral nodes."""
        self._settings = settings
        self._turn = turn
        # Guards the state below and signals its changes. A thread that holds it never waits for #
        # ZooKeeper: the driver's thread needs it too.
        self._changed = threading.Condition(threading.Lock())
        # One thread at a time writes the token's node.
        self._writing = threading.RLock()
        self._wake = threading.Event()
        self._keeper: threading.Thread | None = None
        self._closed = False
        self._needed_since: float | None = None
        self._refused = ""
        self._wanted = False
        self._token: str | None = None
        self._next: str | None = None
        self._until = 0.0
        self._without_since = 0.0
        self._observers: dict[str, list[str]] = {}
        self._since_ms = time.time_ns() // 1_000_000
        self._written = b""
        self._rng = new_random()

    # --- For the coordination -------------------------------------------------------------

    def start(self, *, connect: bool = True) -> None:
        """Start the thread and connect in the background. Raises RepositoryClosedError after
        `close`.

        Without `connect` the thread only calls `turn` until a connection is needed.
        """
        is_under_way = self._keeper is not None and (not connect or self._needed_since is not None)
        if is_under_way and not self._closed:
            return
        with self._changed:
            if self._closed:
                raise _closed()
            if connect and self._needed_since is None:
                self._needed_since = time.monotonic()
                self._wake.set()
            if self._keeper is None:
                self._keeper = threading.Thread(
                    target=self._keep, name="percola-zookeeper", daemon=True
                )
                self._keeper.start()

    def token(self) -> str:
        """The liveness token; waits for the first one, and for the replacement of a lost one.

        Raises StoreError if there is none for `timeout_seconds`, or at once if waiting is useless.
        """
        good = self.good_token
        if good is not None:
            return good
        self.start()
        with self._changed:
            if not self._wanted:
                self._wanted, self._without_since = True, time.monotonic()
            self._wake.set()
            while (good := self.good_token) is None and not self._why_none():
                if self._closed:
                    raise _closed()
                since = self._without_since if self._token is None else self._until
                left = since + self._settings.timeout_seconds - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
        if good is not None:
            return good
        if why := self._why_none():
            raise StoreError(why)
        if self.generation == 0 and self._token is None:
            raise self.connection.unreachable(self.connection.probe())
        raise StoreError(
            f"This process has lost touch with ZooKeeper at {self.connection.hosts}, and with it "
            "the liveness token that its locks carry. Nothing can be committed until ZooKeeper is "
            f"reached again, which is tried all the time ({self.connection.probe()})."
        )

    @property
    def good_token(self) -> str | None:
        """The token, if it is known to be alive."""
        token = self._token
        return token if token is not None and time.monotonic() < self._until else None

    def is_own(self, token: str) -> bool:
        """Whether it is this process's token, known to be alive or not."""
        return token == self._token

    def await_connection(self, seconds: float) -> bool:
        """Whether requests can be sent; waits for the process's first connection."""
        connection = self.connection
        if connection.is_connected:
            return True
        self.start()
        with self._changed:
            until = (self._needed_since or 0.0) + seconds
            while not (connection.is_connected or self._closed or self._why_none()):
                left = until - time.monotonic()
                if self.generation or left <= 0:
                    break
                self._changed.wait(left)
        return connection.is_connected

    def connected(self) -> Connection:
        """The connection, once it is established; StoreError if it is not."""
        if self.await_connection(self._settings.timeout_seconds):
            return self.connection
        if why := self._why_none():
            raise StoreError(why)
        raise self.connection.unreachable(self.connection.probe())

    def processes(self) -> list[dict[str, object]]:
        """The data of the nodes of all live tokens."""
        connection, live = self.connection, self._settings.path("live")
        tokens = connection.children(live)
        calls = [getting(f"{live}/{token}") for token in tokens]
        found: list[dict[str, object]] = []
        for token, answer in zip(tokens, connection.ask_each(calls), strict=True):
            if answer is None:
                continue
            try:
                found.append({"token": token, **json.loads(answer[0])})
            except (ValueError, TypeError):  # Not Percola's data, but the process is alive.
                found.append({"token": token, "pid": 0, "host": "", "observers": {}})
        return found

    def announce(self, observers: dict[str, list[str]]) -> None:
        """Publish which observers this process runs; ObserverMismatchError if others disagree."""
        while not self._announced(self.token(), observers):
            pass  # The token has been lost just now.

    def _announced(self, token: str, observers: dict[str, list[str]]) -> bool:
        """Publish the observers on a token's node; False if it is gone."""
        with self._writing:
            before, self._observers = self._observers, observers
            try:
                self._write(token, is_new=False)
            except BaseException as error:
                # If it was written and only the answer was lost, the thread corrects it.
                self._observers, self._written = before, b""
                self._wake.set()
                if not isinstance(error, NoNodeError):
                    raise
                self._note_gone(token)
                return False
        return True

    def close(self) -> None:
        """End the session, and the token with it. Idempotent."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._token = None
            keeper = self._keeper
            self._changed.notify_all()
        self._wake.set()
        if keeper is not None and keeper is not threading.current_thread():
            # This ends the session; if ZooKeeper does not answer, its time-out does.
            keeper.join(2 * self._settings.request_seconds)

    # --- The thread -----------------------------------------------------------------------

    def _keep(self) -> None:
        pause = min(TURN_SECONDS, self._settings.session_seconds / 4)
        told = ""
        while not self._closed:
            self._wake.clear()
            try:
                if self._needed_since is not None:
                    self.connection.begin()
                    if self._is_due() and self.connection.is_connected:
                        self._look()
                if self._turn(self):
                    self.start()
                if self.connection.is_connected:
                    told = ""
            except (UnreachableError, RepositoryClosedError):
                pass  # It is retried, and waiting threads report it; or this has just been closed.
            except (PercolaError, KazooException) as error:
                if (says := str(error) or repr(error)) != told:
                    told = says
                    log.warning("%s", says)
            except Exception:
                log.exception("looking after the session with ZooKeeper failed")
            self._wake.wait(pause)
        self.connection.end()

    def _note(self, lost: bool) -> None:
        """Record a change of the connection; called by the driver's thread."""
        with self._changed:
            if self._closed:
                return
            if lost:
                self._lose()
            self._changed.notify_all()
        self._wake.set()
        if lost and self._wanted:
            log.warning("the session with ZooKeeper at %s is lost", self.connection.hosts)

    def _lose(self) -> None:
        self.generation += 1
        if self._token is not None:
            self._without_since = min(self._until, time.monotonic())
        self._token = self._next = None
        self._written = b""

    def _why_none(self) -> str:
        """Why there will be no token, if waiting is useless; else empty."""
        return self.connection.refused or self._refused

    def _is_due(self) -> bool:
        """Whether the token's node must be created, changed or confirmed."""
        if not self._wanted:
            return False
        if self._token is None or self._written != self._described():
            return True
        lasts = self._settings.session_seconds
        return self._until - time.monotonic() <= lasts * 3 / 4

    def _look(self) -> None:
        """Confirm that the token's node exists, or create one."""
        # The token is good from this moment on if the node is found.
        asked, generation = time.monotonic(), self.generation
        token = self._token
        with self._writing:
            if token is None:
                # Reuse the token after a lost answer, or a session would have two.
                token = self._next = self._next or f"{os.getpid()}-{secrets.token_hex(6)}"
                self._write_new(token)
            elif not self.connection.is_there(self._settings.path("live", token)):
                self._note_gone(token)
                return
            elif self._written != self._described():
                self._write(token, is_new=False)
        with self._changed:
            if generation == self.generation and not self._closed:
                self._token, self._next = token, None
                self._refused = self.connection.refused = ""
                self._until = asked + self._settings.session_seconds
                self._changed.notify_all()
            elif self._token is None:
                # It may belong to the next session already; it has not been used.
                self._next = token

    def _note_gone(self, token: str) -> None:
        """The token's node is gone: another one is needed."""
        with self._changed:
            if self._token != token:
                return
            self._lose()
        log.warning("the liveness token %s is gone from ZooKeeper", token)
        self._wake.set()

    def _write_new(self, token: str) -> None:
        try:
            self._write(token, is_new=True)
        except UnreachableError:
            raise
        except (StoreError, ObserverMismatchError) as error:
            with self._changed:
                self._refused = str(error)
                self._changed.notify_all()
            raise

    # --- The token's node -----------------------------------------------------------------

    def _write(self, token: str, *, is_new: bool) -> None:
        """Create or change the token's node, unless a live process's observers conflict with it.

        Raises NoNodeError if a node that is to be changed is gone.
        """
        with self._writing:
            self.connection.make_folders()
            until = time.monotonic() + _TURN_TAKING
            for attempt in itertools.count(1):
                described = self._described()
                version = self._agree(token) if self._observers else None
                wrong = self._try_write(token, described, version, is_new=is_new)
                if wrong is None:
                    self._written = described
                    return
                if isinstance(wrong, NodeExistsError):
                    is_new = False  # It was created before, and the answer was lost.
                elif isinstance(wrong, NoNodeError) and is_new:
                    self.connection.make_folders(again=True)
                elif isinstance(wrong, NoNodeError):
                    raise wrong
                elif not isinstance(wrong, BadVersionError):
                    raise self.connection.failed(wrong) from wrong
                # Of all that announce at once one is first, and the others read again.
                first, most = _PAUSES
                time.sleep(backoff(self._rng, attempt, first=first, most=most))
                if self._closed:
                    raise _closed()
                if time.monotonic() >= until:
                    raise StoreError(
                        "So many processes announce their observers in ZooKeeper, under "
                        f"{self._settings.root}, that this one did not get a turn for "
                        f"{_TURN_TAKING:g} s: start fewer at once."
                    )

    def _agree(self, token: str) -> int:
        """Compare our observers with others'; returns the version of the last announcement."""
        call = getting(self._settings.path("observers"))
        try:
            version: int = self.connection.ask(call)[1].version
        except NoNodeError:
            self.connection.make_folders(again=True)
            version = self.connection.ask(call)[1].version
        for other in self.processes():
            if other["token"] != token:
                check_agreement(other, self._observers)
        return version

    def _try_write(
        self, token: str, described: bytes, version: int | None, *, is_new: bool
    ) -> KazooException | None:
        path = self._settings.path("live", token)

        def commit(client: Any) -> Any:
            together = client.transaction()
            if version is not None:
                together.set_data(self._settings.path("observers"), b"", version)
            if is_new:
                together.create(path, described, self.connection.acl, ephemeral=True)
            else:
                together.set_data(path, described)
            return together.commit_async()

        answers = [one for one in self.connection.ask(commit) if isinstance(one, KazooException)]
        # In a failed transaction, all operations before the failed one were rolled back.
        blamed = [one for one in answers if not isinstance(one, RolledBackError)]
        return next(iter(blamed or answers), None)

    def _described(self) -> bytes:
        process = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since_ms": self._since_ms,
            "observers": self._observers,
        }
        return json.dumps(process).encode()


def getting(path: str) -> Callable[[Any], Any]:
    """The request for a node's data."""
    return lambda client: client.get_async(path)


def _closed() -> RepositoryClosedError:
    return RepositoryClosedError("This repository has been closed; open it again.")
