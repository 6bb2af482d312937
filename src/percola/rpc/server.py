"""§2.3 on the wire, server side: two threads serve any number of connections.

    greeter    accepts connections and finds out who they are (`percola.rpc.greeter`). Its work is
               bounded by the number of such peers and by a deadline, and takes nothing of the loop
    loop       reads the frames of accepted peers and writes the answers

A peer that does not read its answers is not read from until it does, so that it has no more than
one read's answers waiting. A peer that sends something other than frames is told so in a sentence,
and the connection ends.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from percola.errors import StoreError
from percola.platform.fork_safety import at_fork
from percola.rpc import frames
from percola.rpc.frames import Code, FrameError
from percola.rpc.greeter import Greeter

log = logging.getLogger("percola.oracle")

CLIENTS: Final = 10_000
"""Accepted peers, those aside that the service keeps; one more ends the least recently used."""
_READ: Final = 4096
_LOOK_SECONDS: Final = 0.5


class Peer:
    """An accepted connection. Only the thread of the loop uses it."""

    __slots__ = (
        "close_after",
        "is_closed",
        "is_kept",
        "name",
        "rest",
        "socket",
        "state",
        "unsent",
        "used",
    )

    def __init__(self, connected: socket.socket, name: str, rest: bytes = b"") -> None:
        self.socket = connected
        self.name = name
        self.rest = rest
        self.unsent = b""
        self.used = 0.0
        """When it last sent something, by the loop's clock."""
        self.is_kept = False
        """Whether the service bounds its number itself."""
        self.is_closed = False
        self.close_after = False
        self.state: Any = None
        """For the service."""


class Service(Protocol):
    """What is served; called by the loop's thread only."""

    def received(self, peer: Peer, kind: int, number: int, body: bytes) -> bytes:
        """Handle a frame; what to answer at once. Raises FrameError for one that is none."""

    def ended(self, peer: Peer) -> None:
        """A connection has ended."""

    def tick(self) -> float:
        """Do what is due; seconds until it should be called again at the latest."""


