"""§2.2, §2.4: one connection to ZooKeeper, with bounded waits and readable errors.

    ROOT/live/TOKEN          ephemeral: a liveness token (`percola.coordination.zookeeper.session`)
    ROOT/held/TS-PID-…       ephemeral: a process reads at TS (see `…zookeeper.coordination`)
    ROOT/observers           changes whenever observers are announced

The driver keeps one session, and opens another when it is lost. All requests are asynchronous,
since only then can a wait be bounded.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from percola.errors import StoreError

log = logging.getLogger("percola.zookeeper")
# The driver warns of every attempt to connect; what matters is reported here.
_driver_log = logging.getLogger("percola.zookeeper.kazoo")
_driver_log.setLevel(logging.ERROR)

_SILENT: Final = 1.0
"""Seconds without requests after ZooKeeper did not answer."""
_SESSIONS: Final = 2
"""The number of time-outs without a connection after which a new session is opened."""
_PROBE_SECONDS: Final = 0.5


class UnreachableError(StoreError):
    """ZooKeeper did not answer; this may be temporary."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments of `ZooKeeperCoordination`, which documents them."""

    hosts: tuple[str, ...]
    root: str
    session_seconds: float
    request_seconds: float
    timeout_seconds: float
    auth: tuple[str, str] | None

    def path(self, *names: str) -> str:
        """The path of a node under the root."""
        return "/".join((self.root, *names))


