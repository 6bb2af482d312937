"""Where a repository is: the one place that tells addresses apart.

    ./repo, lmdb:./repo             on LMDB: many processes of one machine, no server
    memory:                         in this process's memory, for tests
    hbase://host,host/namespace     on HBase, from many machines            (?oracle=…)
    bigtable://project/instance     on Cloud Bigtable, from many machines   (?oracle=…&zookeeper=…)

`percola.connect.local` opens the first kind, `percola.connect.cluster` the last two.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode

from percola.connect.local import folder_of
from percola.errors import ConflictingOptionsError, NotARepositoryError, UsageError

NETWORK: Final = ("bigtable", "hbase")
"""The schemes of stores that many machines share."""

_URL: Final = re.compile(r"([a-z][a-z0-9+.-]+)://.*", re.DOTALL)
_ZOOKEEPER_PORT: Final = 2181
_SERVER: Final = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[^:/\s,\[\]]+):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class NetworkAddress:
    """The address of a repository on a network store.

    Attributes:
        text: as it was given.
        scheme: one of `NETWORK`.
        store: what is left for the store to read, without the two lists.
        oracles: HOST:PORT of each oracle process.
        zookeeper: HOST:PORT of each server of the ZooKeeper ensemble; HBase's own if the address
            names no other.
    """

    text: str
    scheme: str
    store: str
    oracles: Sequence[str]
    zookeeper: Sequence[str]

    def refuse_durability(self, durability: str | None) -> None:
        """Raise ConflictingOptionsError if a durability is given: it is the store's own."""
        if durability is not None:
            raise ConflictingOptionsError(
                f"The durability of {self.store} is the store's own: leave the option out."
            )


def is_memory(address: str) -> bool:
    """Whether it means a repository in this process's memory."""
    return address in ("memory:", "memory://")


def network_address(address: str) -> NetworkAddress | None:
    """The parts of a network store's address, None for one of another kind.

    Raises UsageError for lists of servers that do not read so.
    """
    found = _URL.fullmatch(address)
    if found is None or found[1] not in NETWORK:
        return None
    place, _, query = address.partition("?")
    lists: dict[str, Sequence[str]] = {"oracle": (), "zookeeper": ()}
    rest: list[tuple[str, str]] = []
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in lists:
            rest.append((name, value))
        elif lists[name]:
            raise UsageError(f"{address!r} names {name}= twice: write one list, A:PORT,B:PORT.")
        else:
            lists[name] = _servers(address, name, value)
    store = f"{place}?{urlencode(rest)}" if rest else place
    if found[1] == "hbase" and not lists["zookeeper"]:
        quorum = place.removeprefix("hbase://").partition("/")[0]
        lists["zookeeper"] = [
            one if ":" in one else f"{one}:{_ZOOKEEPER_PORT}" for one in quorum.split(",")
        ]
    return NetworkAddress(address, found[1], store, lists["oracle"], lists["zookeeper"])


def portable(address: str | os.PathLike[str]) -> str:
    """The address as it means the same in every process: of this machine if it is a folder.

    Raises NotARepositoryError for a repository in memory or an address of no store, UsageError for
    a network store's address that does not read so.
    """
    text = os.fspath(address)
    if is_memory(text):
        raise NotARepositoryError(
            "A memory repository exists in one process only, and this needs others to reach it: "
            "use a folder."
        )
    return text if network_address(text) is not None else str(folder_of(text).absolute())


def _servers(address: str, name: str, text: str) -> list[str]:
    servers = [one.strip() for one in text.split(",")]
    for one in servers:
        found = _SERVER.fullmatch(one)
        if found is None or not 0 < int(found[1]) < 2**16:
            raise UsageError(
                f"{one!r} in {address!r} is not HOST:PORT: write {name}=HOST:PORT, or several with "
                "commas between them."
            )
    return servers
