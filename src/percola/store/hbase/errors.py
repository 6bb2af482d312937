"""§2.1: what a failure of HBase's client says about a call: not done, refused, or unknown.

HBase tells by the class of an exception, which may be wrapped in others and may come from the
server. What is not known here leaves open whether a write was applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

from percola.store.hbase.jvm import JavaObject
from percola.store.hbase.kerberos import Trouble, trouble_of


class Meaning(Enum):
    """What a failure says about a call."""

    NOT_DONE = "it had no effect: try again"
    UNKNOWN = "it may or may not have had its effect"
    REFUSED = "it had no effect, and will have none"


_PACKAGE: Final = "org.apache.hadoop.hbase."

# What else stands in a call is left out once its answer is long, or much was read for it.
_LEFT_OUT: Final = _PACKAGE + "MultiActionResultTooLarge"

# The server says, or the client knows, that the call was not carried out.
_NOT_DONE: Final = (
    _LEFT_OUT,
    "java.net.ConnectException",
    "java.net.NoRouteToHostException",
    "java.net.UnknownHostException",
    *(
        _PACKAGE + name
        for name in (
            "NotServingRegionException",
            "RegionTooBusyException",
            "CallQueueTooBigException",
            "CallDroppedException",
            "PleaseHoldException",
            "MasterNotRunningException",
            "ZooKeeperConnectionException",
            "quotas.RpcThrottlingException",
            "client.NoServerForRegionException",
            "client.RegionOfflineException",
            "exceptions.MasterRegistryFetchException",
            "exceptions.PreemptiveFastFailException",
            "ipc.FailedServerException",
            "ipc.ServerNotRunningYetException",
            "ipc.ServerTooBusyException",
            "regionserver.RegionServerStoppedException",
            "regionserver.WrongRegionException",
        )
    ),
)

_NOT_DONE_WORDS: Final = (
    # What a group of rows gets of which one is in another region since a split.
    "Requested row out of range",
    # After a server took no ticket: no call is sent for up to five seconds.
    "relogin is in progress",
)

_REFUSED: Final = tuple(
    _PACKAGE + name
    for name in (
        "NamespaceNotFoundException",
        "TableNotFoundException",
        "TableNotEnabledException",
        "exceptions.FailedSanityCheckException",
        "exceptions.RequestTooBigException",
        "exceptions.UnknownProtocolException",
        "regionserver.NoSuchColumnFamilyException",
        "security.AccessDeniedException",
        "ipc.FatalConnectionException",
        "ipc.FallbackDisallowedException",
    )
)


class Failure(NamedTuple):
    """A Java exception, as far as it matters here.

    Attributes:
        names: of its class and of those above it.
        text: the first line of what it says.
        trouble: what is wrong with Kerberos, if it is that.
    """

    names: tuple[str, ...]
    text: str
    trouble: Trouble | None = None

    @classmethod
    def of(cls, error: JavaObject) -> Failure:
        """Read a Java exception; of one that only wraps another, what it wraps."""
        wrappers = (
            "RetriesExhausted",
            "ExecutionException",
            "UndeclaredThrowable",
            "Completion",
            "ServiceException",
        )
        for _ in range(5):
            cause = error.getCause()
            if cause is None or not any(one in str(error.getClass().getName()) for one in wrappers):
                break
            error = cause
        if hasattr(error, "unwrapRemoteException"):
            error = error.unwrapRemoteException()
        names: list[str] = []
        said: list[str] = []
        kind = error.getClass()
        while kind is not None:
            names.append(str(kind.getName()))
            kind = kind.getSuperclass()
        text = str(error.getMessage()).strip().partition("\n")[0][:300]
        while error is not None and len(said) < 10:
            said.append(str(error.getMessage()))
            error = error.getCause()
        return cls(tuple(names), text, trouble_of(said))

    def is_any(self, names: Sequence[str]) -> bool:
        """Whether it is of one of these classes."""
        return any(name in names for name in self.names)

    @property
    def is_left_out(self) -> bool:
        """Whether a server left it out because what stands before it is enough for one call."""
        return self.is_any([_LEFT_OUT])

    @property
    def meaning(self) -> Meaning:
        """What it says about a write. A read that was not refused may be tried again anyway."""
        if self.trouble:
            return Meaning.REFUSED if self.trouble.is_final else Meaning.NOT_DONE
        if self.is_any(_REFUSED):
            return Meaning.REFUSED
        if self.is_any(_NOT_DONE) or any(one in self.text for one in _NOT_DONE_WORDS):
            return Meaning.NOT_DONE
        return Meaning.UNKNOWN

    def __str__(self) -> str:
        name = self.names[0].rpartition(".")[2].removesuffix("Exception")
        return f"{name}: {self.text.rstrip('.')}"
