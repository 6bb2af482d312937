"""Clients of release 0.1, which speak gRPC, at an oracle of this one.

`test_upgrade.py` has the processes of that release; here are the bytes that it sends.
"""

from __future__ import annotations

import importlib.util
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from oracle_in_process import HERE, certificates, leading
from stores import DEADLINE, in_thread

from percola.oracle.client import NetworkOracle
from percola.oracle.server import OracleServer, Tls
from percola.store.memory import MemoryStore

__all__ = ["certificates"]

ONE: Final = b"\x08\x01"
THREE: Final = b"\x08\x03"
LAST: Final = b""


def serving(stack: ExitStack, **options: Any) -> OracleServer:
    return stack.enter_context(leading("localhost:0", **options))


def channel(stack: ExitStack, address: str) -> grpc.Channel:
    """A connection of its own, as another process has."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    return stack.enter_context(grpc.insecure_channel(address, options=own))


def asked(one: grpc.Channel, *requests: bytes, token: str = "") -> list[bytes]:
    """What 0.1 is answered to requests on a stream."""
    metadata = [("authorization", f"Bearer {token}")] if token else None
    draw = one.stream_stream("/percola.Oracle/Draw")
    return list(draw(iter(requests), metadata=metadata, timeout=DEADLINE))


def refused(one: grpc.Channel, token: str = "") -> tuple[str, str]:
    """The status and the sentence with which a request is refused."""
    with pytest.raises(grpc.RpcError) as caught:
        asked(one, ONE, token=token)
    error: Any = caught.value
    return error.code().name, error.details()


def test_it_gets_timestamps_beside_clients_of_this_release(stack: ExitStack) -> None:
    server = serving(stack, token="sesame")
    new = NetworkOracle([server.address], token="sesame")
    stack.callback(new.close)
    assert new.timestamp() == 1
    old = channel(stack, server.address)
    source = b"\x1a\x10" + server.ranges.source.encode()
    assert asked(old, ONE, THREE, LAST, token="sesame") == [
        b"\x08\x02\x10\x01" + source,
        b"\x08\x03\x10\x03" + source,
        b"\x08\x05" + source,
    ]
    assert new.timestamp() == 6
    assert refused(old, "wrong") == ("UNAUTHENTICATED", "The token is missing or wrong.")
    assert server.metrics.registry.get_sample_value("percola_oracle_former_draws_total") == 3
    assert server.metrics.handed_out() == 6
    # A stream that stays open does not keep the server from stopping.
    never = old.stream_stream("/percola.Oracle/Draw")(
        iter(lambda: ONE, b""), metadata=[("authorization", "Bearer sesame")]
    )
    next(never)
    folder = Path(server._former._folder)
    assert folder.stat().st_mode & 0o77 == 0
    in_thread(server.stop).result(DEADLINE)
    assert not folder.exists()


def test_it_may_use_tls_and_is_told_if_it_does_not(stack: ExitStack, certificates: Path) -> None:
    def read(name: str) -> bytes:
        return (certificates / name).read_bytes()

    tls = Tls(read("server.pem"), read("server.key"), read("client.pem"))
    server = serving(stack, tls=tls)
    shown = grpc.ssl_channel_credentials(read("server.pem"), read("client.key"), read("client.pem"))
    secure = stack.enter_context(grpc.secure_channel(server.address, shown))
    assert [raw[:4] for raw in asked(secure, ONE, ONE)] == [
        b"\x08\x01\x10\x01",
        b"\x08\x02\x10\x01",
    ]
    code, why = refused(channel(stack, server.address))
    assert (code, why) == ("UNIMPLEMENTED", "This oracle serves with TLS: set PERCOLA_ORACLE_CA")


def test_a_standby_sends_it_to_another_oracle(stack: ExitStack) -> None:
    store = MemoryStore()
    stack.enter_context(leading(store=store, lease=60))
    standby = stack.enter_context(OracleServer(store, HERE, lease=60))
    assert refused(channel(stack, standby.address))[0] == "FAILED_PRECONDITION"


def test_without_grpcio_it_is_told_what_to_do(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serving(stack)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, why = refused(channel(stack, server.address))
    assert code == "UNIMPLEMENTED"
    assert why == (
        "This oracle is newer: upgrade this process, or pip install grpcio where the oracle runs"
    )
    new = NetworkOracle([server.address])
    assert new.timestamp() == 1
    new.close()
