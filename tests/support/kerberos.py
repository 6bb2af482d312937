"""An HBase that takes nothing but Kerberos, and the KDC that it believes, for tests: two processes.

    with KerberosHBase(folder, wait_until) as site:
        Child(work, site.variables("user", USER), site.place("shop"))

Clients are processes of their own: who one is, is a matter of the whole JVM.

ZooKeeper, master and region server are one JVM and keep their files without HDFS, which would want
Kerberos as well. The KDC is the one that Hadoop's own tests use; all keys are in one keytab.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from hbase import require_jars
from needs import lack, need

from percola.devcluster import jars, pids, settings
from percola.devcluster.pids import ProcessId
from percola.devcluster.servers import Processes
from percola.devcluster.settings import Layout
from percola.store.hbase.client import Place

REALM: Final = "PERCOLA.TEST"
SERVER: Final = f"hbase/localhost@{REALM}"
USER: Final = f"shop@{REALM}"
STRANGER: Final = f"stranger@{REALM}"
"""One that HBase knows, and permits nothing."""

SECONDS: Final = 120

_SECURE: Final[Mapping[str, str]] = {
    "hbase.security.authentication": "kerberos",
    "hbase.master.kerberos.principal": SERVER,
    "hbase.regionserver.kerberos.principal": SERVER,
}
_SMALL: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")


def require_kdc() -> Path:
    """Fetch the jars of the KDC; their folder."""
    need("kerberos")
    try:
        return jars.install(jars.KDC)
    except jars.JarsError as error:
        lack("kerberos", str(error))


class KerberosHBase:
    """The KDC and HBase, in a folder; they run for the `with` block, whatever ends the test.

    Args:
        folder: for their files.
        wait_until: the fixture.
    """

    def __init__(self, folder: Path, wait_until: Callable[..., Any]) -> None:
        self.folder, self._wait_until = folder, wait_until
        self.krb5, self.keytab = folder / "krb5.conf", folder / "keytab"
        self._layout = Layout(1, 1, settings.choose_ports(folder))
        self._guard = Processes(folder, self._layout)
        self._children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> KerberosHBase:
        servers, kdc = require_jars()["server"], require_kdc()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._guard.start_guard()
        try:
            self._start_kdc(kdc)
            self._start_hbase(servers)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        pids.end_all(self.folder)
        for child in self._children:
            child.wait()
        self._guard.end_guard()

    def place(self, namespace: str) -> Place:
        """A namespace in it."""
        return Place(f"127.0.0.1:{self._layout.ports('zookeeper')[0]}", namespace)

    def variables(self, name: str, principal: str = "") -> dict[str, str]:
        """The environment of a client with settings of its own, made in a folder of this name.

        Args:
            principal: who it is, by the keytab; without one it has neither keytab nor ticket.
        """
        conf = self.folder / "clients" / name
        login = {
            "hbase.client.keytab.file": str(self.keytab),
            "hbase.client.keytab.principal": principal,
        }
        _write(conf / "hbase-site.xml", {**_SECURE, **(login if principal else {})})
        _write(conf / "core-site.xml", {"hadoop.security.authentication": "kerberos"})
        usual = os.environ.get("PERCOLA_HBASE_JVM_OPTIONS", "")
        return {
            "PERCOLA_HBASE_CONF": str(conf),
            "PERCOLA_HBASE_JVM_OPTIONS": f"{usual} -Djava.security.krb5.conf={self.krb5}",
            # Whoever runs the tests may have a ticket.
            "KRB5CCNAME": f"FILE:{self.folder}/no-tickets",
        }

    def _start_kdc(self, folder: Path) -> None:
        organisation, domain = REALM.split(".")
        port = self._layout.ports("namenode")[0]
        (self.folder / "kdc.properties").write_text(
            f"org.name={organisation}\norg.domain={domain}\nkdc.port={port}\n"
            "kdc.bind.address=localhost\n"
        )
        principals = [one.partition("@")[0] for one in (SERVER, USER, STRANGER)]
        self._run(
            "kdc",
            f"{folder}/*",
            ["-Xmx64m"],
            "org.apache.hadoop.minikdc.MiniKdc",
            str(self.folder),
            str(self.folder / "kdc.properties"),
            str(self.keytab),
            *principals,
            ready="MiniKdc Running",
        )

    def _start_hbase(self, folder: Path) -> None:
        conf, data = self.folder / "conf", self.folder / "data"
        guard = "org.apache.hadoop.hbase.security.access.AccessController"
        _write(
            conf / "hbase-site.xml",
            {
                **_SECURE,
                "hbase.security.authorization": "true",
                **{f"hbase.coprocessor.{one}.classes": guard for one in ("master", "region")},
                "hbase.coprocessor.regionserver.classes": guard,
                "hbase.master.keytab.file": str(self.keytab),
                "hbase.regionserver.keytab.file": str(self.keytab),
                "hbase.rootdir": data.as_uri(),
                "hbase.tmp.dir": str(self.folder / "tmp"),
                "hbase.zookeeper.property.dataDir": str(self.folder / "zookeeper"),
                "hbase.zookeeper.property.clientPort": str(self._layout.ports("zookeeper")[0]),
                "hbase.master.hostname": "localhost",
                "hbase.unsafe.regionserver.hostname": "localhost",
                "hbase.master.ipc.address": "127.0.0.1",
                "hbase.regionserver.ipc.address": "127.0.0.1",
                "hbase.master.port": str(self._layout.ports("master")[0]),
                "hbase.regionserver.port": str(self._layout.ports("regionserver-1")[0]),
                "hbase.master.info.port": "-1",
                "hbase.regionserver.info.port": "-1",
                "hbase.regionserver.handler.count": "5",
                "hbase.regionserver.msginterval": "500",
                "hbase.master.wait.on.regionservers.mintostart": "1",
                "hbase.master.wait.on.regionservers.maxtostart": "1",
                "hbase.hregion.memstore.mslab.chunksize": str(256 * 1024),
                "hbase.hregion.memstore.mslab.max.allocation": str(64 * 1024),
                # Files of this machine cannot promise what HDFS does.
                "hbase.unsafe.stream.capability.enforce": "false",
            },
        )
        _write(
            conf / "core-site.xml",
            {"hadoop.security.authentication": "kerberos", "fs.defaultFS": "file:///"},
        )
        (conf / "log4j2.properties").write_text(
            "rootLogger.level = INFO\nrootLogger.appenderRef.out.ref = out\n"
            "appender.out.type = Console\nappender.out.name = out\n"
            "appender.out.layout.type = PatternLayout\n"
            "appender.out.layout.pattern = %d{ISO8601} %-5p %c{2.}: %m%n\n"
        )
        self._run(
            "hbase",
            f"{conf}:{folder}/*",
            ["-Xmx384m", f"-Djava.security.krb5.conf={self.krb5}", *settings._OPEN],
            "org.apache.hadoop.hbase.master.HMaster",
            "start",
            ready="Master has completed initialization",
        )

    def _run(self, name: str, path: str, options: list[str], *main: str, ready: str) -> None:
        said = self.folder / f"{name}.out"
        java = str(settings.find_java())
        with open(said, "wb") as out:
            child = subprocess.Popen(
                [java, *_SMALL, *options, *pids.marks(self.folder, name), *main],
                cwd=self.folder,
                env={**os.environ, "CLASSPATH": path, "MALLOC_ARENA_MAX": "2"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._children.append(child)
        pids.note(self.folder, name, ProcessId.of_child(child.pid))

        def is_ready() -> bool:
            text = said.read_text(errors="replace")
            assert child.poll() is None, f"{name} has ended:\n{text[-3000:]}"
            return ready in text

        self._wait_until(is_ready, seconds=SECONDS, what=f"{name} to be ready: {said}")


def _write(file: Path, said: Mapping[str, str]) -> None:
    """A file of settings as Hadoop has them."""
    file.parent.mkdir(parents=True, exist_ok=True)
    properties = "".join(
        f"<property><name>{name}</name><value>{escape(value)}</value></property>\n"
        for name, value in said.items()
    )
    file.write_text(f"<configuration>\n{properties}</configuration>\n")
