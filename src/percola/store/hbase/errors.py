"""§2.1: classifies failures of HBase's client: call not done, refused, or outcome unknown.

The class of the exception decides; it may be wrapped in others and may come from the server. For
a class that is not listed here, it is unknown whether a write was applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

from percola.store.hbase.jvm import JavaObject
from percola.store.hbase.kerberos import Trouble, trouble_of


class Meaning(Enum):
    """The effect of a call that failed."""

    NOT_DONE = "it had no effect: try again"
    UNKNOWN = "it may or may not have had its effect"
    REFUSED = "it had no effect, and will have none"


_PACKAGE: Final = "org.apache.hadoop.hbase."

# Servers skip the remaining operations of a call once its response or its reads are large.
_LEFT_OUT: Final = _PACKAGE + "MultiActionResultTooLarge"

# A quota permits no more at the moment.
_THROTTLED: Final = _PACKAGE + "quotas.RpcThrottlingException"

# The server reports, or the client knows, that the call was not executed.
_NOT_DONE: Final = (
    _LEFT_OUT,
    _THROTTLED,
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
    # The response for a group of rows if one of them is in another region since a split.
    "Requested row out of range",
    # After a server rejected the ticket, the client sends no call for up to five seconds.
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
        "quotas.QuotaExceededException",
        "quotas.SpaceLimitingException",
        "regionserver.NoSuchColumnFamilyException",
        "security.AccessDeniedException",
        "ipc.FatalConnectionException",
        "ipc.FallbackDisallowedException",
    )
)


READ_ONLY: Final = "region is read only"
"""What a server says of a change of a table that is READONLY, before it does anything."""


class Failure(NamedTuple):
    """The relevant parts of a Java exception.

    Attributes:
        names: the names of its class and its superclasses.
        text: the first line of its message.
        trouble: the Kerberos failure, if it is one.
    """

    names: tuple[str, ...]
    text: str
    trouble: Trouble | None = None

    @classmethod
    def of(cls, error: JavaObject) -> Failure:
        """Read a Java exception; of a mere wrapper, the exception that it wraps."""
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
        """Whether its class or a superclass is one of `names`."""
        return any(name in names for name in self.names)

    @property
    def is_left_out(self) -> bool:
        """Whether a server skipped it because the operations before it filled the call."""
        return self.is_any([_LEFT_OUT])

    @property
    def is_out_of_memory(self) -> bool:
        """Whether Java's heap in this process had no room for the answer."""
        name = "java.lang.OutOfMemoryError"
        return name in self.names or name in self.text

    @property
    def is_throttled(self) -> bool:
        """Whether a quota of HBase's has had it wait."""
        return self.is_any([_THROTTLED])

    @property
    def meaning(self) -> Meaning:
        """The effect of a write that failed so. A read that was not refused can be retried."""
        if self.trouble:
            return Meaning.REFUSED if self.trouble.is_final else Meaning.NOT_DONE
        if self.is_any(_REFUSED) or READ_ONLY in self.text:
            return Meaning.REFUSED
        if self.is_any(_NOT_DONE) or any(one in self.text for one in _NOT_DONE_WORDS):
            return Meaning.NOT_DONE
        return Meaning.UNKNOWN

    def __str__(self) -> str:
        name = self.names[0].rpartition(".")[2].removesuffix("Exception")
        return f"{name}: {self.text.rstrip('.')}"
