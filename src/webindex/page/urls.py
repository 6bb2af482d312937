"""URL normalisation, and the repository rows and ids derived from URLs.

Parsing follows the WHATWG standard (ada), so a URL means here what it means in a browser. In
addition, `normalise` removes what does not change the page:

- the fragment, the default port, credentials, the final dot of the host name, an empty query;
- parameters that only record where a visitor came from (`TRACKING_PARAMETERS`, `TRACKING_PREFIXES`)
  or which visitor it is (`SESSION_PARAMETERS`); every other parameter stays, in its order;
- session ids that Java's and Microsoft's servers put into the path of a visitor without cookies,
  ``;jsessionid=…`` and ``/(S(…))/``: otherwise each crawl would find every page under a new URL;
- needless percent-escapes: ``%7E`` is ``~``, ``%c3`` is ``%C3`` (RFC 3986 §6.2.2).

International host names become punycode, and paths and queries ASCII: a normalised URL is ASCII.
``http`` and ``https`` stay two different URLs, as do ``www.`` and the bare domain: some sites serve
different pages there. Where they serve the same page, clustering merges them.

`normalise` and `resolve` accept anything; all other functions require a normalised URL and raise
an error for anything else, because two spellings would silently become two rows.
"""

import codecs
import re
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import can_ada
from publicsuffixlist import PublicSuffixList

__all__ = [
    "MAX_ROW_BYTES",
    "MAX_URL_BYTES",
    "SESSION_PARAMETERS",
    "TRACKING_PARAMETERS",
    "TRACKING_PREFIXES",
    "BadUrlError",
    "host",
    "host_named",
    "in_charset",
    "normalise",
    "page_id",
    "page_row",
    "registrable_domain",
    "resolve",
    "surt",
    "url_of_row",
]

MAX_URL_BYTES: Final = 8192
"""Longer URLs are refused, before and after normalisation; crawlers and servers do the same."""

MAX_ROW_BYTES: Final = 380
"""Longest row key that `page_row` makes: below the smallest row limit of the supported stores."""

TRACKING_PREFIXES: Final = ("utm_", "mtm_", "pk_", "hsa_")
"""Campaign tags of Google Analytics, Matomo (two generations) and HubSpot."""

TRACKING_PARAMETERS: Final = frozenset(
    # Click identifiers of advertising networks and social sites, then of mail and marketing tools.
    """
    gclid gclsrc dclid gbraid wbraid gad_source gad_campaignid srsltid _gl _ga
    fbclid msclkid yclid ysclid _openstat twclid ttclid li_fat_id igsh igshid epik rb_clickid
    mc_cid mc_eid mkt_tok _hsenc _hsmi __hssc __hstc __hsfp hsctatracking
    vero_id vero_conv oly_anon_id oly_enc_id ml_subscriber ml_subscriber_hash wickedid
    """.split()  # noqa: SIM905
)
"""Query parameters to drop, compared in lower case."""

SESSION_PARAMETERS: Final = frozenset({"phpsessid", "jsessionid", "oscsid", "zenid"})
"""Query parameters in which PHP, Java, osCommerce and Zen Cart pass a session id, in lower case.
These names have no other use. ``sid``, ``s`` or ``session`` may well be a story, a song
or a talk at a conference: they stay, and clustering merges pages that are the same."""