class FrameServer:
    """Serves frames at an address until `stop`.

    Args:
        listen: `host:port`; port 0 takes a free one. A name is listened to at all its addresses.
        service: what is served.
        token: the token that clients must show; empty: none.
        context: the settings of TLS; None: without.
        former: takes over a connection that begins as HTTP/2, with the bytes read so far; it
            returns a sentence if it does not. None: it is refused.

    Raises StoreError if it cannot listen there.
    """

    def __init__(
        self,
        listen: str,
        service: Service,
        *,
        token: str = "",
        context: ssl.SSLContext | None = None,
        former: Callable[[socket.socket, bytes], str] | None = None,
    ) -> None:
        host = listen.rpartition(":")[0]
        self._listening = _listen(host.removeprefix("[").removesuffix("]"), listen)
        self.address = f"{host}:{self._listening[0].getsockname()[1]}"
        """The address it listens on, as `host:port`."""
        self.displaced = 0
        """Connections that were ended because there were too many."""
        self.now = time.monotonic()
        """The loop's clock."""
        self._service = service
        self._peers: dict[int, Peer] = {}
        self._clients = 0
        self._waker, self._wakes = socket.socketpair()
        self._waker.setblocking(False)
        self._wakes.setblocking(False)
        self._poll = select.epoll()
        self._poll.register(self._wakes.fileno(), select.EPOLLIN)
        self._calls: deque[Callable[[], object]] = deque()
        self._due = 0.0
        self._stopping = threading.Event()
        self._greeter = Greeter(
            self._listening,
            token.encode(),
            context,
            former,
            self._accept_soon,
            lambda: self.call(self.displace),
        )
        self._threads = [
            threading.Thread(target=run, name=name, daemon=True)
            for run, name in ((self._run, "oracle-loop"), (self._greeter.run, "oracle-greeter"))
        ]
        at_fork(self._leave_parent)

    def start(self) -> None:
        """Begin to serve."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End all connections and release the port. Idempotent."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._greeter.stop()
        self.wake()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._close_all()

    def _close_all(self) -> None:
        for peer in list(self._peers.values()):
            peer.socket.close()
        self._peers.clear()
        for one in self._listening:
            # Releases the port also if a process that was forked just now has yet to close it.
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for one in (*self._listening, self._waker, self._wakes):
            one.close()
        self._poll.close()
        self._greeter.close_all()

    def _leave_parent(self) -> None:
        """In a child: the port and the connections are the parent's; nothing is sent on them."""
        # Not those of the selectors: what the child closes would be removed from the parent's too.
        self._stopping.set()
        for one in (*self._listening, self._waker, self._wakes, *self._greeter.sockets()):
            one.close()
        for peer in list(self._peers.values()):
            peer.socket.close()

    @property
    def refused(self) -> int:
        """Connections that were refused before they were accepted."""
        return self._greeter.refused

    @property
    def connections(self) -> int:
        """How many peers are connected that have been accepted."""
        return len(self._peers)

    # --- From other threads ---------------------------------------------------------------

    def wake(self) -> None:
        """Have the loop call the service's `tick` now."""
        with suppress(OSError):  # BlockingIOError: it is awake already. Closed: it has ended.
            self._waker.send(b"\0")

    def call(self, work: Callable[[], object]) -> None:
        """Have the loop's thread call a function."""
        self._calls.append(work)
        self.wake()

    # --- For the service: the loop's thread -----------------------------------------------

    def send(self, peer: Peer, message: bytes) -> None:
        """Send frames to a peer, now or as soon as it reads."""
        if peer.is_closed or not message:
            return
        if peer.unsent:
            peer.unsent += message
            return
        try:
            sent = peer.socket.send(message)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            sent = 0
        except OSError:
            self.end(peer)
            return
        if sent < len(message):
            peer.unsent = message[sent:]
            self._poll.modify(peer.socket.fileno(), select.EPOLLOUT)

    def end(self, peer: Peer, message: bytes = b"") -> None:
        """End a connection, with a last message."""
        if peer.is_closed:
            return
        peer.is_closed = True
        number = peer.socket.fileno()
        self._poll.unregister(number)
        del self._peers[number]
        if not peer.is_kept:
            self._clients -= 1
        self._service.ended(peer)
        if message and not peer.unsent:
            self._greeter.farewell(peer.socket, message)
        else:
            peer.socket.close()

    def hurry(self) -> None:
        """Call the service's `tick` once the frames are handled that have come."""
        self._due = 0.0

    def keep(self, peer: Peer) -> None:
        """Count a peer among those whose number the service bounds."""
        if not peer.is_kept:
            peer.is_kept = True
            self._clients -= 1

    # --- The loop -------------------------------------------------------------------------

    def _accept_soon(self, connected: socket.socket, name: str, rest: bytes) -> None:
        """Serve a peer that has been greeted; called by the greeter's thread."""
        peer = Peer(connected, name, rest)
        self.call(lambda: self._accept(peer))

    def _accept(self, peer: Peer) -> None:
        if self._clients >= CLIENTS:
            self.displace()
        peer.used = self.now
        number = peer.socket.fileno()
        self._peers[number] = peer
        self._clients += 1
        self._poll.register(number, select.EPOLLIN)
        if peer.rest or _has_pending(peer.socket):
            self._read(peer)

    def displace(self) -> None:
        """End the connection that was used least recently."""
        clients = [one for one in self._peers.values() if not one.is_kept]
        if clients:
            self.displaced += 1
            self.end(min(clients, key=lambda one: one.used))

    def _run(self) -> None:
        poll, peers = self._poll, self._peers
        wakes = self._wakes.fileno()
        wait = 0.0
        while not self._stopping.is_set():
            found = poll.poll(wait)
            self.now = now = time.monotonic()
            for number, event in found:
                peer = peers.get(number)
                try:
                    if peer is None:
                        if number == wakes:
                            self.hurry()
                            self._run_calls()
                    elif event & select.EPOLLOUT:
                        self._flush(peer)
                    else:
                        self._read(peer)
                except Exception:
                    # One connection's trouble is not the others'.
                    log.exception("a connection was ended")
                    if peer is not None:
                        self.end(peer)
            if now >= self._due:
                try:
                    wait = self._service.tick()
                except Exception:
                    log.exception("the oracle's service continues")
                    wait = _LOOK_SECONDS
                self._due = time.monotonic() + wait
            else:
                wait = max(0.0, self._due - now)

    def _run_calls(self) -> None:
        with suppress(BlockingIOError):
            self._wakes.recv(_READ)
        while self._calls:
            self._calls.popleft()()

    def _read(self, peer: Peer) -> None:
        """Read what has come, and answer it."""
        try:
            raw = peer.socket.recv(_READ)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not peer.rest:
                return
            raw = b""
        except OSError:
            self.end(peer)
            return
        else:
            if not raw:
                self.end(peer)
                return
        peer.used = self.now
        if peer.rest:
            raw = peer.rest + raw
        try:
            found, peer.rest = frames.split(raw)
            received = self._service.received
            if len(found) == 1:
                self.send(peer, received(peer, *found[0]))
            else:
                self.send(peer, b"".join([received(peer, *one) for one in found]))
        except FrameError as error:
            self.end(peer, frames.refused(Code.MALFORMED, f"The client sent {error}."))
            return
        if not (peer.is_closed or peer.unsent) and _has_pending(peer.socket):
            self._read(peer)

    def _flush(self, peer: Peer) -> None:
        """Send what a peer has not read yet; then go on reading from it."""
        message, peer.unsent = peer.unsent, b""
        self.send(peer, message)
        if not (peer.unsent or peer.is_closed):
            self._poll.modify(peer.socket.fileno(), select.EPOLLIN)
            if peer.rest or _has_pending(peer.socket):
                self._read(peer)


def _has_pending(connected: socket.socket) -> bool:
    """Whether TLS has decrypted bytes that no poll shows."""
    return isinstance(connected, ssl.SSLSocket) and connected.pending() > 0


def _listen(host: str, listen: str) -> list[socket.socket]:
    """Listening sockets at all addresses of a host, on one port."""
    port = int(listen.rpartition(":")[2])
    problem = OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    for _ in range(20 if port == 0 else 1):
        made: list[socket.socket] = []
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            # Once each: a host that is in two lines of /etc/hosts has its address twice.
            for family, kind, protocol, _, address in dict.fromkeys(found):
                try:
                    one = socket.socket(family, kind, protocol)
                except OSError as error:
                    problem = error
                    continue
                one.setblocking(False)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    # "[::]" alone stands for all addresses, those of IPv4 as well.
                    apart = len(found) > 1 or address[0] != "::"
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(apart))
                try:
                    one.bind((address[0], made[0].getsockname()[1] if made else port, *address[2:]))
                    one.listen(1024)
                except OSError as error:
                    one.close()
                    problem = error
                    # An address that this machine lacks, as ::1 where there is no IPv6.
                    if error.errno == errno.EADDRNOTAVAIL:
                        continue
                    raise
                made.append(one)
            if made:
                return made
        except OSError as error:
            for one in made:
                one.close()
            problem = error
    raise StoreError(
        f"This process cannot listen at {listen} ({(problem.strerror or str(problem)).lower()}): "
        "is the address this machine's, and the port free?"
    ) from problem
