"""A development cluster as a whole: start, status and stop."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from percola.devcluster import pids, settings
from percola.devcluster.servers import GRACE, Processes, Server, State, ask_to_end
from percola.devcluster.settings import SMALL_HEAP, ClusterError, Layout

NAMESPACE: Final = "percola"
LOOK_EVERY: Final = 0.1
UP_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Regions:
    """How the regions of a cluster are served.

    Attributes:
        live: region servers that the master considers alive.
        dead: those that it considers dead.
        served: regions on live servers.
        in_transition: regions that are being opened or closed.
    """

    live: int
    dead: int
    served: int
    in_transition: int


class Cluster:
    """A development cluster in a folder; as a context manager it is up for the block.

    Args:
        folder: the cluster's files; created if it is missing. A cluster that exists there is
            reused, with its tables and ports.
        region_servers: how many (1 to 15); None: as many as the existing cluster has, or 3.
        data_nodes: likewise (1 to 7).
        heap: MiB of heap for each process of a kind, instead of `settings.HEAP`.
        first_port: the first of its 56 ports; None: free ones below 32,000.
        host: the address of this machine on which everything listens; None: 127.0.0.1.
        away: region servers that run in network namespaces (`ip netns`) of their own, from which
            `host` can be reached: {"regionserver-2": (address there, name of the namespace)}.
        session: seconds for which a region server may be silent before it is considered dead: few,
            to see one killed and replaced; None: 90, which no busy machine exceeds.
        settings: further settings of HBase's processes, by their names in `hbase-site.xml`; they
            overrule what is set here.
        zookeepers: how many ZooKeeper servers (1 to 3); None: as many as the existing cluster has,
            or 1. Three go on when one of them is lost.

    Raises:
        ClusterError: the folder has a cluster of another layout, or cannot be used.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        region_servers: int | None = None,
        data_nodes: int | None = None,
        heap: Mapping[str, int] | None = None,
        first_port: int | None = None,
        host: str | None = None,
        away: Mapping[str, tuple[str, str]] | None = None,
        session: int | None = None,
        settings: Mapping[str, str] | None = None,
        zookeepers: int | None = None,
    ) -> None:
        self.folder = Path(folder).resolve()
        if wrong := re.search(r"[^\w./+@-]", str(self.folder)):
            raise ClusterError(
                f"A development cluster cannot stand in {self.folder}: Hadoop takes "
                f"{wrong[0]!r} in a path for something else. Name another folder."
            )
        if not hasattr(os, "pidfd_open") or not Path("/proc/self/stat").exists():
            raise ClusterError("A development cluster needs Linux, which this is not.")
        self.layout = _layout(
            self.folder,
            {
                "region_servers": region_servers,
                "data_nodes": data_nodes,
                "heap": None if heap is None else dict(heap),
                "first_port": first_port,
                "host": host,
                "away": None if away is None else {one: list(at) for one, at in away.items()},
                "session": session,
                "settings": None if settings is None else dict(settings),
                "zookeepers": zookeepers,
            },
        )
        self._processes = Processes(self.folder, self.layout)

    @classmethod
    def small(cls, folder: str | Path, *, session: int | None = None) -> Cluster:
        """One DataNode and one region server, with small heaps: enough for most tests."""
        return cls(folder, region_servers=1, data_nodes=1, heap=SMALL_HEAP, session=session)

    @property
    def quorum(self) -> str:
        """Where ZooKeeper listens, and all clients begin: `127.0.0.1:PORT`, or several of them."""
        return self.layout.quorum

    @property
    def address(self) -> str:
        """The address of a repository in it: `hbase://127.0.0.1:PORT/percola`."""
        return f"hbase://{self.quorum}/{NAMESPACE}"

    @property
    def web(self) -> str:
        """The master's pages about tables, regions and servers."""
        return f"http://{self.layout.host}:{self.layout.ports('master')[1]}/master-status"

    @property
    def logs(self) -> Path:
        """The folder of all logs."""
        return self.folder / "logs"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its processes, in the order in which they are started."""
        return self.layout.names

    def process(self, name: str) -> Server:
        """One of its processes: `zookeeper`, `namenode`, `datanode-1`, `master`, `regionserver-1`…

        Several ZooKeeper servers are `zookeeper-1`….

        Raises:
            ClusterError: it has none of this name.
        """
        if name not in self.names:
            raise ClusterError(
                f"The cluster in {self.folder} has no process {name!r}. It has these: "
                f"{', '.join(self.names)}."
            )
        return Server(self._processes, name)

    def status(self) -> list[State]:
        """The state of each process."""
        return [self.process(name).state for name in self.names]

    def check(self) -> None:
        """Check that every process runs, without calls to them, which may take long.

        Raises:
            ClusterError: one has ended; the message quotes its log.
        """
        for name in self.names:
            if not self.process(name).runs:
                raise ClusterError(
                    f"{name} of the cluster in {self.folder} has ended: "
                    f"{self._processes.last_words(name)}"
                )

    def _of(self, *kinds: str) -> list[Server]:
        names = (name for name in self.names if settings.kind_of(name)[0] in kinds)
        return [self.process(name) for name in names]

    # --- Up -------------------------------------------------------------------------------

    def __enter__(self) -> Cluster:
        end = time.monotonic() + UP_SECONDS
        with self._alone(end):
            if pids.running(self.folder):
                raise ClusterError(
                    f"The cluster in {self.folder} is up already: use it by its address "
                    f"{self.address}, or take it down first."
                )
            try:
                self._processes.start_guard()
                self._up(end)
            except BaseException as error:
                self._close()
                if isinstance(error, OSError):
                    raise self._cannot_stand(error) from error
                raise
        return self

    def up(
        self, seconds: float = UP_SECONDS, tell: Callable[[str], object] = lambda step: None
    ) -> None:
        """Start the processes that are not running; return once a table can be created and written.

        If another program does so just now, wait for that first.

        Args:
            seconds: how long that may take.
            tell: called with the name of each step that has something to start.

        Raises:
            ClusterError: no Java, no jars, a port is taken, a process ended, or a timeout. The
                processes that this call started have been stopped.
        """
        end = time.monotonic() + seconds
        with self._alone(end):
            self._up(end, tell)

    @contextlib.contextmanager
    def _alone(self, end: float) -> Iterator[None]:
        """Have no other program start the cluster meanwhile: it would stop what is started here."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            folder = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            raise self._cannot_stand(error) from error
        try:
            self._lock(folder, end)
            kept = Layout.load(self.folder)
            if kept is not None and kept != self.layout:
                raise ClusterError(
                    f"Another program has just made a cluster in {self.folder}: use that, by the "
                    f"address hbase://{kept.quorum}/{NAMESPACE}, or name another folder."
                )
            yield
        finally:
            os.close(folder)  # Also ends the lock.

    def _lock(self, folder: int, end: float) -> None:
        pause = threading.Event()
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > end:
                    raise ClusterError(
                        f"Another program is still starting the cluster in {self.folder}: wait "
                        "for it, or end it."
                    ) from None
            pause.wait(LOOK_EVERY)

    def _cannot_stand(self, error: OSError) -> ClusterError:
        return ClusterError(f"A development cluster cannot stand in {self.folder}: {error}.")

    def _up(self, end: float, tell: Callable[[str], object] = lambda step: None) -> None:
        missing = [server.name for server in self._of(*settings.HEAP) if not server.runs]
        self._processes.check_ports(missing)
        try:
            self.layout.save(self.folder)
            for what, kinds, ready in (
                ("HDFS", ("zookeeper", "namenode", "datanode"), self._hdfs_is_ready),
                ("HBase", ("master", "regionserver"), self._hbase_is_ready),
            ):
                servers = [server for server in self._of(*kinds) if server.name in missing]
                if servers:
                    tell(what)
                if what == "HDFS":
                    self._format(end)
                for server in servers:
                    server.start()
                self._await(what, ready, end)
        except BaseException as error:
            for name in missing:
                self._processes.kill(name)
            if isinstance(error, OSError):
                raise self._cannot_stand(error) from error
            raise

    def await_ready(self, seconds: float = 180.0) -> None:
        """Wait until the master has started and knows exactly the region servers that run.

        So it has noticed that a server was killed or stopped, though the server's regions may still
        be moving to another.

        Raises:
            ClusterError: a process ended by itself meanwhile, or a timeout.
        """
        end = time.monotonic() + seconds
        self._await("HDFS", self._hdfs_is_ready, end)
        self._await("HBase", self._hbase_is_ready, end)

    def region_servers(self) -> list[str]:
        """The region servers that the master considers alive: `regionserver-1`…, in order.

        Raises:
            ClusterError: the master does not answer.
        """
        figures = self._master()
        if figures is None:
            raise ClusterError(f"The master does not answer at {self.web}.")
        return self._alive(figures)

    def zookeeper_leader(self) -> Server:
        """The ZooKeeper server that leads the others, or the only one.

        Raises:
            ClusterError: none leads now.
        """
        for server in self._of("zookeeper"):
            if self._zookeeper_mode(server) in ("leader", "standalone"):
                return server
        raise ClusterError(
            f"None of the ZooKeeper servers of the cluster in {self.folder} leads now: one is "
            "being elected, or too few of them run."
        )

    def regions(self) -> Regions:
        """What the master says about regions and region servers now.

        Raises:
            ClusterError: the master does not answer.
        """
        server = self._master()
        assigning = self._figures(
            "master", "Hadoop:service=HBase,name=Master,sub=AssignmentManager"
        )
        if server is None or assigning is None:
            raise ClusterError(f"The master does not answer at {self.web}.")
        live = int(server["numRegionServers"])
        return Regions(
            live,
            int(server["numDeadRegionServers"]),
            round(float(server["averageLoad"]) * live),
            int(assigning["ritCount"]),
        )

    def _alive(self, figures: Mapping[str, Any]) -> list[str]:
        # HOST,PORT,STARTED;… with the milliseconds at which it began. A server that was killed
        # is listed until its session ends, also if another runs in its place by then.
        listed = str(figures.get("tag.liveRegionServers", "")).split(";")
        entries = [entry.split(",") for entry in listed if entry.count(",") == 2]
        began = {int(port): int(started) / 1000 for _, port, started in entries}
        return [
            server.name
            for server in self._of("regionserver")
            if began.get(server.port, -1.0) >= pids.noted_at(self.folder, server.name)
        ]

    def _format(self, end: float) -> None:
        current = self.folder / "data" / "namenode" / "current"
        # The image's checksum is the last of what formatting writes: without it, and where no
        # NameNode has run, that was interrupted.
        if any(current.glob("fsimage_*.md5")) or any(current.glob("edits_*")):
            return
        self._processes.start("format")
        if not self._processes.finish("format", end - time.monotonic()):
            raise ClusterError(
                f"HDFS could not be formatted: {self._processes.last_words('format')}"
            )

    def _await(self, what: str, ready: Callable[[], bool], end: float) -> None:
        servers = self._of(*settings.HEAP)
        # Also one that has ended by now: at once, before anybody looked.
        begun = [server for server in servers if pids.was_noted(self.folder, server.name)]
        pause = threading.Event()
        while not ready():
            for server in begun:
                if not server.runs:
                    raise ClusterError(
                        f"{server.name} ended while {what} was starting: "
                        f"{self._processes.last_words(server.name)}"
                    )
            if time.monotonic() > end:
                raise ClusterError(
                    f"{what} in {self.folder} did not come up in time; the logs are in {self.logs}."
                )
            pause.wait(LOOK_EVERY)

    def _hdfs_is_ready(self) -> bool:
        figures = self._figures("namenode", "Hadoop:service=NameNode,name=FSNamesystemState")
        running = len(self._answering("datanode"))
        return bool(
            self._zookeeper_is_ready()
            and figures
            and figures["FSState"] == "Operational"
            and figures["NumLiveDataNodes"] >= running
        )

    def _hbase_is_ready(self) -> bool:
        figures = self._master()
        if not figures or not int(figures.get("masterFinishedInitializationTime", 0)):
            return False
        return self._alive(figures) == self._answering("regionserver")

    def _answering(self, kind: str) -> list[str]:
        states = [server.state for server in self._of(kind)]
        return [state.name for state in states if state.pid and not state.stopped]

    def _zookeeper_is_ready(self) -> bool:
        running = self._answering("zookeeper")
        return bool(running) and all(self._zookeeper_mode(self.process(one)) for one in running)

    def _zookeeper_mode(self, server: Server) -> str:
        """`leader`, `follower` or `standalone`; empty if it serves nobody now."""
        try:
            with socket.create_connection((self.layout.host, server.port), 5) as asked:
                asked.sendall(b"srvr")
                told = b"".join(iter(lambda: asked.recv(4096), b""))
        except OSError:
            return ""
        found = re.search(rb"^Mode: (\w+)", told, re.MULTILINE)
        return found[1].decode() if found else ""

    def _master(self) -> dict[str, Any] | None:
        return self._figures("master", "Hadoop:service=HBase,name=Master,sub=Server")

    def _figures(self, name: str, bean: str) -> dict[str, Any] | None:
        """The metrics that a process serves; None if it does not answer yet."""
        connection = http.client.HTTPConnection(
            self.layout.host, self.layout.ports(name)[1], timeout=5
        )
        try:
            connection.request("GET", f"/jmx?qry={bean}")
            found = json.loads(connection.getresponse().read())["beans"]
        except (OSError, ValueError, KeyError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return dict(found[0]) if found else None

    # --- Down -----------------------------------------------------------------------------

    def down(self) -> None:
        """Stop every process; return once all have ended, after 20 seconds at most.

        HBase closes its regions first, so that the next start need not replay a log. Processes that
        do not end in time are killed, which loses no writes either.

        Raises:
            ClusterError: it is another user's.
        """
        try:
            self._down()
        except PermissionError as error:
            raise ClusterError(
                f"The cluster in {self.folder} cannot be taken down: its processes or files are "
                f"another user's ({error.strerror}). Do so as that user."
            ) from error

    def _down(self) -> None:
        for kinds, seconds in (
            (("master",), 4.0),
            (("regionserver",), GRACE),
            (("datanode", "namenode", "zookeeper"), 3.0),
        ):
            ending = [
                one for server in self._of(*kinds) if (one := self._processes.id(server.name))
            ]
            for process in ending:
                ask_to_end(process)
            end = time.monotonic() + seconds
            for process in ending:
                process.wait(max(0.0, end - time.monotonic()))
        self._processes.kill_all()

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        # Not by `down`: no orderly stop is needed here, and HBase recovers from kill -9.
        self._processes.kill_all()
        self._processes.end_guard()


def _layout(folder: Path, wanted: Mapping[str, Any]) -> Layout:
    """The layout of the folder's cluster, or, if there is none, the requested one.

    `wanted` are its fields by name; None: not given.
    """
    said = {name: value for name, value in wanted.items() if value is not None}
    kept = Layout.load(folder)
    if kept is None:
        usual = {"region_servers": 3, "data_nodes": 3}
        if "first_port" not in said:
            usual["first_port"] = settings.choose_ports(
                folder, host=said.get("host", settings.HOST)
            )
        return Layout(**(usual | said))
    for name, value in said.items():
        if getattr(kept, name) != value:
            raise ClusterError(
                f"{folder} holds a cluster with {name.replace('_', ' ')} {getattr(kept, name)}, "
                f"not {value}: leave that out, name another folder, or remove this one, with "
                "every table in it."
            )
    return kept