_DROPPED: Final = TRACKING_PARAMETERS | SESSION_PARAMETERS
_QUERY_ERRORS: Final = "webindex-query"
# What browsers mean by these charsets, as in `markup`.
_SENT_IN: Final = {"shift_jis": "cp932", "euc_kr": "cp949", "iso8859-11": "cp874"}
_HASH_TAIL: Final = 1 + 32
_SHOWN: Final = 120
_HOST = re.compile(r"(?:[a-z0-9_-]+\.)*[a-z0-9_-]+|\[[0-9a-f:.]+\]")
_IPV4 = re.compile(r"[0-9]+(?:\.[0-9]+){3}")
_NORMALISED = re.compile(
    r"(https?)://(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::([0-9]+))?/([!\"$-~]*)"  # no '#', no space
)
_ROW = re.compile(r"[0-9a-f]{2}/(\[[^\]]*\]|[^)+:]*)(\+http)?(:[0-9]+)?\)(/.*)")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
# Not after a segment of dots, which would then mean another folder. Without "%" in it: removing it
# must not affect whether the other escapes are normalised.
_JAVA_SESSION = re.compile(
    r"(?<!/\.)(?<!/\.\.);jsessionid=[a-z0-9_.!:~+-]*(?=[/;]|$)", re.IGNORECASE
)
_ASP_SESSION = re.compile(r"/\(S\([a-z0-9]{24}\)\)(?=/)", re.IGNORECASE)
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


class BadUrlError(ValueError):
    """The text is not a URL that the index can hold; the message gives the text and the reason."""


def normalise(url: str) -> str:
    """Return the normalised form of an absolute http or https URL.

    Idempotent. The result is ASCII and at most `MAX_URL_BYTES` long.

    Raises:
        BadUrlError: `url` is relative, malformed, too long, of another scheme (``mailto:``,
            ``javascript:``, ``file:``), or its host is no DNS name or IP address.
    """
    return _clean(_parse(url), url)


def resolve(base: str, href: str) -> str | None:
    """Return the normalised URL that `href` means on the page `base`, or None.

    `base` is an absolute URL. None means that `href` leads to no page: another scheme, malformed
    or too long. The fragment is dropped, so ``#top`` resolves to `base` itself.

    Raises:
        BadUrlError: `base` itself is no absolute URL.
    """
    against = _parse_base(base)
    if len(href) > MAX_URL_BYTES:
        return None
    try:
        return _clean(against + href, href)
    except (ValueError, TypeError):  # TypeError: a lone surrogate, which has no UTF-8 form
        return None


def in_charset(href: str, codec: str) -> str:
    """Return a reference of a page with its query as browsers send it: in the charset of the page.

    They do so with the query alone, and not in Unicode's other charsets. A character that the
    charset lacks is sent as in markup, ``&#228;``.

    Args:
        href: as it is written in the page.
        codec: Python's name of the charset.
    """
    if href.isascii() or codec.startswith("utf"):
        return href
    before, mark, rest = href.partition("?")
    query, hash_mark, fragment = rest.partition("#")
    if query.isascii() or "#" in before:
        return href
    sent = (
        chr(byte) if 0x20 < byte < 0x7F else f"%{byte:02X}"
        for byte in query.encode(_SENT_IN.get(codec, codec), _QUERY_ERRORS)
    )
    return f"{before}{mark}{''.join(sent)}{hash_mark}{fragment}"


