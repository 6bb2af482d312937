"""§2.1: the JVM in this process that runs HBase's client: finding its jars, starting it.

HBase's client is a Java library; no other library implements all of its protocol. JPype runs it in
this process, with four consequences that this module handles:

* A JVM does not survive a fork. It starts when it is first needed, so that a process may fork
  before; in a child of a process in which it runs, every use raises the same clear error.
* A thread that calls Java is attached to the JVM, which keeps state for it until it is detached.
  Python's threads are short-lived: each is detached when it ends.
* There is one JVM per process, for all stores, until the process ends.
* Java treats the process's main thread as a Java thread, and puts guard pages into its stack where
  a Java stack would end. Code that needs a deeper stack, such as numpy's solvers, then crashes the
  process without a message. So Java's stacks are made as large as a main thread's.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import jpype
import jpype.config

from percola.errors import StoreError, UsageError
from percola.platform.fork_safety import JAVA, at_fork

JARS: Final = "PERCOLA_HBASE_JARS"
"""The environment variable that names a folder with the jars of HBase's client."""

CONF: Final = "PERCOLA_HBASE_CONF"
"""The environment variable that names a folder with `hbase-site.xml` and `core-site.xml`."""

OPTIONS: Final = "PERCOLA_HBASE_JVM_OPTIONS"
"""The environment variable with options for the JVM, with spaces between them."""

_OUR_JAR: Final = Path(__file__).with_name("percola-hbase.jar")
"""The classes in `java/`; wheels contain it, and 'make setup' builds it."""

_DEFAULT_OPTIONS: Final = (
    "-Xmx512m",
    # A main thread's stack size on Linux. Java's own threads only reserve it: they do not use it.
    "-Xss8m",
    # Python handles signals.
    "-Xrs",
    "-Djava.awt.headless=true",
    "-Dlog4j2.level=OFF",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
)

# After each garbage collection in Java, JPype makes Python traverse all its objects, which takes
# tens of milliseconds and stops every thread. With Java's default collector and young generation,
# that was a fifth of the time of sixteen reading threads.
_COLLECTOR: Final = "-XX:+UseSerialGC"
_YOUNG: Final = "-Xmn160m"
_OF_HEAP: Final = ("-Xm", "-XX:MaxNew", "-XX:New")

JavaObject: TypeAlias = Any
"""An object that lives in Java."""

_guard = threading.Lock()
_attached = threading.local()


def client_jars() -> list[Path]:
    """The jars of HBase's client; raises StoreError, with how to get them, if there are none."""
    own = os.environ.get(JARS)
    try:
        folder = Path(own) if own else Path.home() / ".cache" / "percola" / "hbase-client"
    except RuntimeError as error:  # As in a container, under a number of its own.
        raise StoreError(
            "HBase's client is looked for in the user's home folder, and this user has none: have "
            f"{JARS} name a folder that holds hbase-shaded-client 2.6 and the jars that it needs."
        ) from error
    found = sorted(folder.glob("*.jar"))
    if any(one.name.startswith("hbase-shaded-client") for one in found):
        return found
    if own:
        raise StoreError(
            f"HBase's client is not in {folder}, which {JARS} names: have it name a folder that "
            "holds hbase-shaded-client 2.6 and the jars that it needs, or unset it and run "
            "'percola hbase-jars client', which fetches them with Maven."
        )
    raise StoreError(
        f"HBase's client is not in {folder}: 'percola hbase-jars client' fetches it with Maven, or "
        f"{JARS} names a folder that holds hbase-shaded-client 2.6 and the jars that it needs."
    )


def settings_folder() -> list[str]:
    """The folder with the client's own settings, if one is named; UsageError if it has none.

    The repository's address and request time limit override those settings.
    """
    named = os.environ.get(CONF)
    if not named:
        return []
    folder = Path(named).absolute()
    if not any((folder / file).is_file() for file in ("hbase-site.xml", "core-site.xml")):
        raise UsageError(
            f"{CONF} names {folder}, where there is neither an hbase-site.xml nor a core-site.xml: "
            "name the folder of the client's settings, or leave it out."
        )
    return [str(folder)]


def start() -> None:
    """Start Java in this process if it is not running, and detach this thread when it ends.

    Raises StoreError if there is no Java, no client for it, or if this process was forked from one
    in which it ran.
    """
    if not JAVA.is_used:
        with _guard:
            _start()
    if getattr(_attached, "until_end", None) is None:
        _attached.until_end = _Attachment()


