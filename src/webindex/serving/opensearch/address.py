"""The URL of an index on OpenSearch, and the connection to its servers."""

from __future__ import annotations

import logging
import os
import re
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from webindex.serving.base import NotAnIndexError, ServingError

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

USER: Final = "WEBINDEX_SEARCH_USER"
PASSWORD: Final = "WEBINDEX_SEARCH_PASSWORD"
"""Variables of the environment with the credentials that the URL leaves out."""

_PORT: Final = 9200
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,200}")
_HOST: Final = re.compile(r"[\w.-]+")
_CONNECTIONS: Final = 16
"""Requests that the threads of a process may make at a time."""
_EXPORTERS: Final = 8
_LEAST: Final = {"shards": 1, "replicas": 0, "exporters": 1}
"""The options that are numbers, each with the smallest one."""
_RETRIES: Final = 2
"""Other nodes that a request is sent to if one does not answer."""


@dataclass(frozen=True, slots=True)
class Address:
    """`https://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…]/NAME[?OPTION=VALUE&…]`.

    Attributes:
        hosts: nodes of one cluster, or a load balancer; port 9200 by default.
        name: of the index.
        tls: whether the scheme is https; the certificate is then verified.
        user, password: from the URL, or from the environment (`USER`, `PASSWORD`).
        shards, replicas: of an index that is created; the cluster's templates decide by default.
        exporters: how many workers export to the index at a time.
        ca: a file of certificates to trust instead of the system's.
    """

    hosts: tuple[tuple[str, int], ...]
    name: str
    tls: bool
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    shards: int | None = None
    replicas: int | None = None
    exporters: int = _EXPORTERS
    ca: str | None = None

    @classmethod
    def parse(cls, url: str) -> Address:
        """Parse a URL; raises NotAnIndexError with a message that does not quote a password."""
        try:
            parts = urlsplit(url)
        except ValueError:  # Its message may quote the password.
            raise NotAnIndexError(
                "The place of the search index is no URL: that of an index on OpenSearch is "
                "https://HOST:PORT/NAME, without brackets in HOST."
            ) from None
        login, at, netloc = parts.netloc.rpartition("@")
        shown = f"{parts.scheme}://{netloc}{parts.path}"
        name = parts.path.strip("/")
        if parts.scheme not in ("http", "https") or not netloc or not _NAME.fullmatch(name):
            raise NotAnIndexError(
                f"{shown} does not name an index on OpenSearch: that is "
                "https://HOST:PORT/NAME, with a NAME of small letters, digits, '-', '_' and '.'."
            )
        hosts = []
        for one in netloc.split(","):
            host, colon, port = one.partition(":")
            if not _HOST.fullmatch(host) or (colon and not port.isdecimal()):
                raise NotAnIndexError(f"{one!r} in {shown} is no HOST or HOST:PORT.")
            hosts.append((host, int(port) if colon else _PORT))
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        numbers: dict[str, int] = {}
        for option, value in options.items():
            if option in _LEAST and value.isdecimal() and int(value) >= _LEAST[option]:
                numbers[option] = int(value)
            elif option != "ca" or not value:
                raise NotAnIndexError(
                    f"{option}={value} is no option of {shown}: there are shards=NUMBER, "
                    "replicas=NUMBER, exporters=NUMBER and ca=FILE; of shards and exporters there "
                    "is at least one."
                )
        user, _, password = login.partition(":")
        return cls(
            tuple(hosts),
            name,
            parts.scheme == "https",
            unquote(user) if at else os.environ.get(USER),
            unquote(password) if at else os.environ.get(PASSWORD),
            numbers.get("shards"),
            numbers.get("replicas"),
            numbers.get("exporters", _EXPORTERS),
            options.get("ca"),
        )

    def __str__(self) -> str:
        """The URL without the credentials and options."""
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"http{'s' if self.tls else ''}://{hosts}/{self.name}"

    def connect(self, timeout: float) -> OpenSearch:
        """A client of the servers, for any number of threads; connects with the first request.

        Raises:
            NotAnIndexError: the file of certificates cannot be read.
            ServingError: the Python package is not installed.
        """
        try:
            from opensearchpy import OpenSearch
        except ImportError as error:
            raise ServingError(
                f"A search index on OpenSearch needs the Python package {error.name}: install it "
                "with pip install 'percola[opensearch]'."
            ) from None
        context = None
        if self.tls:
            try:
                context = ssl.create_default_context(cafile=self.ca)
            except OSError as error:
                raise NotAnIndexError(
                    f"The certificates in {self.ca}, which the URL of {self} names, cannot be "
                    f"read: {error}."
                ) from error
        # Each failed request is an exception of this module: it need not be logged as well.
        logging.getLogger("opensearch").setLevel(logging.CRITICAL)
        return OpenSearch(
            hosts=[{"host": host, "port": port} for host, port in self.hosts],
            use_ssl=self.tls,
            ssl_context=context,
            http_auth=(self.user, self.password or "") if self.user is not None else None,
            http_compress=True,
            timeout=timeout,
            max_retries=_RETRIES,
            pool_maxsize=_CONNECTIONS,
        )