def _as_in_markup(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join(f"%26%23{ord(letter)}%3B" for letter in lacking), error.end


codecs.register_error(_QUERY_ERRORS, _as_in_markup)


def surt(url: str) -> str:
    """Return a normalised URL as a sort-friendly key: ``com,example,www)/path?query``.

    The host is reversed, so that a domain and all hosts below it sort together. An https URL has
    the plain form; an http URL is marked ``com,example,www+http)/path``, next to its https twin;
    a port follows as ``com,example,www:8443)/``. IP addresses are not reversed. Two different
    normalised URLs never have the same SURT.

    Raises:
        BadUrlError: `url` is not in the form that `normalise` returns.
    """
    scheme, name, port, tail = _split(url)
    if name[0] != "[" and not _IPV4.fullmatch(name):
        name = ",".join(reversed(name.split(".")))
    mark = "" if scheme == "https" else "+http"
    return f"{name}{mark}{':' + port if port else ''})/{tail}"


def page_id(url: str) -> str:
    """Return the id of a normalised URL: 32 hex digits, for column qualifiers and parts of rows.

    BLAKE2b, not a faster hash: a hostile page must not be able to construct a URL whose id
    collides with that of another page and overwrites its cells.

    Raises:
        BadUrlError: `url` is not in the form that `normalise` returns.
    """
    _split(url)
    return blake2b(url.encode("ascii"), digest_size=16).hexdigest()


@lru_cache(maxsize=16_384)  # Observers ask for the rows of a change's pages again and again.
def page_row(url: str, limit: int = MAX_ROW_BYTES) -> str:
    """Return the row of a page, at most `limit` bytes: ``3f/com,example,www)/path?query``.

    The two hex digits are the first of the page's id. They spread neighbouring pages, and so a
    crawl that works through one site, over 256 places in the table: no tablet becomes a hot spot
    (§3.1 loads documents in crawl order). A SURT that does not fit is cut and ends in ``~`` and the
    page's id. Such a row is exactly `limit` bytes long and every other one is shorter, so a long
    URL cannot collide with a short URL crafted to look like its row.

    Raises:
        BadUrlError: `url` is not in the form that `normalise` returns.
        ValueError: `limit` is below 64, too small for prefix, id and a useful piece of the URL.
    """
    if limit < 64:
        raise ValueError(f"A row limit of {limit} bytes is too small: use 64 or more.")
    digest = page_id(url)
    row = f"{digest[:2]}/{surt(url)}"
    if len(row) < limit:
        return row
    return f"{row[: limit - _HASH_TAIL]}~{digest}"


def url_of_row(row: str) -> str | None:
    """The URL of a row that `page_row` made; None if it was cut, or made by something else."""
    match = _ROW.fullmatch(row)
    if match is None or len(row) >= MAX_ROW_BYTES:
        return None
    name, http, port, tail = match.groups()
    if name[:1] != "[" and not _IPV4.fullmatch(name):
        name = ".".join(reversed(name.split(",")))
    url = f"{'http' if http else 'https'}://{name}{port or ''}{tail}"
    try:
        return url if page_row(url) == row else None
    except BadUrlError:
        return None


def host_rows(name: str) -> list[str]:
    """The prefixes of the rows of a host's pages, by any scheme and port; each row has one.

    Raises:
        BadUrlError: `name` is no host.
    """
    key = surt(f"https://{host_named(name)}/").removesuffix(")/")
    return [
        f"{byte:02x}/{key}{end}" for byte in range(256) for end in (")", ":", "+http)", "+http:")
    ]


def host_named(name: str) -> str:
    """Return a host as `host` does, whose name a user wrote: in capitals, or in Unicode.

    Raises:
        BadUrlError: `name` is no host.
    """
    try:
        _, found, port, rest = _split(normalise(f"https://{name}/"))
    except BadUrlError:
        found = port = rest = ""
    if not found or port is not None or rest:
        raise BadUrlError(f"{name[:_SHOWN]!r} is not the name of a host, as in 'www.example.com'.")
    return found


def host(url: str) -> str:
    """Return the host of a normalised URL, without the port.

    Raises:
        BadUrlError: `url` is not in the form that `normalise` returns.
    """
    return _split(url)[1]


def block_row(url: str) -> str:
    """Return the row of a page in the table `blocks`: its host, a slash, and its `page_id`.

    Raises:
        BadUrlError: `url` is not in the form that `normalise` returns.
    """
    return f"{host(url)}/{page_id(url)}"


def registrable_domain(url: str) -> str:
    """Return the domain under which the host was registered: ``example.co.uk``.

    Uses the public suffix list that the `publicsuffixlist` package carries (private section
    included, so ``user.github.io`` counts as registered); no network. A host with no registrable
    domain is returned unchanged: an IP address, ``localhost``, ``co.uk``.

    Raises:
        BadUrlError: `url` is not in the form that `normalise` returns.
    """
    return _registrable(host(url))


def _parse(url: str) -> can_ada.URL:
    if len(url) > MAX_URL_BYTES:
        raise _too_long(url)
    try:
        return can_ada.parse(url)
    except (ValueError, TypeError):
        raise BadUrlError(
            f"{_show(url)} is not an absolute URL: "
            "give it in full, such as https://example.org/page."
        ) from None


@lru_cache(maxsize=64)
def _parse_base(url: str) -> can_ada.URL:
    return _parse(url)


def _clean(parsed: can_ada.URL, given: str) -> str:
    scheme = parsed.protocol
    if scheme not in ("http:", "https:"):
        raise BadUrlError(
            f"{_show(given)} has the scheme {scheme.removesuffix(':')!r}: "
            "only http and https pages can be indexed."
        )
    name = parsed.hostname.removesuffix(".")
    if not _HOST.fullmatch(name) or len(name) > 253:
        raise BadUrlError(f"{_show(given)} has a host that is neither a DNS name nor an address.")
    path, query, port = parsed.pathname, parsed.search[1:], parsed.port
    if "%" in path:
        path = _tidy_escapes(path)
    if ";" in path or "(" in path:
        # In this order: removing the first may reveal the second.
        path = _ASP_SESSION.sub("", _JAVA_SESSION.sub("", path))
    if "/." in path or "/%2" in path:
        path = _without_dots(path)
    if query:
        query = _without_tracking(query)
        if "%" in query:
            # Only now may a name match one of those to drop ("%75tm_source").
            query = _without_tracking(_tidy_escapes(query))
    url = f"{scheme}//{name}{':' + port if port else ''}{path}{'?' + query if query else ''}"
    if len(url) > MAX_URL_BYTES:
        raise _too_long(given)
    return url


def _without_dots(path: str) -> str:
    """Resolve ``.`` and ``..``: ada misses them after a name that begins with a dot."""
    kept: list[str] = []
    dots = ""
    for segment in path[1:].split("/"):
        dots = segment.lower().replace("%2e", ".")
        if dots == "..":
            del kept[-1:]
        elif dots != ".":
            kept.append(segment)
    # A folder stays a folder: dots at the end mean the empty name after a slash.
    if dots in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept)


