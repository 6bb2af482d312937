"""§2.3 on the wire: TLS from certificates in memory."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from percola.errors import UsageError

PROTOCOL: Final = "percola"
HTTP2: Final = "h2"
"""What gRPC requires a server to choose: clients of release 0.1."""


class Tls(NamedTuple):
    """The server's certificate chain and key, both in PEM.

    `client_roots` are the authorities that must have signed clients' certificates; empty: none
    needed.
    """

    certificate: bytes
    key: bytes
    client_roots: bytes = b""


def server_context(tls: Tls) -> ssl.SSLContext:
    """A server's settings; UsageError for PEM that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols([PROTOCOL, HTTP2])
    _load_chain(context, tls.certificate, tls.key, "The oracle's certificate")
    if tls.client_roots:
        context.verify_mode = ssl.CERT_REQUIRED
        _load_roots(context, tls.client_roots, "The authorities of clients' certificates")
    return context


def client_context(roots: bytes, certificate: tuple[bytes, bytes] | None) -> ssl.SSLContext:
    """A client's settings; empty `roots`: the system's. UsageError for PEM that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols([PROTOCOL])
    if roots:
        _load_roots(context, roots, "The authorities of the oracles' certificates")
    else:
        context.load_default_certs()
    if certificate is not None:
        _load_chain(context, *certificate, "The certificate for the oracles")
    return context


def _load_roots(context: ssl.SSLContext, roots: bytes, what: str) -> None:
    try:
        # Between the certificates there may be names in any language.
        context.load_verify_locations(cadata=roots.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(f"{what} cannot be read: they must be certificates in PEM.") from error


def _load_chain(context: ssl.SSLContext, chain: bytes, key: bytes, what: str) -> None:
    try:
        with _in_memory(chain) as chain_file, _in_memory(key) as key_file:
            # An encrypted key must not make a service wait for a password at a terminal.
            context.load_cert_chain(chain_file, key_file, password="")
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(
            f"{what} cannot be used: it takes a chain and its key in PEM, the key without a "
            f"password ({getattr(error, 'reason', None) or 'not PEM'})."
        ) from error


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """A path from which the content can be read, and that is no file: Python reads keys by path."""
    number = os.memfd_create("percola-tls")
    try:
        with os.fdopen(os.dup(number), "wb") as file:
            file.write(content)
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)