class Connection:
    """A process's one connection; all methods but `begin` and `end` may be called from any thread.

    Args:
        settings: where ZooKeeper is, and for how long to wait.
        changed: called by the driver's thread after it has connected or disconnected, with whether
            the session was lost, and with it all ephemeral nodes; must not wait.
    """

    def __init__(self, settings: Settings, changed: Callable[[bool], None]) -> None:
        self.settings = settings
        self.acl = CREATOR_ALL_ACL if settings.auth else OPEN_ACL_UNSAFE
        self.refused = ""
        """Why ZooKeeper refuses this process, if it does."""
        self._changed = changed
        self._client: Any = None
        self._ended = False
        self._down_since = math.inf
        self._silent_until = 0.0
        self._made_folders = False

    def begin(self) -> None:
        """Connect in the background, unless it is connecting already."""
        if self._client is not None:
            down = time.monotonic() - self._down_since
            if not self._ended and down < _SESSIONS * self.settings.session_seconds:
                return
            # The driver gives up when it is refused. And servers that have lost their data refuse #
            # clients that have seen those data.
            self.end()
            self._changed(True)
        settings = self.settings
        client = KazooClient(
            hosts=",".join(settings.hosts),
            timeout=settings.session_seconds,
            # A single name may be that of several servers.
            handler=_Handler(settings.session_seconds / max(3, len(settings.hosts))),
            auth_data=[settings.auth] if settings.auth else None,
            connection_retry={"max_tries": -1, "delay": 0.1, "max_delay": 1.0},
            logger=_driver_log,
        )
        client.add_listener(lambda state: self._note(client, state))
        self._client, self._ended, self._down_since = client, False, math.inf
        client.start_async()

    def _note(self, client: Any, state: str) -> None:
        if client is not self._client:
            return
        lost = state == KazooState.LOST
        self._down_since = math.inf if state == KazooState.CONNECTED else time.monotonic()
        if lost:
            why = client.client_state
            self._ended = why in (KeeperState.AUTH_FAILED, KeeperState.CLOSED)
            if why == KeeperState.AUTH_FAILED:
                self.refused = (
                    f"ZooKeeper at {self.hosts} refuses this process: the scheme or the credential "
                    "that it was given is not right there."
                )
        self._changed(lost)

    def end(self) -> None:
        """End the session. Takes about its time-out if ZooKeeper does not answer."""
        client, self._client = self._client, None
        if client is None:
            return
        try:
            client.stop()
            client.close()
        except Exception as error:
            log.debug("a session did not end well: %r", error)

    def leave_parent(self) -> None:
        """In the child of a fork: discard the copied connection without contacting ZooKeeper."""
        client, self._client = self._client, None
        if client is None:
            return
        atexit.unregister(client.handler.stop)
        for name in ("_socket", "_read_sock", "_write_sock"):
            if (copied := getattr(client._connection, name, None)) is not None:
                with contextlib.suppress(OSError):
                    os.close(copied.detach())

    @property
    def is_connected(self) -> bool:
        """Whether requests can be sent now."""
        client = self._client
        return client is not None and bool(client.connected) and not self._ended

    # --- Asking ---------------------------------------------------------------------------

    def ask(self, call: Callable[[Any], Any]) -> Any:
        """The answer to one of the driver's asynchronous calls.

        Raises UnreachableError if it does not come within `request_seconds`, StoreError if it is
        refused. NoNodeError, NodeExistsError and BadVersionError are passed on to the caller.
        """
        client = self._client
        if not self.is_connected or time.monotonic() < self._silent_until:
            raise self.unreachable()
        try:
            return call(client).get(timeout=self.settings.request_seconds)
        except KazooTimeoutError as error:
            self._silent_until = time.monotonic() + _SILENT
            raise self.unreachable() from error
        except (ConnectionLoss, ConnectionClosedError, SessionExpiredError) as error:
            raise self.unreachable() from error
        except (NoNodeError, NodeExistsError, BadVersionError):
            raise
        except KazooException as error:
            raise self.failed(error) from error

    def ask_each(self, calls: list[Callable[[Any], Any]]) -> list[Any]:
        """The answers to several calls sent together; None where the node does not exist."""
        sent: list[Any] = []

        def send(client: Any) -> Any:
            sent.extend(call(client) for call in calls)
            return sent[-1]

        def answer(one: Any) -> Any:
            try:
                return self.ask(lambda _: one)
            except NoNodeError:
                return None

        if not calls:
            return []
        # ZooKeeper answers requests in the order in which they were sent.
        with contextlib.suppress(NoNodeError):
            self.ask(send)
        return [answer(one) for one in sent]

    def is_there(self, path: str) -> bool:
        """Whether a node exists; if it seems not to, after a sync with the ensemble's leader.

        The server may be behind: the node of a process that has just started may not have reached
        it yet.
        """
        if self.ask(lambda client: client.exists_async(path)) is not None:
            return True

        def sync_and_look(client: Any) -> Any:
            client.sync_async(path)
            return client.exists_async(path)

        return self.ask(sync_and_look) is not None

    def children(self, path: str) -> list[str]:
        """The sorted names of a node's children; none if it does not exist."""
        try:
            found: list[str] = self.ask(lambda client: client.get_children_async(path))
        except NoNodeError:
            return []
        return sorted(found)

    def create(self, path: str, data: bytes) -> None:
        """Create an ephemeral node; no effect if it exists."""
        self.make_folders()
        try:
            self.ask(lambda client: client.create_async(path, data, self.acl, ephemeral=True))
        except NodeExistsError:
            return
        except NoNodeError:
            self._made_folders = False
            raise

    def delete(self, path: str) -> None:
        """Delete a node; no effect if it does not exist."""
        with contextlib.suppress(NoNodeError):
            self.ask(lambda client: client.delete_async(path))

    def make_folders(self, *, again: bool = False) -> None:
        """Create the permanent nodes under the root; once, unless `again`."""
        if self._made_folders and not again:
            return
        # Nodes above the root may be shared with repositories that use another credential.
        if above := self.settings.root.rpartition("/")[0]:
            self._make_folder(above, OPEN_ACL_UNSAFE)
        for name in ("live", "held", "observers"):
            self._make_folder(self.settings.path(name), self.acl)
        self._made_folders = True

    def _make_folder(self, path: str, acl: Any) -> None:
        self.ask(lambda client: client.ensure_path_async(path, acl))

    # --- Words ----------------------------------------------------------------------------

    @property
    def hosts(self) -> str:
        """The servers, for people."""
        return ", ".join(self.settings.hosts)

    def failed(self, error: KazooException) -> StoreError:
        """The error for a request that ZooKeeper refused."""
        if isinstance(error, NoAuthError):
            return StoreError(
                f"ZooKeeper at {self.hosts} does not let this process use {self.settings.root}: "
                "give the scheme and credential that it was made with, or have it made for this "
                "process."
            )
        return StoreError(
            f"ZooKeeper at {self.hosts} refused what was asked of it under {self.settings.root}: "
            f"{type(error).__name__}."
        )

    def unreachable(self, probed: str = "") -> UnreachableError:
        """The error for a request that was not answered."""
        told = f" ({probed})" if probed else ""
        return UnreachableError(
            f"ZooKeeper does not answer at {self.hosts}{told}. Check the addresses, and that most "
            "of its servers run."
        )

    def probe(self) -> str:
        """What is wrong with the servers, as far as this process can tell.

        Takes up to half a second for each server.
        """
        return "; ".join(f"{one}: {_probe(one)}" for one in self.settings.hosts)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """The driver's threads, with a bound on each TCP connect, as in ZooKeeper's Java client.

    The driver itself waits a whole session time-out for a server whose machine is off, and so
    spends all of `timeout_seconds` on it while the rest of the ensemble is available.
    """

    def __init__(self, connect_seconds: float) -> None:
        super().__init__()
        self._connect_seconds = connect_seconds

    def create_connection(self, *args: Any, **options: Any) -> Any:
        return super().create_connection(*args, **options | {"timeout": self._connect_seconds})


def _probe(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS):
            return "something listens there, but serves no client"
    except socket.gaierror:
        return "no such host"
    except TimeoutError:
        return "nothing answers"
    except OSError as error:
        return (error.strerror or str(error)).lower()
