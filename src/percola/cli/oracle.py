"""§2.3: `oracle`: a process that hands out timestamps, or is on standby; `relay`: draws them."""

from __future__ import annotations

import contextlib
import logging
import os
import sys

import click

from percola.catalog import has_schema
from percola.cli.metrics_port import metrics_options, serve_metrics
from percola.cli.session import Session, common
from percola.connect import cluster as network
from percola.connect.address import network_address
from percola.errors import ConflictingOptionsError, StoreError, UsageError
from percola.oracle.record import ORACLE_TABLE, newest


@click.command()
@click.option(
    "--listen",
    required=True,
    metavar="HOST:PORT",
    help="Where clients reach this process; an address of this machine, or 0.0.0.0 for all. "
    "Beyond loopback it takes a token.",
)
@click.option(
    "--lease",
    type=click.FloatRange(0.05, 3600),
    default=3.0,
    show_default=True,
    metavar="SECONDS",
    help="A standby takes over that long after this process was last heard of.",
)
@click.option(
    "--range",
    "size",
    type=int,
    default=1_000_000,
    show_default=True,
    metavar="COUNT",
    help="Timestamps reserved in the store at a time.",
)
@click.option(
    "--above",
    type=int,
    default=0,
    metavar="TS",
    help="Hand out higher ones only: for a store that was copied without its record.",
)
@click.option("--name", default="", help="What others know it by; HOST:PORT by default.")
@click.option("--tls-cert", metavar="FILE", help="Its certificate chain, in PEM: serve with TLS.")
@click.option("--tls-key", metavar="FILE", help="The certificate's key, in PEM.")
@click.option("--tls-client-ca", metavar="FILE", help="Clients must show a certificate of these.")
@click.option(
    "--token-file",
    metavar="FILE",
    envvar=network.TOKEN_FILE,
    show_envvar=True,
    help="Clients must show the token in this file; required beyond loopback.",
)
@metrics_options
@common
@click.pass_obj
def oracle(
    session: Session,
    listen: str,
    lease: float,
    size: int,
    above: int,
    name: str,
    tls_cert: str | None,
    tls_key: str | None,
    tls_client_ca: str | None,
    token_file: str | None,
    metrics_port: int | None,
    metrics_host: str,
) -> None:
    """Hand out timestamps until SIGTERM or Ctrl-C.

    For a repository on a store that many machines share. Start two or more on different machines:
    one hands out timestamps, the others are on standby and take over if it fails. Programs find
    them by ?oracle=HOST:PORT,HOST:PORT in the repository's address.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    where = session.where()
    address = network_address(where)
    if address is None:
        raise UsageError(
            f"The repository {where} needs no oracle: on LMDB the store itself hands out "
            "timestamps. 'percola oracle' is for stores that many machines share, as "
            "bigtable://project/instance."
        )
    # An empty name, as of a variable that is not set, is refused: not served without.
    if (tls_cert is None) != (tls_key is None) or (tls_client_ca is not None and tls_cert is None):
        raise ConflictingOptionsError(
            "--tls-cert and --tls-key go together, and --tls-client-ca with both."
        )
    from percola.oracle.server import OracleServer, Tls, check_access, serve

    tls = None
    if tls_cert is not None and tls_key is not None:
        roots = b""
        if tls_client_ca is not None:
            roots = network.read_file(tls_client_ca, "--tls-client-ca")
        tls = Tls(
            network.read_file(tls_cert, "--tls-cert"),
            network.read_file(tls_key, "--tls-key"),
            roots,
        )
    token = ""
    if token_file is not None:
        token = network.one_line(network.read_file(token_file, "--token-file"), "--token-file")
    check_access(listen, token, tls)
    # A busy store takes longer than a lease to create a table.
    with contextlib.closing(network.open_store(address)) as creating:
        creating.create_tables([ORACLE_TABLE])
        if not above and newest(creating) is None and has_schema(creating):
            raise StoreError(
                f"{address.store} has a repository, but no record of the timestamps that were "
                "handed out for it: they would begin at 1 again, below those in use. Stop all of "
                "its oracles, and start them once with --above and a number above every timestamp "
                "in use: docs/oracle.md, When the record is lost."
            )
    # A call that hangs keeps the lease from being renewed, so it times out early.
    store = network.open_store(address, request_seconds=min(60, lease / 3), timeout_seconds=lease)
    try:
        server = OracleServer(
            store,
            listen,
            name=name,
            lease=lease,
            size=size,
            above=above,
            tls=tls,
            token=token,
            create=False,
        )
        port = serve_metrics(server.metrics.registry, metrics_host, metrics_port)
        serve(server, lambda running: _tell(session, "Oracle", running.address, port))
    finally:
        store.close()
    handed = server.metrics.handed_out()
    session.show(
        {"event": "stopped", "timestamps": handed}, f"Stopped: {handed:,} timestamps handed out."
    )


@click.command()
@click.option(
    "--listen",
    required=True,
    metavar="HOST:PORT",
    help="Where the processes of this machine reach it: an address of loopback.",
)
@metrics_options
@common
@click.pass_obj
def relay(session: Session, listen: str, metrics_port: int | None, metrics_host: str) -> None:
    """Draw timestamps for this machine until SIGTERM or Ctrl-C.

    For clusters of more than a hundred cores: the oracle then has one call at a time from each
    machine, instead of one from each process. Processes use it by PERCOLA_ORACLE_RELAY=HOST:PORT,
    and ask the oracles themselves while it does not answer. It takes the oracles from the
    repository's address, and the token and TLS for them from the environment; clients show the same
    token to it.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    where = session.where()
    address = network_address(where)
    if address is None or not address.oracles:
        raise UsageError(
            f"{where} names no oracle to draw timestamps from: a relay is for a repository on a "
            "store that many machines share, as "
            "'hbase://host:2181/namespace?oracle=HOST:PORT,HOST:PORT'."
        )
    from percola.oracle.client import NetworkOracle
    from percola.oracle.relay import UPSTREAM_SECONDS, OracleRelay
    from percola.oracle.server import serve

    given = network.credentials()
    oracle = NetworkOracle(
        address.oracles,
        timeout_seconds=UPSTREAM_SECONDS,
        request_seconds=UPSTREAM_SECONDS / 2,
        **given,
    )
    server = OracleRelay(oracle, listen, token=given.get("token", ""))
    port = serve_metrics(server.registry, metrics_host, metrics_port)

    serve(server, lambda running: _tell(session, "Relay", running.address, port))
    session.show(
        {"event": "stopped", "timestamps": server.timestamps, "calls": server.calls},
        f"Stopped: {server.timestamps:,} timestamps drawn by {server.calls:,} calls.",
    )


def _tell(session: Session, what: str, address: str, metrics_port: int | None) -> None:
    """Say that a server has started."""
    started = {"event": "started", "pid": os.getpid(), "address": address}
    sentence = f"{what} {os.getpid()} listens at {address}."
    if metrics_port is not None:
        started["metrics_port"] = metrics_port
        sentence += f" Its metrics are on port {metrics_port}."
    session.show(started, sentence)
    sys.stdout.flush()
