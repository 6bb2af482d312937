"""A repository on a network store: the store, the oracle beside it, and who is alive.

    hbase://c:2181,d:2181,e:2181/namespace?oracle=a:7070,b:7070
    bigtable://project/instance?oracle=a:7070,b:7070&zookeeper=c:2181,d:2181,e:2181

The rows stand in the store; timestamps come from the processes of `percola oracle` (§2.3), whose
record stands in the store as well; liveness tokens (§2.2) are ephemeral nodes of ZooKeeper;
advisory locks and wake-ups (§2.4) are served beside the oracle.

Which oracle is the right one is for the store to say: its record carries an identity, and a client
takes timestamps from no other. The same identity names the folder in ZooKeeper, so that one
ensemble serves any number of repositories.

What is secret, or differs by machine, is not in the address, which is printed and logged, but in
the environment:

    PERCOLA_ORACLE_TOKEN_FILE     a file with the token that the oracles want to be shown
    PERCOLA_ORACLE_CA             authorities, in PEM, of the oracles' certificates: use TLS
    PERCOLA_ORACLE_CERT, …_KEY    what to show to oracles that want certificates of clients
    PERCOLA_ORACLE_RELAY          HOST:PORT of this machine's relay, which is asked before them
    PERCOLA_ZOOKEEPER_LOGIN_FILE  a file with USER:PASSWORD, for ZooKeeper's scheme `digest`
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from percola import extras
from percola.connect.address import NetworkAddress
from percola.connect.shared import Connection, acquire
from percola.coordination.base import Coordination
from percola.errors import NotARepositoryError, PercolaError, UnknownTableError, UsageError
from percola.oracle.base import Oracle
from percola.oracle.record import newest
from percola.store.base import Store

if TYPE_CHECKING:
    from percola.oracle.client import NetworkOracle

_PREFIX: Final = "PERCOLA_ORACLE_"
TOKEN_FILE: Final = _PREFIX + "TOKEN_FILE"
RELAY: Final = _PREFIX + "RELAY"
LOGIN_FILE: Final = "PERCOLA_ZOOKEEPER_LOGIN_FILE"


@dataclass
class NetworkConnection(Connection):
    """What a process has open of a repository on a network store."""

    address: NetworkAddress
    store: Store
    oracle: Oracle
    coordination: Coordination

    @classmethod
    def open(cls, address: NetworkAddress) -> NetworkConnection:
        """Open it, or share what this process has open.

        Raises UsageError for an address that lacks something or names it wrongly,
        NotARepositoryError where no oracle has ever run, StoreError for a server that does not
        answer.
        """
        return acquire(address.text, lambda: _open(address))

    @property
    def key(self) -> str:
        return self.address.text

    def close(self) -> None:
        close(self.coordination, self.oracle, self.store)


def _open(address: NetworkAddress) -> NetworkConnection:
    if not address.oracles:
        raise UsageError(
            f"{address.text!r} does not say where its oracle is. Start one with 'percola oracle "
            f"--repo {address.store} --listen HOST:PORT', and put ?oracle=HOST:PORT behind the "
            "address."
        )
    if not address.zookeeper:
        raise UsageError(
            f"{address.text!r} does not say where ZooKeeper is, which knows the processes that are "
            "alive: add &zookeeper=HOST:PORT to the address."
        )
    store = open_store(address)
    opened: list[Any] = [store]
    try:
        source = _source(address, store)
        oracle = _oracle(address, source)
        opened.insert(0, oracle)
        coordination = _coordination(address, source, oracle)
    except BaseException:
        close(*opened)
        raise
    return NetworkConnection(address, store, oracle, coordination)


def open_store(
    address: NetworkAddress,
    *,
    request_seconds: float | None = None,
    timeout_seconds: float | None = None,
) -> Store:
    """The store alone. Nothing is asked of a server yet.

    Args:
        address: where it is.
        request_seconds: how long a single call may take; None: the store's default.
        timeout_seconds: for how long what may be tried again is; None: the store's default.

    Raises UsageError for an address that does not read so, or if its extra is not installed.
    """
    given = {"request_seconds": request_seconds, "timeout_seconds": timeout_seconds}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    try:
        if address.scheme == "hbase":
            from percola.store.hbase.store import open_hbase

            return open_hbase(address.store, **options)
        from percola.store.bigtable.store import open_bigtable

        return open_bigtable(address.store, **options)
    except ImportError as error:
        raise UsageError(_lacks(address, error)) from error


def _source(address: NetworkAddress, store: Store) -> str:
    try:
        record = newest(store)
    except UnknownTableError:
        record = None
    if record is None:
        raise NotARepositoryError(
            f"No oracle has handed out timestamps for {address.store} yet, so it is no repository. "
            f"Start one: 'percola oracle --repo {address.store} --listen HOST:PORT'."
        )
    return record.source


def _oracle(address: NetworkAddress, source: str) -> NetworkOracle:
    from percola.oracle.client import NetworkOracle

    return NetworkOracle(address.oracles, source=source, relay=_relay(), **credentials())


def _relay() -> str:
    """The address of this machine's relay; empty if there is none. UsageError for no address."""
    from percola.rpc.client import split_address

    relay = os.environ.get(RELAY, "")
    if relay:
        try:
            split_address(relay)
        except UsageError as error:
            raise UsageError(
                f"{RELAY} is {relay!r}, but a relay's address is HOST:PORT, such as 127.0.0.1:7071."
            ) from error
    return relay


