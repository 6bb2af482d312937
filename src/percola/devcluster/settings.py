"""The configuration of each process of the development cluster: ports, files, command line.

A `Layout` is the number of processes, their ports and memory; it is stored in the cluster's folder,
so that another shell finds the same cluster. Everything listens on 127.0.0.1 only, by default:
network tests put processes into separate namespaces, where each has another address. The ports of a
cluster are consecutive, below those that the kernel gives to outgoing connections, so that the port
of a killed server is still free when it restarts.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import socket
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from percola.devcluster.pids import marks
from percola.errors import PercolaError

HOST: Final = "127.0.0.1"
PORTS: Final = 56
"""How many ports in a row belong to a cluster, whether it uses them all or not."""

FIRST_PORTS: Final = range(21_000, 32_000, PORTS)
"""Where the ports of a cluster may begin by default."""

HEAP: Final[Mapping[str, int]] = {
    "zookeeper": 128,
    "namenode": 256,
    "datanode": 128,
    "master": 384,
    "regionserver": 768,
}
"""MiB of heap for each process of a kind; each takes about 150 more."""

SMALL_HEAP: Final[Mapping[str, int]] = {
    "zookeeper": 64,
    "namenode": 128,
    "datanode": 96,
    "master": 256,
    "regionserver": 512,
}
"""The same for a cluster of one region server."""

OPTIONS: Final = "PERCOLA_HBASE_SERVER_JVM_OPTIONS"
"""The variable with options for the Java of every process; they overrule those set here."""

SESSION: Final = 90
"""Seconds for which a server may be silent before it is considered dead; HBase's own default."""

MOST: Final[Mapping[str, int]] = {"region_servers": 15, "data_nodes": 7, "zookeepers": 3}
"""How many of each a cluster may have."""

_LOW: Final = 7  # Region servers with ports below the DataNodes'.
_ENSEMBLE: Final = 48  # Above them, what several ZooKeeper servers need besides the first port.

MAINS: Final[Mapping[str, tuple[str, ...]]] = {
    "zookeeper": ("org.apache.zookeeper.server.quorum.QuorumPeerMain", "{conf}/zoo.cfg"),
    "format": (
        "org.apache.hadoop.hdfs.server.namenode.NameNode",
        "-format",
        "-force",
        "-nonInteractive",
    ),
    "namenode": ("org.apache.hadoop.hdfs.server.namenode.NameNode",),
    "datanode": ("org.apache.hadoop.hdfs.server.datanode.DataNode",),
    "master": ("org.apache.hadoop.hbase.master.HMaster", "start"),
    "regionserver": ("org.apache.hadoop.hbase.regionserver.HRegionServer", "start"),
}

# Packages that Hadoop and HBase access by reflection; Java 17 denies that by default.
_OPEN: Final = (
    *(f"--add-opens=java.base/java.{part}=ALL-UNNAMED" for part in ("io", "lang", "nio", "util")),
    "--add-opens=java.base/java.lang.reflect=ALL-UNNAMED",
    "--add-opens=java.base/java.net=ALL-UNNAMED",
    "--add-opens=java.base/java.util.concurrent=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.util.random=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "--add-modules=jdk.unsupported",
    "-Dorg.apache.hbase.thirdparty.io.netty.tryReflectionSetAccessible=true",
)

_LOGGING: Final = """\
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = ${sys:percola.log}
appender.file.filePattern = ${sys:percola.log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{ISO8601} %-5p [%t] %c{2.}: %m%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 32MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
rootLogger.level = INFO
rootLogger.appenderRef.file.ref = file
logger.audit.name = org.apache.hadoop.hdfs.server.namenode.FSNamesystem.audit
logger.audit.level = WARN
logger.blocks.name = BlockStateChange
logger.blocks.level = WARN
logger.state.name = org.apache.hadoop.hdfs.StateChange
logger.state.level = WARN
"""


class ClusterError(PercolaError):
    """The development cluster cannot be started or did not become ready; no process is left."""


