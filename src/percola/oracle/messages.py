"""§2.3: the messages between oracle and clients (`oracle.proto`), and the names of the services.

Written by hand: generated code does not load with a protobuf or grpcio older than its generator,
which would pin both for every user, and it has no types; these are four messages of numbers and
short texts. The health messages are those of gRPC's own health service.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from percola.platform.protobuf import Fields, number, text

SERVICE: Final = "percola.Oracle"
DRAW: Final = "Draw"
HEALTH_SERVICE: Final = "grpc.health.v1.Health"
CHECK: Final = "Check"

TOKEN_HEADER: Final = "authorization"
"""The metadata that carries the shared token, as `Bearer TOKEN`."""

SERVING: Final = 1
NOT_SERVING: Final = 2


@dataclass(frozen=True, slots=True)
class DrawRequest:
    """Asks for up to `count` timestamps; with 0 for the highest one handed out."""

    count: int

    def encode(self) -> bytes:
        """As it is sent."""
        return number(1, self.count)

    @classmethod
    def decode(cls, raw: bytes) -> DrawRequest:
        """The inverse of `encode`; ValueError for other bytes."""
        return cls(Fields(raw).number(1))


@dataclass(frozen=True, slots=True)
class DrawReply:
    """The timestamps from `first` on, `count` of them; with 0 the highest one handed out."""

    first: int
    count: int
    source: str

    def encode(self) -> bytes:
        """As it is sent."""
        return number(1, self.first) + number(2, self.count) + text(3, self.source)

    @classmethod
    def decode(cls, raw: bytes) -> DrawReply:
        """The inverse of `encode`; ValueError for other bytes."""
        fields = Fields(raw)
        return cls(fields.number(1), fields.number(2), fields.text(3))


@dataclass(frozen=True, slots=True)
class HealthRequest:
    """Asks whether a service is served; the empty name means the process."""

    service: str

    def encode(self) -> bytes:
        """As it is sent."""
        return text(1, self.service)

    @classmethod
    def decode(cls, raw: bytes) -> HealthRequest:
        """The inverse of `encode`; ValueError for other bytes."""
        return cls(Fields(raw).text(1))


@dataclass(frozen=True, slots=True)
class HealthReply:
    """SERVING or NOT_SERVING."""

    status: int

    def encode(self) -> bytes:
        """As it is sent."""
        return number(1, self.status)

    @classmethod
    def decode(cls, raw: bytes) -> HealthReply:
        """The inverse of `encode`; ValueError for other bytes."""
        return cls(Fields(raw).number(1))
