"""§2.1: calls to Cloud Bigtable: channels, deadlines, retries of reads, error messages.

The messages and the authorised channel are those of Google's client; the calls are made on that
channel directly. The client's two layers above it would each retry by their own rules, and writes
must not be retried: a conditional mutation that is sent again after a lost reply answers "condition
failed" although it was applied.

    reads     retried until `timeout_seconds` have passed without a row, resuming after the last
              row received; then one StoreError
    writes    sent once. A failure that leaves open whether they were applied is
              OutcomeUnknownError

Every call has a deadline of `request_seconds`, which is sent to the server too. A write waits that
long for a connection, so a restart of a server delays writes but makes no outcome unknown.

A process opens its own channel when it first needs one; a child of a process that has opened one
cannot use the store (`percola.platform.fork_safety`).
"""

from __future__ import annotations

import os
import re
import threading
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import grpc
from google.auth.exceptions import GoogleAuthError
from google.cloud.bigtable_admin_v2.services.bigtable_table_admin.transports import (
    BigtableTableAdminGrpcTransport,
)
from google.cloud.bigtable_v2 import types
from google.cloud.bigtable_v2.services.bigtable.transports import BigtableGrpcTransport

from percola.errors import (
    OutcomeUnknownError,
    StoreError,
    UnknownTableError,
)
from percola.platform.fork_safety import GRPC, at_fork, keep_inherited
from percola.store.remote.client import RemoteCalls, Retries

DATA: Final = "/google.bigtable.v2.Bigtable/"
TABLE_ADMIN: Final = "/google.bigtable.admin.v2.BigtableTableAdmin/"
INSTANCE_ADMIN: Final = "/google.bigtable.admin.v2.BigtableInstanceAdmin/"

ReadRowsResponse = types.ReadRowsResponse.pb()
CheckAndMutateRowRequest = types.CheckAndMutateRowRequest.pb()
CheckAndMutateRowResponse = types.CheckAndMutateRowResponse.pb()
MutateRowsRequest = types.MutateRowsRequest.pb()
MutateRowsResponse = types.MutateRowsResponse.pb()
SampleRowKeysRequest = types.SampleRowKeysRequest.pb()
SampleRowKeysResponse = types.SampleRowKeysResponse.pb()

# As in Google's client. The keep-alive timeout is also how long the kernel retransmits data that
# the peer does not acknowledge.
_OPTIONS: Final = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Reconnect soon after a server is back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # The requesting thread reads the stream, without a second thread per stream.
    (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1),
]

_Code = grpc.StatusCode

# The server refused the call: it was not applied, and a retry would fail too.
_REFUSED: Final = frozenset(
    (
        _Code.INVALID_ARGUMENT,
        _Code.NOT_FOUND,
        _Code.ALREADY_EXISTS,
        _Code.PERMISSION_DENIED,
        _Code.UNAUTHENTICATED,
        _Code.FAILED_PRECONDITION,
        _Code.OUT_OF_RANGE,
        _Code.UNIMPLEMENTED,
    )
)


_GRACE_SECONDS: Final = 5.0
"""Seconds after a call's deadline, by which gRPC must have ended it."""

_KEY_FILE: Final = "GOOGLE_APPLICATION_CREDENTIALS"

_LOG_IN: Final = (
    f"Run 'gcloud auth application-default login', or set {_KEY_FILE} to the key file of a service "
    "account"
)

_NOT_LOGGED_IN: Final = "Getting metadata from plugin failed with error: "
"""What gRPC says, before the reason, of a call that it did not send for want of a login."""

_FOR_GOOD: Final = ("invalid_grant", "Reauthentication is needed")
"""Reasons that stay: a login that has expired or was revoked, an account or a key that is gone."""

_TOO_LONG: Final = "exceeds the limit of"
"""What Bigtable says of a row of which more than 256 MiB would be read."""