def _without_tracking(query: str) -> str:
    kept = [field for field in query.split("&") if not _is_tracking(field)]
    return "&".join(kept)


def _is_tracking(field: str) -> bool:
    name = field.partition("=")[0].lower()
    return name in _DROPPED or name.startswith(TRACKING_PREFIXES)


def _tidy_escapes(text: str) -> str:
    # Beside a broken escape ("%%37E"), decoding could build a new one and change the meaning.
    return text if _BROKEN_ESCAPE.search(text) else _ESCAPE.sub(_tidy_escape, text)


def _tidy_escape(match: re.Match[str]) -> str:
    character = chr(int(match[1], 16))
    return character if character in _UNRESERVED else match[0].upper()


def _split(url: str) -> tuple[str, str, str | None, str]:
    """Scheme, host, port if not the default, and the part after the first slash."""
    match = _NORMALISED.fullmatch(url)
    if match is None:
        raise BadUrlError(f"{_show(url)} is not a normalised URL: pass it through normalise first.")
    return match[1], match[2], match[3], match[4]


@lru_cache(maxsize=1)
def _public_suffixes() -> PublicSuffixList:
    return PublicSuffixList()


@lru_cache(maxsize=65_536)
def _registrable(name: str) -> str:
    if name[0] == "[" or _IPV4.fullmatch(name):
        return name
    return _public_suffixes().privatesuffix(name) or name


def _too_long(url: str) -> BadUrlError:
    return BadUrlError(f"{_show(url)} is longer than {MAX_URL_BYTES} bytes.")


def _show(url: str) -> str:
    # Through repr(): control characters and lone surrogates must not reach a terminal.
    return repr(url if len(url) <= _SHOWN else url[:_SHOWN] + "…")
