"""§2.4 on the wire: the messages of the lock service, and the names of its methods.

The messages of `lock_service.proto`, written by hand like those of the oracle (for the reasons in
`percola.oracle.messages`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from percola.platform.protobuf import Fields, data, number, text

SERVICE: Final = "percola.Advice"
"""The names on the wire are the former ones, so that processes of both versions can run side by
side during a rolling upgrade."""
ATTEND: Final = "Attend"
TRY_LOCK: Final = "TryLock"
UNLOCK: Final = "Unlock"
WAKE: Final = "Ring"

SERVER_OPTIONS: Final = (
    # A machine that has disappeared closes no connection: after two such intervals without an
    # answer its locks are dropped. Which of the last two counts depends on gRPC's version.
    ("grpc.keepalive_time_ms", 3_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Clients ping their server in the same way; by default gRPC treats that as abuse.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
)
"""gRPC options that a server of this service needs."""

CHANNEL_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
"""gRPC options for channels to such a server. A server without its options closes them."""


@dataclass(frozen=True, slots=True)
class AttendRequest:
    """Opens the session `session`, a random name for this one call."""

    session: str

    def encode(self) -> bytes:
        """As it is sent."""
        return text(1, self.session)

    @classmethod
    def decode(cls, raw: bytes) -> AttendRequest:
        """The inverse of `encode`; ValueError for other bytes."""
        return cls(Fields(raw).text(1))


@dataclass(frozen=True, slots=True)
class WakeUp:
    """A wake-up; the first one reports that the session is open."""

    def encode(self) -> bytes:
        """As it is sent."""
        return b""

    @classmethod
    def decode(cls, raw: bytes) -> WakeUp:
        """The inverse of `encode`; ValueError for other bytes."""
        Fields(raw)
        return cls()


@dataclass(frozen=True, slots=True)
class LockRequest:
    """Asks for the lock of `key`; `turn` increases with every request of the session."""

    session: str
    key: bytes
    turn: int

    def encode(self) -> bytes:
        """As it is sent."""
        return text(1, self.session) + data(2, self.key) + number(3, self.turn)

    @classmethod
    def decode(cls, raw: bytes) -> LockRequest:
        """The inverse of `encode`; ValueError for other bytes."""
        fields = Fields(raw)
        return cls(fields.text(1), fields.data(2), fields.number(3))


@dataclass(frozen=True, slots=True)
class LockReply:
    """Whether the session has the lock now."""

    taken: bool

    def encode(self) -> bytes:
        """As it is sent."""
        return number(1, int(self.taken))

    @classmethod
    def decode(cls, raw: bytes) -> LockReply:
        """The inverse of `encode`; ValueError for other bytes."""
        return cls(Fields(raw).number(1) != 0)


@dataclass(frozen=True, slots=True)
class UnlockRequest:
    """Releases the lock that was requested in `turn`, unless it was taken again since."""

    session: str
    key: bytes
    turn: int

    def encode(self) -> bytes:
        """As it is sent."""
        return text(1, self.session) + data(2, self.key) + number(3, self.turn)

    @classmethod
    def decode(cls, raw: bytes) -> UnlockRequest:
        """The inverse of `encode`; ValueError for other bytes."""
        fields = Fields(raw)
        return cls(fields.text(1), fields.data(2), fields.number(3))


@dataclass(frozen=True, slots=True)
class UnlockReply:
    """The lock is released, if it was held."""

    def encode(self) -> bytes:
        """As it is sent."""
        return b""

    @classmethod
    def decode(cls, raw: bytes) -> UnlockReply:
        """The inverse of `encode`; ValueError for other bytes."""
        Fields(raw)
        return cls()


@dataclass(frozen=True, slots=True)
class WakeRequest:
    """Wakes all sessions but this one; empty: all."""

    session: str

    def encode(self) -> bytes:
        """As it is sent."""
        return text(1, self.session)

    @classmethod
    def decode(cls, raw: bytes) -> WakeRequest:
        """The inverse of `encode`; ValueError for other bytes."""
        return cls(Fields(raw).text(1))


@dataclass(frozen=True, slots=True)
class WakeReply:
    """For how many milliseconds the process should not send another wake-up."""

    pause_ms: int

    def encode(self) -> bytes:
        """As it is sent."""
        return number(1, self.pause_ms)

    @classmethod
    def decode(cls, raw: bytes) -> WakeReply:
        """The inverse of `encode`; ValueError for other bytes."""
        return cls(Fields(raw).number(1))