class Place(NamedTuple):
    """The location of a repository.

    Attributes:
        project: the Google Cloud project.
        instance: the Bigtable instance.
        app_profile: the application profile's name; empty for the instance's default one.
        emulator: host:port of an emulator to use instead of Google; empty for none.
    """

    project: str
    instance: str
    app_profile: str = ""
    emulator: str = ""

    @property
    def path(self) -> str:
        """The instance's name in requests."""
        return f"projects/{self.project}/instances/{self.instance}"

    def __str__(self) -> str:
        at = f" in the emulator at {self.emulator}" if self.emulator else ""
        return f"the Bigtable instance {self.project}/{self.instance}{at}"


class Calls(RemoteCalls):
    """The calls of one store: see `RemoteCalls`."""

    def __init__(self, place: Place, *, request_seconds: float, timeout_seconds: float) -> None:
        super().__init__(request_seconds=request_seconds, timeout_seconds=timeout_seconds)
        self.place = place
        self._start_afresh()
        at_fork(self._leave_parent)
        self._paths: dict[str, str] = {}
        self._headers: dict[str, list[tuple[str, str]]] = {}

    def _start_afresh(self) -> None:
        self._guard = threading.Lock()
        self._channels: dict[str, Any] = {}
        self._methods: dict[str, Any] = {}

    def _leave_parent(self) -> None:
        # A child neither uses nor closes its parent's channels.
        keep_inherited(self._channels, self._methods)
        self._start_afresh()

    # --- Channels -----------------------------------------------------------------------

    def method(self, service: str, name: str, answer: Any, *, streams: bool = False) -> Any:
        """The callable of a method; its arguments are the request, timeout and metadata."""
        found = self._methods.get(service + name)
        if found is not None:
            return found
        GRPC.begin_use("Bigtable")
        with self._guard:
            self.check_open()
            channel = self._channel("data" if service == DATA else "admin")
            kind = channel.unary_stream if streams else channel.unary_unary
            made = kind(
                service + name,
                request_serializer=_serialized,
                response_deserializer=answer.FromString,
            )
            self._methods[service + name] = made
            return made

    def _channel(self, which: str) -> Any:
        if self.place.emulator:
            which = "emulator"
        if which not in self._channels:
            try:
                if which == "emulator":
                    made = grpc.insecure_channel(self.place.emulator, options=_OPTIONS)
                else:
                    transport: Any = {
                        "data": BigtableGrpcTransport,
                        "admin": BigtableTableAdminGrpcTransport,
                    }[which]
                    made = transport(channel=_authorised(transport)).grpc_channel
            except Exception as error:  # Google's library takes what is in a file for right.
                raise StoreError(
                    f"There are no credentials for {self.place}: {_why_none(error)}. {_LOG_IN}."
                ) from error
            self._channels[which] = made
        return self._channels[which]

    def close(self) -> None:
        with self._guard:
            self._closed = True
            channels, self._channels, self._methods = self._channels, {}, {}
        for channel in channels.values():
            channel.close()

    # --- Names --------------------------------------------------------------------------

    def path(self, table: str) -> str:
        """The full name in requests of one of Percola's tables."""
        found = self._paths.get(table)
        if found is None:
            # Percola's system table: Bigtable forbids '@', users' tables begin with no digit.
            name = "0-" + table[1:] if table.startswith("@") else table
            found = self._paths[table] = f"{self.place.path}/tables/{name}"
        return found

    def headers(self, table: str) -> list[tuple[str, str]]:
        """The metadata by which Google routes a call on a table."""
        found = self._headers.get(table)
        if found is None:
            routing = (
                f"table_name={quote(self.path(table), safe='')}"
                f"&app_profile_id={quote(self.place.app_profile, safe='')}"
            )
            found = self._headers[table] = [("x-goog-request-params", routing)]
        return found

    # --- Single calls -------------------------------------------------------------------

    def ask(
        self,
        service: str,
        name: str,
        request: Any,
        answer: Any,
        *,
        routing: str,
        what: str,
        again: bool = True,
    ) -> Any:
        """Make a call that changes nothing or may be repeated; return its answer.

        `routing` names the resource for Google's routing, `what` describes the call in error
        messages. Raises grpc.RpcError if the server refuses it, for the caller to interpret;
        without `again` also if a quota does.
        """
        tries = Tries(self, what)
        while True:
            method = self.method(service, name, answer)
            try:
                return self._make(
                    name, method, request, metadata=[("x-goog-request-params", routing)]
                )
            except grpc.RpcError as error:
                if error.code() in _REFUSED:
                    raise
                if error.code() is _Code.RESOURCE_EXHAUSTED and not again:
                    raise
                tries.failed(error)

    def send(self, name: str, request: Any, answer: Any, table: str, *, alone: bool = False) -> Any:
        """Send a write and return the future of its answer without waiting.

        With `alone`, wait and return the answer itself, which is faster.
        """
        method = self.method(DATA, name, answer)
        try:
            # Nothing is sent before there is a connection, so waiting for one is safe.
            return self._make(
                name,
                method if alone else method.future,
                request,
                metadata=self.headers(table),
                wait_for_ready=True,
            )
        except grpc.RpcError:
            raise
        except BaseException:
            if not alone:
                # Ctrl-C: gRPC may take the thread that receives the channel's answers for started.
                self.renew()
            raise

    def answer_of(self, call: Any) -> Any:
        """Wait for the answer to a write that `send` returned; TimeoutError if none will come."""
        try:
            return call.result(self.request_seconds + _GRACE_SECONDS)
        except grpc.FutureTimeoutError as error:
            self.renew()
            raise TimeoutError from error

    def renew(self) -> None:
        """Have later calls use another channel; those under way on this one go on."""
        with self._guard:
            # Closing one whose answers nobody receives would wait for its calls for ever.
            keep_inherited(self._channels, self._methods)
            self._channels, self._methods = {}, {}

    def send_many(self, name: str, request: Any, answer: Any, table: str) -> Any:
        """Send a write whose answers are a stream; return the stream."""
        method = self.method(DATA, name, answer, streams=True)
        return self._make(name, method, request, metadata=self.headers(table), wait_for_ready=True)

    def read_rows(self, request: Any, table: str, seconds: float) -> Any:
        """Read rows; return the stream of answers, with a deadline of `seconds` for all of it."""
        method = self.method(DATA, "ReadRows", ReadRowsResponse, streams=True)
        return self._make(
            "ReadRows", method, request, metadata=self.headers(table), timeout=seconds
        )

    def _make(self, name: str, method: Any, request: Any, **options: Any) -> Any:
        """Make a call, with a deadline, and count it."""
        self.made[name] += 1
        try:
            return method(request, **{"timeout": self.request_seconds, **options})
        except ValueError:
            # gRPC raises this if another thread has closed the channel.
            self.check_open()
            raise

    def sample_keys(self, table: str) -> list[bytes]:
        """The server's sample of keys that divide the table into parts of about equal size."""
        request = SampleRowKeysRequest(
            table_name=self.path(table), app_profile_id=self.place.app_profile
        )
        tries = Tries(self, f"dividing the table {table!r}")
        while True:
            method = self.method(DATA, "SampleRowKeys", SampleRowKeysResponse, streams=True)
            try:
                answers = self._make("SampleRowKeys", method, request, metadata=self.headers(table))
                return [answer.row_key for answer in answers]
            except grpc.RpcError as error:
                tries.failed(error, table)

    # --- Failures -----------------------------------------------------------------------

    def refusal(self, error: Any, what: str, table: str = "") -> StoreError | UnknownTableError:
        """The error for a refused call; a write was not applied."""
        code, details = error.code(), _first_line(error.details() or "")
        lower = details.lower()
        for name in (self.path(table), self.place.path):
            lower = lower.replace(name.lower(), "")  # A name may have one of the words below.
        if code is _Code.NOT_FOUND and table and "profile" not in lower and "family" not in lower:
            return UnknownTableError(
                f"The store has no table {table!r}: {self.place} says so ({_reason(error)})."
            )
        advice = {
            _Code.PERMISSION_DENIED: (
                "Grant this account the role roles/bigtable.user, and roles/bigtable.admin for "
                "creating tables."
            ),
            _Code.UNAUTHENTICATED: f"{_LOG_IN}.",
            _Code.FAILED_PRECONDITION: (
                "The application profile must route to a single cluster and allow single-row "
                "transactions: 'gcloud bigtable app-profiles update --route-to=CLUSTER "
                "--transactional-writes'."
            ),
        }.get(code, "")
        if code is _Code.FAILED_PRECONDITION and _TOO_LONG in (error.details() or ""):
            # Bigtable's own advice, a policy of garbage collection, would remove what is needed.
            advice = (
                "Have old versions removed sooner, by 'percola gc --retention' with a shorter "
                "time, or write less into one row. Do not give the table a garbage collection "
                "policy: it would drop versions that Percola needs."
            )
        if "family" in lower and not advice:
            advice = (
                "A column family is missing: 'cbt createfamily TABLE FAMILY', with the policy "
                "'never'."
            )
        return StoreError(
            f"Bigtable refused {what} in {self.place.project}/{self.place.instance} "
            f"({_reason(error)}). {advice}".strip()
        )

    def write_failure(self, error: Any, what: str, table: str) -> StoreError | UnknownTableError:
        """The error for a failed write: refused, or outcome unknown."""
        if error.code() in _REFUSED:
            return self.refusal(error, what, table)
        if _is_for_good(why := _why_not_logged_in(error)):
            return self.no_login(why)
        return OutcomeUnknownError(
            f"{self.place} did not answer while {what}: it may or may not have been applied "
            f"({_reason(error)})."
        )

    def no_login(self, why: str) -> StoreError:
        """The error for a call that was not sent, as Google gives this process no token."""
        return StoreError(
            f"This process cannot log in to {self.place} ({why}). {_LOG_IN}, and start it again."
        )