def _coordination(address: NetworkAddress, source: str, oracle: NetworkOracle) -> Coordination:
    from percola.coordination.lock_service.client import LockServiceClient

    try:
        from percola.coordination.zookeeper.coordination import ZooKeeperCoordination
    except ImportError as error:
        raise UsageError(_lacks(address, error)) from error
    lock_service = LockServiceClient(address.oracles, access=oracle.access)
    login = read_secret(LOGIN_FILE)
    return ZooKeeperCoordination(
        address.zookeeper,
        f"/percola/{source}",
        lock_service=lock_service,
        auth=None if login is None else ("digest", one_line(login, LOGIN_FILE)),
    )


def credentials() -> dict[str, Any]:
    """What a process shows to the oracles and wants of them, from its environment.

    As arguments of `NetworkOracle`. Raises UsageError for a file that cannot be read.
    """
    given: dict[str, Any] = {}
    token = read_secret(TOKEN_FILE)
    if token is not None:
        given["token"] = one_line(token, TOKEN_FILE)
    roots = read_secret(_PREFIX + "CA")
    if roots is not None:
        given["roots"] = roots
    chain, key = read_secret(_PREFIX + "CERT"), read_secret(_PREFIX + "KEY")
    if (chain is None) != (key is None) or (chain is not None and roots is None):
        raise UsageError(
            f"{_PREFIX}CERT, {_PREFIX}KEY and {_PREFIX}CA go together: set all three to show a "
            f"certificate to the oracles, or {_PREFIX}CA alone to check theirs."
        )
    if chain is not None:
        given["certificate"] = (chain, key)
    return given


def read_secret(variable: str) -> bytes | None:
    """What the file holds that an environment variable names; None if it is not set."""
    path = os.environ.get(variable)
    return read_file(path, variable) if path else None


def read_file(path: str, what: str) -> bytes:
    """A file's bytes; UsageError in words if it cannot be read or is empty."""
    if not path:
        raise UsageError(f"{what} names no file: its name is empty.")
    try:
        found = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{what} names {path}, which cannot be read: {error.strerror}.") from error
    if not found.strip():
        raise UsageError(f"{what} names {path}, which is empty.")
    return found


def one_line(raw: bytes, what: str) -> str:
    """A token as a file holds it: one line of printable ASCII; else UsageError."""
    text = raw.decode("ascii", "replace").strip()
    if not text.isprintable() or not text.isascii():
        raise UsageError(f"{what} should name a file with one line of printable ASCII.")
    return text


def close(*opened: Any) -> None:
    """Close one after the other, whatever one of them says."""
    for one in opened:
        try:
            one.close()
        except PercolaError:
            continue


def _lacks(address: NetworkAddress, error: ImportError) -> str:
    # All that a client of it needs: not one more with every attempt.
    return extras.missing(repr(address.text), error, address.scheme, "zookeeper")