def _start() -> None:
    JAVA.refuse_child("HBase")
    jars = [*settings_folder(), *(str(one) for one in client_jars())]
    if _OUR_JAR.exists():
        jars.append(str(_OUR_JAR))
    if not jpype.isJVMStarted():
        options = os.environ.get(OPTIONS, "").split()
        try:
            jpype.startJVM(*jvm_options(options), classpath=[], convertStrings=False)
        except jpype.JVMNotFoundException as error:
            raise StoreError(
                "HBase's client needs Java, and there is none: install a Java of version 11 or "
                "later (Debian, Ubuntu: apt-get install default-jre-headless; macOS: brew install "
                "openjdk@17), or set JAVA_HOME to where it is."
            ) from error
        except (OSError, RuntimeError) as error:
            raise UsageError(
                f"Java does not start with the options {' '.join(options) or 'that are usual'} "
                f"of {OPTIONS}: {error}"
            ) from error
        # HBase's client prints a stack trace for each failed scan, though it also raises it.
        nowhere = java_class("java.io.OutputStream").nullOutputStream()
        java_class("java.lang.System").setErr(java_class("java.io.PrintStream")(nowhere))
    _choose_resolver()
    for one in jars:
        jpype.addClassPath(one)
    # Only once it runs: a process in which Java failed to start may fork.
    JAVA.begin_use("HBase")


def _choose_resolver() -> None:
    """Have Java choose how it resolves names before HBase's client is there.

    From Java 18 on, it looks for resolvers on the class path when the first name is resolved, and
    never again. HBase's client to 2.6.4 declares one that it does not contain (HBASE-30211): found
    there, every look-up of a name would fail.
    """
    with suppress(jpype.JException):  # There is no such name: it has chosen nevertheless.
        java_class("java.net.InetAddress").getByName("localhost")


def jvm_options(own: Sequence[str]) -> list[str]:
    """The options to start Java with: the user's, and defaults for those that are not set."""
    found = [*_DEFAULT_OPTIONS]
    if not any(one.startswith("-XX:+Use") and one.endswith("GC") for one in own):
        found.append(_COLLECTOR)
    if not any(one.startswith(_OF_HEAP) for one in own):
        found.append(_YOUNG)
    return [*found, *own]


def kept_by_thread(owner: object) -> dict[str, JavaObject]:
    """Java objects that this thread keeps for an owner; `start` must have been called.

    They are released with the thread or the owner. No other thread-local may refer to them.
    """
    kept: WeakKeyDictionary[Any, dict[str, JavaObject]] = _attached.until_end.kept
    return kept.setdefault(owner, {})


def java_class(name: str) -> JavaObject:
    """A Java class by its name; `start` must have been called."""
    return jpype.JClass(name)


def _class_loader() -> JavaObject:
    """What loads classes from the jars that JPype was given while Java runs."""
    return java_class("org.jpype.JPypeContext").getInstance().getClassLoader()


def java_objects(count: int) -> JavaObject:
    """An array for Java objects as results."""
    return jpype.JArray(jpype.JObject)(count)


class _Attachment:
    """A thread's use of Java.

    Detaches the thread that created it, when the thread ends and releases its thread-locals.
    """

    def __init__(self) -> None:
        self.kept: WeakKeyDictionary[Any, dict[str, JavaObject]] = WeakKeyDictionary()
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._is_main = threading.current_thread() is threading.main_thread()
        # Hadoop looks for settings and classes where the thread does.
        java_class("java.lang.Thread").currentThread().setContextClassLoader(_class_loader())

    def __del__(self) -> None:
        mine = self._pid == os.getpid() and self._thread == threading.get_ident()
        if mine and not self._is_main and jpype.isJVMStarted():
            # Releasing a Java object later would attach the thread again.
            self.kept.clear()
            jpype.JClass("java.lang.Thread").detach()


def _leave_parent() -> None:
    """Keep a child from calling Java, which would block for ever.

    JPype calls it after Python's garbage collections, and when the process ends.
    """
    global _guard
    _guard = threading.Lock()
    if JAVA.is_barred:
        jpype.config.onexit = False
        asks = getattr(jpype._jpype, "_collect", None)
        gc.callbacks[:] = [one for one in gc.callbacks if one is not asks]


at_fork(_leave_parent)
