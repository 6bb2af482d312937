"""§2.1: the store on Cloud Bigtable, the paper's own store.

One conditional mutation of Bigtable prewrites or commits all cells of a row, and a row is read from
one consistent view of it, which is all that the protocol needs.

`percola.store.remote.store` has what this store shares with that on HBase. The other modules:

    filters        conditions and reads as request filters
    client         channels, deadlines, retries, error messages
    row_stream     streams of rows
    writes         mutations, many in flight; rows and their notify entries in steps
    reads          the requests of reads
    shared_row     the row that all processes share
    schema         tables, families, the application profile

A scan of one family reads all other families of its rows too, because a user cannot give families
separate storage. So the notify entries of a table are stored in a second table, which contains
nothing else: finding work costs in proportion to what is dirty (rule N6).
`percola.store.remote.notify_table` describes the consequences for writers.

`latest_arrival` bounds how late a call that was given up may still take effect. Bigtable has no
condition on the time of day that could fence such a call, so the bound is a sum. The client drops
what it has not sent at the deadline. Data in the kernel's buffers is delivered or dropped within
keep-alive's ten seconds where TCP_USER_TIMEOUT works, and within the quarter of an hour for which
Linux retransmits where it does not, also after the process died. The server counts the deadline, a
minute at most, from the receipt of the request, and gives up then. The sum is below twenty minutes;
a generous bound only means that rollback records are collected later.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final
from urllib.parse import parse_qsl

from percola.errors import UsageError
from percola.store.base import Limits
from percola.store.bigtable.client import Calls, Place
from percola.store.bigtable.reads import BigtableReading
from percola.store.bigtable.schema import check_app_profile, create_table, find_table
from percola.store.bigtable.shared_row import Shared
from percola.store.bigtable.writes import apply, remove_changes
from percola.store.remote.client import REQUEST_SECONDS, TIMEOUT_SECONDS
from percola.store.remote.store import RemoteStore

_checked: Final = set[tuple[Place, str]]()
"""The tables whose settings this process has looked at, and, with an empty name, the application
profiles. Once for all of its stores: a task of Spark opens one, and quotas bound how often all
processes of a project may look."""


class BigtableStore(RemoteStore):
    """A repository's tables in a Bigtable instance; safe to use from many threads.

    It cannot be used in a child of a process that has used one: gRPC does not survive a fork.

    Args:
        place: the instance.
        request_seconds: how long a single call may take, up to 60.
        timeout_seconds: how long a read is retried without an answer.
    """

    database = "Bigtable"

    # Bigtable's own limits are 4 KiB and 100 MiB.
    limits = Limits(row_bytes=4_000, value_bytes=64 * 1024 * 1024)
    row_change_bytes = 96 * 1024 * 1024
    row_changes = 90_000

    has_notify_table = True

    _calls: Calls

    latest_arrival = 1_200.0

    def __init__(
        self,
        place: Place,
        *,
        request_seconds: float = REQUEST_SECONDS,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self.place = place
        calls = Calls(place, request_seconds=request_seconds, timeout_seconds=timeout_seconds)
        shared = Shared(calls)
        super().__init__(
            calls,
            shared,
            BigtableReading(calls, shared),
            partial(apply, calls),
            partial(remove_changes, calls),
        )

    def _check_settings(self) -> None:
        if (self.place, "") not in _checked:
            check_app_profile(self._calls)
            _checked.add((self.place, ""))

    def _create_table(self, name: str) -> None:
        at = self.place, name
        if not (at in _checked and self._has(name)) and create_table(self._calls, name):
            _checked.add(at)

    def _find_table(self, name: str) -> None:
        find_table(self._calls, name)

    def _tablet_starts(self, table: str) -> Sequence[bytes]:
        return self._calls.sample_keys(table)


# --- Addresses --------------------------------------------------------------------------

_ADDRESS: Final = re.compile(r"bigtable://([^/?#]*)/([^/?#]*)/?(?:\?([^#]*))?")
_PROJECT: Final = re.compile(r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{0,61}")
_INSTANCE: Final = re.compile(r"[a-z][a-z0-9-]{0,61}")
_PROFILE: Final = re.compile(r"[_a-zA-Z0-9][-_.a-zA-Z0-9]{0,49}")
_EMULATOR: Final = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[^:/\s]+):[0-9]{1,5}")
_SHAPE: Final = "'bigtable://project/instance' or 'bigtable://project/instance?app_profile=NAME'"


def place_of(address: str) -> Place:
    """The place that an address names; in an emulator if BIGTABLE_EMULATOR_HOST is set.

    Raises UsageError that says what is wrong with the address.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise UsageError(f"{address!r} is not the address of a Bigtable instance: {_SHAPE}.")
    project, instance, query = found[1], found[2], found[3] or ""
    options = dict(parse_qsl(query, keep_blank_values=True))
    checks: list[tuple[str, str, Callable[[str], object]]] = [
        ("project", project, _PROJECT.fullmatch),
        ("instance", instance, _INSTANCE.fullmatch),
    ]
    if "app_profile" in options:
        checks.append(("application profile", options["app_profile"], _PROFILE.fullmatch))
    for what, name, is_right in checks:
        if not is_right(name):
            raise UsageError(
                f"{name!r} in {address!r} cannot name a Google Cloud {what}: {_SHAPE}."
            )
    unknown = sorted(options.keys() - {"app_profile"})
    if unknown or (query and not options):
        raise UsageError(
            f"{address!r} has an unknown option {(unknown or [query])[0]!r}: {_SHAPE}."
        )
    emulator = os.environ.get("BIGTABLE_EMULATOR_HOST", "")
    if emulator and not _EMULATOR.fullmatch(emulator):
        raise UsageError(
            f"BIGTABLE_EMULATOR_HOST is {emulator!r}: give host:port of a running emulator, or "
            "unset it to use Google's service."
        )
    return Place(project, instance, options.get("app_profile", ""), emulator)


def open_bigtable(
    address: str,
    *,
    request_seconds: float = REQUEST_SECONDS,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> BigtableStore:
    """The store at `bigtable://project/instance[?app_profile=NAME]`.

    Nothing is asked of the server yet: `create_tables` does, and refuses settings that will not do.
    Raises UsageError for a malformed address.
    """
    return BigtableStore(
        place_of(address), request_seconds=request_seconds, timeout_seconds=timeout_seconds
    )