@dataclass(frozen=True)
class Layout:
    """How many processes a cluster has, their memory, and where their ports begin.

    Attributes:
        region_servers: how many HBase region servers, 1 to 15.
        data_nodes: how many HDFS DataNodes, 1 to 7; up to three of them hold each block.
        first_port: the lowest port; that of the first ZooKeeper server.
        heap: MiB of heap for each process of a kind; the kinds are the keys of `HEAP`.
        host: the address on which everything listens.
        away: of region servers in network namespaces of their own: (address, namespace) by name.
        session: seconds for which a region server or DataNode may be silent before the others take
            it for dead, 2 or more. The master's are never fewer than `SESSION`, for it has no
            substitute.
        settings: further settings of HBase's processes, by their names in `hbase-site.xml`.
        zookeepers: how many ZooKeeper servers, 1 to 3; three go on when one of them is lost.
    """

    region_servers: int
    data_nodes: int
    first_port: int
    heap: Mapping[str, int] = field(default_factory=lambda: dict(HEAP))
    host: str = HOST
    away: Mapping[str, Sequence[str]] = field(default_factory=dict)
    session: int = SESSION
    settings: Mapping[str, str] = field(default_factory=dict)
    zookeepers: int = 1

    def __post_init__(self) -> None:
        for name, most in MOST.items():
            if not 1 <= getattr(self, name) <= most:
                raise ClusterError(
                    f"A development cluster has 1 to {most} {name.replace('_', ' ')}, not "
                    f"{getattr(self, name)}."
                )
        if self.session < 2:
            raise ClusterError(
                "Servers of a development cluster may be silent for 2 seconds or more, not "
                f"{self.session}: they report every second."
            )
        if unknown := {name for name in self.away if kind_of(name)[0] != "regionserver"}:
            raise ClusterError(
                f"Only region servers can be in a network namespace of their own, not "
                f"{', '.join(sorted(unknown))}."
            )
        if unknown := set(self.heap) ^ set(HEAP):
            raise ClusterError(
                f"The heap is said in MiB for each of {', '.join(HEAP)}; of these, or beside "
                f"them: {', '.join(sorted(unknown))}."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all processes, in the order in which they are started."""
        return (
            *self._zookeepers(),
            "namenode",
            *(f"datanode-{number}" for number in range(1, self.data_nodes + 1)),
            "master",
            *(f"regionserver-{number}" for number in range(1, self.region_servers + 1)),
        )

    @property
    def quorum(self) -> str:
        """Where the ZooKeeper servers listen: HOST:PORT, with commas between them."""
        return ",".join(f"{self.host}:{self.ports(name)[0]}" for name in self._zookeepers())

    def ensemble(self) -> str:
        """The lines of `zoo.cfg` by which ZooKeeper servers know each other; none for one alone."""
        lines = []
        for name in self._zookeepers() if self.zookeepers > 1 else ():
            peer, election = self.ports(name)[1:]
            lines.append(f"server.{kind_of(name)[1]}={self.host}:{peer}:{election}\n")
        return "initLimit=30\nsyncLimit=10\n" + "".join(lines) if lines else ""

    def _zookeepers(self) -> Sequence[str]:
        if self.zookeepers == 1:
            return ("zookeeper",)
        return [f"zookeeper-{number}" for number in range(1, self.zookeepers + 1)]

    def ports(self, name: str) -> tuple[int, ...]:
        """The ports that a process listens on; the first is the one that its clients know."""
        kind, number = kind_of(name)
        base = self.first_port
        above = base + _ENSEMBLE
        return {
            # Of an ensemble, also for each other: the leader's port, and that of elections.
            "zookeeper": (
                base if number < 2 else above + number - 2,
                *((above + 2 * number, above + 2 * number + 1) if number else ()),
            ),
            "format": (),
            "namenode": (base + 1, base + 2),  # the second: HTTP, for people and for readiness
            "master": (base + 3, base + 4),  # likewise
            "regionserver": (base + 4 + number + (4 * MOST["data_nodes"] if number > _LOW else 0),),
            "datanode": tuple(base + 4 + _LOW + 4 * (number - 1) + i for i in range(1, 5)),
        }[kind]

    def host_of(self, name: str) -> str:
        """The address on which a process listens."""
        return self.away[name][0] if name in self.away else self.host

    def save(self, folder: Path) -> None:
        """Keep it in the cluster's folder."""
        draft = folder / f".cluster.{os.getpid()}"
        draft.write_text(json.dumps(asdict(self), indent=2) + "\n")
        draft.replace(folder / "cluster.json")

    @classmethod
    def load(cls, folder: Path) -> Layout | None:
        """The one kept in the folder; None if there is none.

        Raises:
            ClusterError: the file is not what `save` writes.
        """
        file = folder / "cluster.json"
        try:
            return cls(**json.loads(file.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise ClusterError(
                f"{file} does not describe a development cluster ({error}): remove {folder}, or "
                "name another folder."
            ) from error


def kind_of(name: str) -> tuple[str, int]:
    """`("regionserver", 2)` for `regionserver-2`; `("master", 0)` for `master`."""
    kind, _, number = name.partition("-")
    return kind, int(number or 0)


# --- Ports ----------------------------------------------------------------------------------


def is_free(port: int, host: str = HOST) -> bool:
    """Whether a server can listen on this port of this machine now."""
    with socket.socket() as probe:
        # As Java does it: connections of a server that was killed are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def becomes_free(port: int, seconds: float = 1.0, host: str = HOST) -> bool:
    """The same, if need be a moment later: the kernel lets go of a killed server's port after it
    has said that the server is gone.
    """
    end = time.monotonic() + seconds
    while not (free := is_free(port, host)) and time.monotonic() < end:
        time.sleep(0.005)
    return free


def choose_ports(folder: Path, firsts: range = FIRST_PORTS, host: str = HOST) -> int:
    """The first of a row of free ports; the same for the same folder, if they are free.

    What is wrong with a `host` that is not this machine's is not said here.

    Raises:
        ClusterError: there is no such row.
    """
    start = zlib.crc32(os.fsencode(folder)) % len(firsts)
    rows: list[int] = [*firsts[start:], *firsts[:start]]
    if not is_free(0, host):
        host = HOST
    for first in rows:
        if all(is_free(port, host) for port in range(first, first + PORTS)):
            return first
    raise ClusterError(
        f"There are no {PORTS} free ports in a row between {firsts.start} and {firsts.stop}: end "
        "what listens there (`ss -ltnp` lists it), or say which port is to be the first."
    )


# --- Files ----------------------------------------------------------------------------------


def write_files(folder: Path, layout: Layout, name: str) -> Path:
    """Write the settings of a process; returns their folder."""
    kind, _ = kind_of(name)
    conf = folder / "conf" / name
    data, scratch = folder / "data" / name, folder / "tmp" / name
    shutil.rmtree(scratch, ignore_errors=True)
    for needed in (conf, data, scratch, folder / "logs", folder / "pids"):
        needed.mkdir(parents=True, exist_ok=True)
    (conf / "log4j2.properties").write_text(_LOGGING)
    if kind == "zookeeper":
        (data / "myid").write_text(f"{max(1, kind_of(name)[1])}\n")
        (conf / "zoo.cfg").write_text(
            f"tickTime=1000\nmaxSessionTimeout={1000 * max(layout.session, SESSION)}\n"
            f"dataDir={data}\nclientPort={layout.ports(name)[0]}\n"
            f"clientPortAddress={layout.host}\nadmin.enableServer=false\nmaxClientCnxns=0\n"
            f"4lw.commands.whitelist=ruok,srvr,cons,mntr\n{layout.ensemble()}"
        )
        return conf
    for file, settings in (
        ("core-site.xml", _core(layout)),
        ("hdfs-site.xml", _hdfs(layout, name, data)),
        ("hbase-site.xml", _hbase(layout, name, scratch)),
    ):
        (conf / file).write_text("".join(_xml(settings)))
    # Their web servers insist on a folder of pages, which the jars do not have.
    for pages in ("webapps/hdfs", "webapps/datanode", "hbase-webapps/master"):
        (conf / pages / "WEB-INF").mkdir(parents=True, exist_ok=True)
    # Figures in JMX are then a second old at most; readiness is read from them.
    (conf / "hadoop-metrics2-hbase.properties").write_text("*.period=1\n")
    return conf


def _xml(settings: Mapping[str, object]) -> Iterator[str]:
    yield '<?xml version="1.0"?>\n<configuration>\n'
    for name, value in settings.items():
        word = str(value).lower() if isinstance(value, bool) else str(value)
        yield f"  <property><name>{name}</name><value>{escape(word)}</value></property>\n"
    yield "</configuration>\n"


def _core(layout: Layout) -> dict[str, object]:
    return {"fs.defaultFS": f"hdfs://{layout.host}:{layout.ports('namenode')[0]}"}


def _hdfs(layout: Layout, name: str, data: Path) -> dict[str, object]:
    """HDFS: a lost DataNode is avoided after its session, given up after twice that and a bit."""
    kind, _ = kind_of(name)
    session = 1000 * layout.session
    settings: dict[str, object] = {
        "dfs.replication": min(3, layout.data_nodes),
        "dfs.permissions.enabled": False,
        "dfs.heartbeat.interval": 1,
        "dfs.namenode.heartbeat.recheck-interval": session,
        "dfs.namenode.stale.datanode.interval": max(3000, session),
        "dfs.namenode.avoid.read.stale.datanode": True,
        "dfs.namenode.avoid.write.stale.datanode": True,
        "dfs.client.socket-timeout": max(10_000, session),
        # A writer that loses one of three DataNodes goes on with two.
        "dfs.client.block.write.replace-datanode-on-failure.best-effort": True,
    }
    if kind in ("namenode", "format"):
        rpc, http = layout.ports("namenode")
        settings |= {
            "dfs.namenode.name.dir": f"file://{data.with_name('namenode')}",
            "dfs.namenode.rpc-address": f"{layout.host}:{rpc}",
            "dfs.namenode.http-address": f"{layout.host}:{http}",
            "dfs.namenode.datanode.registration.ip-hostname-check": False,
            "dfs.namenode.safemode.extension": 0,
            "dfs.namenode.safemode.min.datanodes": 1,
            "dfs.namenode.handler.count": 8,
        }
    if kind == "datanode":
        blocks, ipc, http, proxy = layout.ports(name)
        settings |= {
            "dfs.datanode.data.dir": f"file://{data}",
            "dfs.datanode.hostname": layout.host,
            "dfs.datanode.address": f"{layout.host}:{blocks}",
            "dfs.datanode.ipc.address": f"{layout.host}:{ipc}",
            "dfs.datanode.http.address": f"{layout.host}:{http}",
            "dfs.datanode.http.internal-proxy.port": proxy,
            "dfs.datanode.handler.count": 5,
            # Also a small disk is used: by default a DataNode leaves 1 GB free.
            "dfs.datanode.round-robin-volume-choosing-policy.additional-available-space": 0,
        }
    return settings


def _hbase(layout: Layout, name: str, scratch: Path) -> dict[str, object]:
    """HBase: a killed region server is noticed after its session."""
    kind, _ = kind_of(name)
    host = layout.host_of(name)
    session = max(layout.session, SESSION) if kind == "master" else layout.session
    settings: dict[str, object] = {
        "hbase.rootdir": f"hdfs://{layout.host}:{layout.ports('namenode')[0]}/hbase",
        "hbase.cluster.distributed": True,
        "hbase.zookeeper.quorum": layout.quorum,
        "zookeeper.session.timeout": 1000 * session,
        "hbase.tmp.dir": scratch,
        "hbase.unsafe.regionserver.hostname": host,
        "hbase.master.hostname": layout.host,
        "hbase.master.ipc.address": layout.host,
        "hbase.regionserver.ipc.address": host,
        "hbase.regionserver.info.port": -1,
        "hbase.regionserver.msginterval": 1000,
        # A lost server's log is closed by HDFS after a heartbeat or two, not four seconds.
        "hbase.lease.recovery.first.pause": 1000,
        # How long the master waits for a server that no packet reaches any more, not a minute.
        "hbase.rpc.timeout": 10000,
        "hbase.regionserver.handler.count": 20,
        # Tables are many and small here: 2 MB for each family of each region would fill the heap.
        "hbase.hregion.memstore.mslab.chunksize": 256 * 1024,
        "hbase.hregion.memstore.mslab.max.allocation": 64 * 1024,
        "hbase.master.wait.on.regionservers.mintostart": 1,
        "hbase.master.wait.on.regionservers.maxtostart": layout.region_servers,
        "hbase.coprocessor.enabled": True,
        "hbase.coprocessor.user.enabled": True,
    }
    if kind == "master":
        rpc, http = layout.ports(name)
        settings |= {
            "hbase.master.port": rpc,
            "hbase.master.info.port": http,
            "hbase.master.info.bindAddress": layout.host,
        }
    if kind == "regionserver":
        settings["hbase.regionserver.port"] = layout.ports(name)[0]
    return {**settings, **layout.settings}


# --- Command lines --------------------------------------------------------------------------


def command(folder: Path, layout: Layout, name: str, java: Path) -> list[str]:
    """The command that starts a process; its jars and settings come by `environment`."""
    kind, _ = kind_of(name)
    conf, logs = folder / "conf" / name, folder / "logs"
    heap = layout.heap["namenode" if kind == "format" else kind]
    main = [word.format(conf=conf) for word in MAINS[kind]]
    within = ["ip", "netns", "exec", layout.away[name][1]] if name in layout.away else []
    return [
        *within,
        str(java),
        f"-Xmx{heap}m",
        f"-Xms{heap // 4}m",
        f"-XX:MaxDirectMemorySize={max(128, heap // 2)}m",
        # For two cores and small heaps; the rest lives too short a life for the second compiler.
        "-XX:+UseSerialGC",
        *([] if kind == "regionserver" else ["-XX:TieredStopAtLevel=1"]),
        "-XX:+ExitOnOutOfMemoryError",
        f"-XX:ErrorFile={logs}/{name}.crash",
        "-Djava.net.preferIPv4Stack=true",
        f"-Djava.io.tmpdir={folder}/tmp/{name}",
        f"-Dlog4j2.configurationFile={conf}/log4j2.properties",
        "-Dzookeeper.jmx.log4j.disable=true",
        # What a killed server has written stands in the page cache; a busy disk takes seconds,
        # for which no session could be kept.
        *(["-Dzookeeper.forceSync=no"] if kind == "zookeeper" else []),
        f"-Dpercola.log={logs}/{name}.log",
        *_own_options(),
        *marks(folder, name),
        *_OPEN,
        *main,
    ]


def _own_options() -> list[str]:
    text = os.environ.get(OPTIONS, "")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ClusterError(
            f"{OPTIONS}={text} cannot be split into options as a shell does: {error}."
        ) from None


def environment(folder: Path, name: str, jars: Path) -> dict[str, str]:
    """The environment of a process: this one's, less what would speak for another HBase."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("HADOOP_", "HBASE_", "HDFS_", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS"))
    }
    # The C library's arenas, of which a JVM's many threads would have many.
    return {**kept, "CLASSPATH": f"{folder}/conf/{name}:{jars}/*", "MALLOC_ARENA_MAX": "2"}


def find_java() -> Path:
    """The `java` to start everything with: JAVA_HOME's, or the first on the path.

    Raises:
        ClusterError: there is none, or one that is older than 17.
    """
    home = os.environ.get("JAVA_HOME")
    found = f"{home}/bin/java" if home else shutil.which("java")
    if not found or not os.access(found, os.X_OK):
        raise ClusterError(
            "The development cluster needs a Java runtime of version 17 or later, and "
            + (f"JAVA_HOME={home} is none" if home else "none was found")
            + ": install one (Debian, Ubuntu: apt-get install openjdk-17-jre-headless), or point "
            "JAVA_HOME to one."
        )
    java = Path(found)
    with contextlib.suppress(OSError):
        for line in (java.resolve().parents[1] / "release").read_text().splitlines():
            key, _, version = line.partition("=")
            if key == "JAVA_VERSION" and int(version.strip('"').split(".")[0].split("-")[0]) < 17:
                raise ClusterError(
                    f"The development cluster needs Java 17 or later, and {java} is {version}: "
                    "point JAVA_HOME to a later one."
                )
    return java


def find_jars() -> Path:
    """The folder of the servers' jars: PERCOLA_HBASE_SERVER_JARS, or where they are fetched to.

    Raises:
        ClusterError: they are not there.
    """
    own = os.environ.get("PERCOLA_HBASE_SERVER_JARS")
    try:
        jars = Path(own) if own else Path.home() / ".cache" / "percola" / "hbase-server"
    except RuntimeError as error:
        raise ClusterError(
            "The jars of HBase's servers are looked for in the user's home folder, and this user "
            "has none: set HOME, or have PERCOLA_HBASE_SERVER_JARS name a folder that holds them."
        ) from error
    if not any(jars.glob("hbase-server-*.jar")):
        raise ClusterError(
            f"The jars of HBase's servers are not in {jars}: "
            + (
                "PERCOLA_HBASE_SERVER_JARS names the wrong folder."
                if own
                else "run 'percola hbase-jars server' to fetch them with Maven."
            )
        )
    return jars