class Tries(Retries):
    """The retries of one read."""

    def __init__(self, calls: Calls, what: str) -> None:
        super().__init__(calls.timeout_seconds)
        self._calls = calls
        self._what = what

    def failed(self, error: Any, table: str = "") -> None:
        """Wait before the next try; raise StoreError or UnknownTableError if there is none."""
        calls = self._calls
        if error.code() in _REFUSED:
            raise calls.refusal(error, self._what, table) from error
        why = _why_not_logged_in(error)
        if _is_for_good(why) or not self.wait():
            if why:
                raise calls.no_login(why) from error
            told, advice = "does not answer", ""
            if error.code() is _Code.RESOURCE_EXHAUSTED:
                told = "permits no more at the moment"
                advice = " Have the project's quota raised, which the Google Cloud console shows."
            raise StoreError(
                f"{calls.place} {told}: {self._what} was tried for {calls.timeout_seconds:g} s "
                f"({_reason(error)}).{advice}"
            ) from error


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _authorised(transport: Any) -> Any:
    """A factory for a transport's channel: Google's own, with the options above."""

    def create(host: str, **arguments: Any) -> Any:
        return transport.create_channel(host, **{**arguments, "options": _OPTIONS})

    return create


def _why_none(error: Exception) -> str:
    """Why Google's library has no credentials."""
    if isinstance(error, GoogleAuthError) and error.args:
        what, *causes = map(_first_line, error.args)
        return f"{what.rstrip('.')} ({causes[0].rstrip('.')})" if causes else what.rstrip(".")
    named = os.environ.get(_KEY_FILE)
    file = f"the file {named}, which {_KEY_FILE} names," if named else "the file of them"
    why = error.strerror if isinstance(error, OSError) else error
    return f"{file} cannot be used ({_first_line(why).rstrip('.')})"


def _why_not_logged_in(error: Any) -> str:
    """Why there is no token for a call, which was not sent; empty if that is not what failed."""
    _, _, why = (error.details() or "").partition(_NOT_LOGGED_IN)
    # Of an error with several arguments, which Python shows as a tuple, the first is the sentence.
    sentence = re.match(r"\('(.+?)', ", why)
    return _first_line(sentence[1] if sentence else why).rstrip(".")


def _is_for_good(why: str) -> bool:
    return any(one in why for one in _FOR_GOOD)


def _first_line(text: object) -> str:
    return str(text).strip().partition("\n")[0][:300]


def _reason(error: Any) -> str:
    return f"{error.code().name}: {_first_line(error.details() or '').rstrip('.')}"
