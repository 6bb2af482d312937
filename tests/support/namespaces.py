"""Networks of their own on this machine, whose cables a test may pull: Linux network namespaces.

    with Network() as network:                # a bridge; `network.address` is this side's
        far = network.namespace()             # a namespace, joined to the bridge by a cable
        subprocess.Popen([*far.prefix, "…"])  # runs there, and listens on far.address
        far.cut(network)                      # the cable is out: packets go nowhere, either way
        far.mend(network)

It takes root. What a process that was killed has left is removed by the next one that comes.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from needs import lack, need

_NAMES: Final = re.compile(r"pc([0-9a-z]+)-\d+")
_NETWORKS: Final = range(1, 255)


def require_namespaces() -> None:
    """To be called where networks are made: only root can."""
    need("networks")
    if os.geteuid() != 0:
        lack("networks", "Cutting networks takes root: run the tests as root to see partitions.")
    tried = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "pc0", "type", "bridge"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if tried.returncode:
        lack("networks", f"Networks cannot be made here: {tried.stderr.strip().splitlines()[-1]}")


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Oracles and clients that are started have a token in common, as beyond loopback they must."""
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text("for tests only\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERCOLA_ORACLE_TOKEN_FILE", str(file))
        yield


def ip(*arguments: str) -> str:
    """Run `ip`; what it prints. A failure says what `ip` said."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr.strip()}"
    return done.stdout


class Namespace:
    """A network of its own, with one cable or more to bridges of this side.

    Attributes:
        name: as `ip netns` has it.
        address: its own on the first cable.
        prefix: what a command begins with that is to run there.
    """

    def __init__(self, network: Network, number: int) -> None:
        self.name = f"{network.name}-{number}"
        self.prefix = ("ip", "netns", "exec", self.name)
        self.address = ""
        self._cables: dict[str, str] = {}
        ip("netns", "add", self.name)

    def join(self, network: Network) -> str:
        """Lay a cable to a bridge; the address of this namespace on it."""
        ip("-n", self.name, "link", "set", "lo", "up")
        number = len(self._cables)
        here, there = f"{self.name}c{number}", f"v{number}"
        self._cables[network.name] = here
        ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", self.name)
        ip("link", "set", here, "master", network.name, "up")
        address = network.next_address()
        ip("-n", self.name, "addr", "add", f"{address}/24", "dev", there)
        ip("-n", self.name, "link", "set", there, "up")
        self.address = self.address or address
        return address

    def close(self) -> None:
        """Remove it and its cables."""
        for cable in self._cables.values():
            subprocess.run(["ip", "link", "del", cable], capture_output=True, check=False)
        ip("netns", "del", self.name)

    def cut(self, network: Network) -> None:
        """Pull its cable to a bridge."""
        ip("link", "set", self._cables[network.name], "down")

    def mend(self, network: Network) -> None:
        """Put it in again."""
        ip("link", "set", self._cables[network.name], "up")


class Network:
    """A bridge with an address of this side, and namespaces joined to it; a context manager."""

    def __init__(self) -> None:
        remove_left()
        self._numbers = itertools.count(1)
        self._hosts = itertools.count(2)
        self._stack = ExitStack()
        taken = ip("-4", "addr", "show")
        self.subnet = next(one for one in _NETWORKS if f"10.213.{one}." not in taken)
        self.prefix = f"10.213.{self.subnet}"
        self.name = f"pc{_base36(os.getpid())}-{self.subnet}"
        self.address = f"{self.prefix}.1"

    def __enter__(self) -> Network:
        with self._stack as stack:
            ip("link", "add", self.name, "type", "bridge")
            stack.callback(ip, "link", "del", self.name)
            ip("addr", "add", f"{self.address}/24", "dev", self.name)
            ip("link", "set", self.name, "up")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def next_address(self) -> str:
        """An address on the bridge that nobody has."""
        return f"{self.prefix}.{next(self._hosts)}"

    def namespace(self) -> Namespace:
        """Another namespace, joined to the bridge; its processes must have ended before this."""
        made = Namespace(self, next(self._numbers))
        self._stack.callback(made.close)
        made.join(self)
        return made


def remove_left() -> None:
    """Remove the bridges and namespaces of processes that were killed."""
    for command, kind in ((("netns", "list"), "netns"), (("-j", "link", "show"), "link")):
        said = ip(*command)
        if kind == "netns":
            names = [line.split()[0] for line in said.splitlines() if line.strip()]
        else:
            names = [str(one["ifname"]) for one in json.loads(said or "[]")]
        for name in names:
            found = _NAMES.match(name)
            if found and not Path(f"/proc/{int(found[1], 36)}").exists():
                subprocess.run(["ip", kind, "del", name], capture_output=True, check=False)


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, rest = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[rest] + digits
    return digits
