"""§2.4 on the wire: what the lock service and its clients say to each other, and names.

The messages of `lock_service.proto`, written by hand as those of the oracle are
(`percola.oracle.messages` says why).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from percola.platform.protobuf import Fields, data, number, text

SERVICE: Final = "percola.Advice"
"""The lock service's former name stays on the wire, as do its methods': processes of both versions
run side by side while a cluster is upgraded."""
ATTEND: Final = "Attend"
TRY_LOCK: Final = "TryLock"
UNLOCK: Final = "Unlock"
RING: Final = "Ring"

SERVER_OPTIONS: Final = (
    # A process on a machine that is gone closes nothing: after two such times without an answer
    # its locks are dropped. Which of the last two counts depends on gRPC's version.
    ("grpc.keepalive_time_ms", 3_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Clients look after their server in the same way; by default that counts as abuse.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
)
"""What a server of this service has to be given as gRPC's options."""

CHANNEL_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
"""What channels to such a server should be given. A server without its options ends them."""


@dataclass(frozen=True, slots=True)
class AttendRequest:
    """Begins to attend as `session`, which is made up for this one call."""

    session: str

    def encode(self) -> bytes:
        """As it is sent."""
        return text(1, self.session)

    @classmethod
    def decode(cls, raw: bytes) -> AttendRequest:
        """The inverse of `encode`; ValueError for other bytes."""
        return cls(Fields(raw).text(1))


@dataclass(frozen=True, slots=True)
class Rung:
    """The bell has rung; the first one says that the session is attended to."""

    def encode(self) -> bytes:
        """As it is sent."""
        return b""

    @classmethod
    def decode(cls, raw: bytes) -> Rung:
        """The inverse of `encode`; ValueError for other bytes."""
        Fields(raw)
        return cls()


@dataclass(frozen=True, slots=True)
class LockRequest:
    """Asks for the lock of `key`; `turn` goes up with everything that the session asks for."""

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
    """Gives back the lock that was asked for in `turn`, unless it was taken again since."""

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
    """It has been given back, if it was held."""

    def encode(self) -> bytes:
        """As it is sent."""
        return b""

    @classmethod
    def decode(cls, raw: bytes) -> UnlockReply:
        """The inverse of `encode`; ValueError for other bytes."""
        Fields(raw)
        return cls()


@dataclass(frozen=True, slots=True)
class RingRequest:
    """Rings the bell for all sessions but this one; empty: for all."""

    session: str

    def encode(self) -> bytes:
        """As it is sent."""
        return text(1, self.session)

    @classmethod
    def decode(cls, raw: bytes) -> RingRequest:
        """The inverse of `encode`; ValueError for other bytes."""
        return cls(Fields(raw).text(1))


@dataclass(frozen=True, slots=True)
class RingReply:
    """For how many milliseconds the process should not ring again."""

    pause_ms: int

    def encode(self) -> bytes:
        """As it is sent."""
        return number(1, self.pause_ms)

    @classmethod
    def decode(cls, raw: bytes) -> RingReply:
        """The inverse of `encode`; ValueError for other bytes."""
        return cls(Fields(raw).number(1))
