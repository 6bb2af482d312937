"""`serve`: a page that shows what is going on in the repository, until it is stopped."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack
from typing import Any, Final

import click

from percola.cli.session import Session, common
from percola.connect import cluster as network
from percola.errors import ConflictingOptionsError, UsageError
from percola.observers import loading as targets
from percola.observers.observer import Observer

TOKEN_FILE: Final = "PERCOLA_SERVE_TOKEN_FILE"


@click.command()
@click.argument("target", metavar="[MODULE:NAME]", required=False)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Where to serve; beyond loopback it takes a token.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=1942,
    show_default=True,
    help="0: any free port.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    envvar=TOKEN_FILE,
    show_envvar=True,
    help="Ask everybody for the token in this file; with it, dead letters can be retried and "
    "observers paused from the page.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="Another name by which browsers call this server.",
)
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="A proxy, or a network of them, whose X-Forwarded-Proto and -For are believed.",
)
@click.option("--tls-cert", metavar="FILE", help="Its certificate chain, in PEM: serve with TLS.")
@click.option("--tls-key", metavar="FILE", help="The certificate's key, in PEM.")
@common
@click.pass_obj
def serve(
    session: Session,
    target: str | None,
    host: str,
    port: int,
    token_file: str | None,
    names: tuple[str, ...],
    proxies: tuple[str, ...],
    tls_cert: str | None,
    tls_key: str | None,
) -> None:
    """Show on a page what is going on.

    What waits for which observer and for how long, throughput, latencies, conflicts, dead letters,
    processes, locks, and what holds the safe point back, of any repository and whichever processes
    work on it.

    NAME is what 'percola worker' takes: an observer, a list of observers, or a function that
    returns them. With it, observers that no worker runs are shown as well.
    """
    try:
        from percola.serve import app, is_loopback, listening
        from percola.serve.guard import Names
        from percola.serve.login import Login
    except ImportError as error:
        raise UsageError(str(error)) from error
    # An empty name, as of a variable that is not set, is refused: not served without.
    if (tls_cert is None) != (tls_key is None):
        raise ConflictingOptionsError(
            "TLS takes --tls-cert and --tls-key together: a certificate and its key."
        )
    token = ""
    if token_file is not None:
        token = network.one_line(network.read_file(token_file, "--token-file"), "--token-file")
    elif not is_loopback(host):
        raise UsageError(
            f"Without a token anyone who can reach {host} could read row keys and tracebacks: make "
            "one with (umask 077; openssl rand -hex 32 > FILE) and give --token-file FILE, or "
            "serve on 127.0.0.1."
        )
    for file, option in ((tls_cert, "--tls-cert"), (tls_key, "--tls-key")):
        if file is not None:
            network.read_file(file, option)
    with ExitStack() as stack:
        observers: list[Observer[Any]] = []
        if target is None:
            repo = stack.enter_context(session.open())
        else:
            stack.enter_context(session.user_code())
            repo, observers = stack.enter_context(
                targets.opened(session.where(), target, adds=False)
            )
        login = Login(token, repo.context.clock)
        made = app.make_app(repo, observers, Names(host, names), login)
        server = listening.make_server(made, tls_cert=tls_cert, tls_key=tls_key, proxies=proxies)
        bound = stack.enter_context(listening.listen(host, port))
        url = listening.address(bound, host, scheme="https" if tls_cert else "http")
        started = {"event": "started", "pid": os.getpid(), "address": url}
        session.show(
            started, _sentence(url, host, token=bool(token), tls=bool(tls_cert or proxies))
        )
        sys.stdout.flush()
        listening.run(server, bound, level=logging.INFO)


def _sentence(url: str, host: str, *, token: bool, tls: bool) -> str:
    from percola.serve import is_loopback

    sentence = f"What is going on: {url}   (Ctrl-C ends)"
    if not token:
        return sentence + "\nIt can be read only; --token-file FILE adds a login and buttons."
    if not tls and not is_loopback(host):
        sentence += (
            "\nThe token and the page travel unencrypted: use --tls-cert and --tls-key, or a proxy "
            "with TLS in front of it."
        )
    return sentence
