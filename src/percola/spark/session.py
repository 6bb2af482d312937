"""§2.4 The paper's loaders are MapReduces; ours run on Spark, including a local session.

By default `local[*]` prints a page of notices, serves a web page, never retries a task, and
leaves its JVM running until Python ends. A session started here is quiet and stops its JVM:

- Java is located first, so that a missing Java gives a one-sentence error.
- Spark's own configuration, and that of an installation elsewhere on the machine (SPARK_HOME,
  SPARK_CONF_DIR), do not apply to local masters. On a cluster they do, unchanged.
- The console gets errors only. Lost tasks are not reported: they are retried, and permanent
  failures are raised in the driver.
- Its Python workers import from the same paths as this process.

A program that `spark-submit` started already has a JVM, with the master and the properties given
there. None of the above applies then: that JVM is used, and `spark-submit` ends it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from percola.errors import PercolaError
from percola.spark.catalog import JARS
from percola.spark.ctrl_c import interrupts_held, interrupts_kept

OLDEST_JAVA: Final = 17
ATTEMPTS: Final = 3
"""How often a local session runs a task before it gives up. Plain `local[N]` does not retry."""

_LOCAL: Final = re.compile(r"local(?:\[\s*(\*|[1-9]\d*)\s*(?:,\s*([1-9]\d*)\s*)?\])?")
_INSTALL: Final = (
    "Install one ('apt install openjdk-17-jre-headless', 'brew install openjdk', or "
    "https://adoptium.net), and set JAVA_HOME if it is not on the PATH."
)

_DRIVER_MEMORY: Final = "768m"
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
# It does not exist. A folder of its own for each session would make each class path another one,
# and Java can take the classes of Spark from an archive (CDS) only on the class path of the dump.
_NO_CONF: Final = Path(__file__).with_name("no-spark-conf")
# Spark's launcher requests the module, and no JVM option suppresses the warning.
_NOTICE: Final = "WARNING: Using incubator modules:"
_PIPE_BYTES: Final = 1 << 20
_JVM_END_SECONDS: Final = 20
GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
"""Set by `spark-submit` in the environment of the program that it runs."""
_SPARK_VARIABLES: Final = ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_LOCAL_IP")


class JavaMissingError(PercolaError):
    """Spark needs Java, and there is none on this machine that it can use."""


class SparkStartError(PercolaError):
    """Spark did not start; the message contains its last output."""


@contextlib.contextmanager
def spark_session(
    master: str = "local[*]",
    app: str = "percola",
    config: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """A Spark session for a `with` block.

    If this process has an active session, that one is returned unchanged and is not stopped.
    Otherwise one is started (5 to 10 seconds), and stopped at the end of the block with its JVM.
    In a program that `spark-submit` started, the session runs in its JVM, and `--master`, `--name`
    and `--conf` override the arguments.

    Args:
        master: Spark's master URL. `local[N]` is run as `local[N,3]`: tasks are retried.
        app: the application name in Spark's interfaces.
        config: additional Spark properties.

    Raises:
        JavaMissingError: no Java of version 17 or newer.
        SparkStartError: Spark did not start, or there is no such master.
    """
    with spark_context(master, app, config):
        yield SparkSession.builder.getOrCreate()


@contextlib.contextmanager
def spark_context(
    master: str = "local[*]",
    app: str = "percola",
    config: Mapping[str, str] | None = None,
) -> Iterator[SparkContext]:
    """Like `spark_session`, without SQL: for jobs of plain tasks; starts two seconds faster."""
    there = SparkContext._active_spark_context
    if there is not None:
        yield there
        return
    if GATEWAY in os.environ:  # Not only for the first session of the program.
        with _submitted(app, config or {}) as context:
            yield context
        return
    started: _Started | None = None
    with interrupts_kept():
        try:
            with interrupts_held():
                started = _Started(master, app, config or {})
            yield started.context
        finally:
            if started is not None:
                with interrupts_held():
                    started.stop()


@contextlib.contextmanager
def _submitted(app: str, config: Mapping[str, str]) -> Iterator[SparkContext]:
    """A context in the JVM that `spark-submit` started, which ends it when this process exits."""
    _silence_py4j(True)
    try:
        SparkContext._ensure_initialized()
        conf = SparkConf()  # The properties of spark-submit and of its spark-defaults.conf.
        for name, value in {"spark.app.name": app, **config}.items():
            if name == JARS:
                conf.set(name, add_to_jvm(value))
            elif not conf.contains(name):
                conf.set(name, value)
        context = _context_of(conf)
        if (wrong := _other_python(context, conf)) is not None:
            sys.stderr.write(f"Warning: {wrong}\n")
        try:
            yield context
        finally:
            with interrupts_held():
                context.stop()
    finally:
        _silence_py4j(False)


def add_to_jvm(jars: str) -> str:
    """Let the driver find these jars' classes in the JVM that runs already, if one does.

    From `spark.jars` of a session only executors get them then: the driver has what its JVM was
    started with, by `spark-submit` or for an earlier session. Returns what `spark.jars` has to be
    for the session to keep the jars of `spark-submit`.
    """
    if is_remote():
        return jars
    if GATEWAY in os.environ:
        SparkContext._ensure_initialized()
    if (jvm := SparkContext._jvm) is None:
        return jars
    given = [jar for jar in (SparkConf().get(JARS) or "").split(",") if jar]
    added = [jar for jar in jars.split(",") if jar and jar not in given]
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for jar in added:
        if jar.startswith("file:"):
            loader.addURL(jvm.java.net.URL(jar))
        elif "://" not in jar:
            loader.addURL(jvm.java.io.File(jar).toURI().toURL())
    return ",".join([*given, *added])


def _other_python(context: SparkContext, conf: SparkConf) -> str | None:
    """What is wrong if Spark runs data sources with another Python than `spark.pyspark.python`."""
    wanted = conf.get("spark.pyspark.python")
    if wanted is None or str(context.master).startswith("local"):
        return None
    # Of the variables that the JVM has: the property changes only those of this process.
    variables = SparkContext._jvm.java.lang.System.getenv()  # type: ignore[union-attr]
    found = variables.get("PYSPARK_DRIVER_PYTHON") or variables.get("PYSPARK_PYTHON") or "python3"
    if found == wanted:
        return None
    return (
        f"Spark runs format('percola') with {found!r} on executors too, not with "
        f"spark.pyspark.python={wanted!r}: set the environment variable PYSPARK_PYTHON instead."
    )


def _context_of(conf: SparkConf) -> SparkContext:
    try:
        return SparkContext(conf=conf)
    except Exception as error:
        why = _gist(error)
        master = conf.get("spark.master")
        raise SparkStartError(
            f"Spark did not start with the master {master!r}: {why}"
        ) from RuntimeError(why)


def find_java() -> Path:
    """The `java` program to use: that of JAVA_HOME, else the one on the PATH.

    Raises JavaMissingError if neither is of version 17 or newer.
    """
    found = []
    home = os.environ.get("JAVA_HOME")
    candidates = [Path(home) / "bin" / "java"] if home else []
    on_path = shutil.which("java")
    for java in [*candidates, *([Path(on_path)] if on_path else [])]:
        version = _java_version(java)
        if version is not None and version >= OLDEST_JAVA:
            return java
        found.append(f"{java} {'does not run' if version is None else f'is Java {version}'}")
    raise JavaMissingError(
        f"Spark needs Java {OLDEST_JAVA} or newer, but "
        + (" and ".join(found) if found else "neither JAVA_HOME nor the PATH leads to a Java")
        + f". {_INSTALL}"
    )


def _java_version(java: Path) -> int | None:
    try:
        said = subprocess.run(
            [java, "-version"],
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # "1.8.0_402" is Java 8.
    match = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(match[1]) if match and said.returncode == 0 else None


class _Started:
    """A Spark context that this module started, and how to stop it."""

    def __init__(self, master: str, app: str, config: Mapping[str, str]) -> None:
        java = find_java()
        local = _LOCAL.fullmatch(master)
        here = local is not None or master.startswith("local-cluster[")
        if not (here or master == "yarn" or "://" in master):
            raise SparkStartError(
                f"{master!r} is no Spark master: use local[*], local[4], or a cluster's URL."
            )
        conf = SparkConf(loadDefaults=False).setAppName(app).setMaster(master)
        conf.set("spark.ui.showConsoleProgress", "false")
        if local:
            conf.setMaster(f"local[{local[1] or 1},{local[2] or ATTEMPTS}]")
            conf.set("spark.ui.enabled", "false")
            conf.set("spark.driver.memory", _DRIVER_MEMORY)
        for name, value in config.items():
            conf.set(name, value)
        if here:
            for role in ("driver", "executor"):
                # The first options, so that those of `config` override them.
                options = f"spark.{role}.defaultJavaOptions"
                logging_from = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
                conf.set(options, f"{logging_from} {conf.get(options, '')}".strip())
        self._context: SparkContext | None = None
        self._gateway: Any = None
        self._output = _Output() if here else None
        _silence_py4j(True)
        try:
            with _environment(java, local=here):
                # A JVM left by an earlier session of this process is reused, and not stopped.
                if SparkContext._gateway is None:
                    streams = {} if self._output is None else self._output.streams()
                    self._gateway = launch_gateway(conf, streams)  # type: ignore[no-untyped-call]
                elif JARS in config:
                    conf.set(JARS, add_to_jvm(config[JARS]))
                gateway = self._gateway or SparkContext._gateway
                self.context = self._context = SparkContext(conf=conf, gateway=gateway)
        except BaseException as error:
            why = _gist(error)  # str() of Py4J's errors calls the JVM, so before it stops.
            self.stop()
            heard = self._output.rest() if self._output is not None else ""
            if not isinstance(error, Exception):
                raise
            raise SparkStartError(
                f"Spark did not start with the master {master!r}: {heard or why}"
            ) from RuntimeError(why)
        if self._output is not None:
            self._output.pass_on()

    def stop(self) -> None:
        """Stop Spark and the JVM; wait until they have ended."""
        if self._context is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with contextlib.suppress(Exception):
                    # The scheduler logs errors about interrupted tasks, as after Ctrl-C.
                    self._context.setLogLevel("OFF")
                with contextlib.suppress(Exception):
                    self._context.stop()
                # If the JVM has died, that call failed before it stopped the Python side.
                self._context.stop()
            self._context = None
        if self._gateway is not None:
            process: subprocess.Popen[bytes] = self._gateway.proc
            if process.stdin is not None:
                process.stdin.close()  # The JVM exits at the end of its input.
            try:
                process.wait(timeout=_JVM_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            with contextlib.suppress(Exception):
                self._gateway.shutdown()
            SparkContext._gateway = SparkContext._jvm = None
            self._gateway = None
        if self._output is not None:
            self._output.end()
        _silence_py4j(False)


class _Output:
    """The JVM's console output, without the one notice that no option suppresses.

    It is buffered in a pipe until the session has started: if the start fails, it has the reason.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        # Linux only; elsewhere Spark's output during the start must fit the default pipe size.
        with contextlib.suppress(AttributeError, OSError):
            fcntl.fcntl(self._read, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._thread: threading.Thread | None = None

    def streams(self) -> dict[str, int]:
        """The stream arguments for starting the process."""
        return {"stdout": self._write, "stderr": self._write}

    def pass_on(self) -> None:
        """Forward all further output to standard error."""
        self._close_write()
        self._thread = threading.Thread(target=self._copy, name="spark-output", daemon=True)
        self._thread.start()

    def rest(self) -> str:
        """The output of the process, which has ended, without stack traces."""
        self._close_write()
        return " ".join(line.strip() for line in self._lines() if not line.startswith("\tat "))

    def end(self) -> None:
        """Wait until all output of the process, which has ended, has been forwarded."""
        self._close_write()
        if self._thread is not None:
            self._thread.join()

    def _close_write(self) -> None:
        if self._write >= 0:
            os.close(self._write)
            self._write = -1

    def _copy(self) -> None:
        for line in self._lines():
            sys.stderr.write(line)

    def _lines(self) -> Iterator[str]:
        with open(self._read, encoding="utf-8", errors="replace") as file:
            for line in file:
                if not line.startswith(_NOTICE):
                    yield line


@contextlib.contextmanager
def _environment(java: Path, *, local: bool) -> Iterator[None]:
    """Set the environment of the JVM and its Python workers for the block."""
    before = dict(os.environ)
    if os.environ.get("JAVA_HOME") and not java.is_relative_to(os.environ["JAVA_HOME"]):
        del os.environ["JAVA_HOME"]  # It is invalid; the Java on the PATH is used.
    if local:
        # pip's PySpark includes Spark, and does not work with another version.
        if (Path(pyspark.__file__).parent / "jars").is_dir():
            os.environ.pop("SPARK_HOME", None)
        os.environ.update(
            SPARK_CONF_DIR=str(_NO_CONF),
            SPARK_LOCAL_IP="127.0.0.1",
            PYSPARK_PYTHON=sys.executable,
            PYTHONPATH=os.pathsep.join(os.path.abspath(one) for one in sys.path),
        )
    try:
        yield
    finally:
        # Restore only these: PySpark sets other variables, which must stay.
        for name in ("JAVA_HOME", "PYTHONPATH", "PYSPARK_PYTHON", *_SPARK_VARIABLES):
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)


def _silence_py4j(silent: bool) -> None:
    """Keep Py4J from logging, with tracebacks, the errors that it also raises.

    It logs some through the root logger, which installs a handler there; from then on the root's
    handler prints what Py4J's own loggers propagate.
    """
    root = logging.getLogger()
    (root.addFilter if silent else root.removeFilter)(_not_py4j)
    logging.getLogger("py4j").propagate = not silent


def _not_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


def _gist(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # Py4J puts the JVM's message on a separate line, after a colon.
    return next((line[2:] for line in lines if line.startswith(": ")), lines[0])
