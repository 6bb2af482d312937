"""A whole repository on servers, as a user has it: a store, an oracle, ZooKeeper, one address.

    with on_bigtable(folder, java_home) as servers, ExitStack() as stack:
        run("--repo", servers.address("shop", stack), …, **servers.variables)

Everything that knows of it knows its address alone, and of the emulator's the variable with which
Google's own programs are told of one. `Oracle` is the process of `percola oracle`.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Self

from commands import command, environment
from emulator import Emulator
from hbase import running_cluster
from zookeeper import ZooKeeper

LEASE: Final = 1.0


class Listening:
    """A process of a command of percola's that serves at an address until it is told to end."""

    def __init__(self, repo: str, name: str, *options: str, **variables: str) -> None:
        self.process = subprocess.Popen(
            command("--repo", repo, "--json", name, *options),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(**variables),
            text=True,
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said, f"the {name} ended at once"
        self.address: str = json.loads(said)["address"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.end()

    def end(self, number: int = signal.SIGKILL) -> str:
        """Send it a signal, and return what it still said."""
        self.process.send_signal(number)
        said, _ = self.process.communicate(timeout=90)
        return said


class Oracle(Listening):
    """A process of `percola oracle`."""

    def __init__(
        self, store: str, listen: str = "127.0.0.1:0", *options: str, **variables: str
    ) -> None:
        lease = ("--lease", str(LEASE))
        super().__init__(store, "oracle", "--listen", listen, *lease, *options, **variables)


class Relay(Listening):
    """A process of `percola relay`."""

    def __init__(self, address: str, listen: str = "127.0.0.1:0", **variables: str) -> None:
        super().__init__(address, "relay", "--listen", listen, **variables)


class Servers:
    """A store's servers; each repository that is asked for has an oracle of its own.

    Args:
        place: the store's address without the repository's name at its end.
        query: what else its repositories' addresses say.
        variables: what programs must have in their environment.
    """

    def __init__(self, place: str, query: Sequence[str], variables: Mapping[str, str]) -> None:
        self.variables = dict(variables)
        self._place, self._query = place, query

    def address(self, name: str, stack: ExitStack) -> str:
        """The address of a repository of this name, whose oracle starts here and ends there."""
        store = f"{self._place}/{name}"
        oracle = stack.enter_context(Oracle(store, **self.variables))
        return "?".join((store, "&".join((f"oracle={oracle.address}", *self._query))))


@contextmanager
def on_bigtable(
    folder: Path, java_home: Path, emulator: Emulator | None = None
) -> Iterator[Servers]:
    """Google's emulator, one that runs or else one of its own, and a ZooKeeper."""
    with ExitStack() as stack:
        emulator = emulator or stack.enter_context(Emulator())
        zookeeper = stack.enter_context(ZooKeeper(folder / "zookeeper", java_home))
        variables = {"BIGTABLE_EMULATOR_HOST": emulator.address}
        yield Servers("bigtable://project", [f"zookeeper={zookeeper.address}"], variables)


@contextmanager
def on_hbase(folder: Path) -> Iterator[Servers]:
    """A small cluster of HBase, whose ZooKeeper serves both. This process gets no Java by it."""
    with running_cluster(folder / "cluster") as cluster:
        yield Servers(f"hbase://{cluster.quorum}", [], {})
