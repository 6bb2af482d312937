"""The `Link` header of HTTP: links of a page outside of its markup (RFC 8288).

    Link: <https://example.org/tea>; rel="canonical", </tea?page=2>; rel=next

Parsed according to appendix B of the RFC, which is defined for any text: everything after the first
part that is no link is ignored. A link with an `anchor` parameter is about another page and left
out.
"""

import re
from collections.abc import Iterator

from webindex.page.urls import resolve

__all__ = ["canonical_of", "names_canonical"]

# Possessive throughout: a header of ten thousand spaces must not make these backtrack.
_TARGET = re.compile(r"[\s,]*+<([^>]*+)>")
_PARAMETER = re.compile(
    r"\s*+;\s*+([^\s=;,]*+)\s*+(?:=\s*+(?:\"((?:[^\"\\]|\\.)*+)\"?+([^;,]*+)|([^;,]*+)))?+",
    re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def canonical_of(header: str, url: str) -> str | None:
    """Return the normalised URL that a `Link` header declares canonical for the page `url`.

    None if there is none, if several differ, or if it is no URL that can be indexed. Repeated
    headers are joined by commas. Never raises for a header, whatever it contains.

    Raises:
        BadUrlError: `url` is no absolute URL.
    """
    # Relative URLs refer to the page itself: <base href> does not apply to a header.
    named = {resolve(url, target) for target in _targets(header, "canonical")}
    return named.pop() if len(named) == 1 else None


def names_canonical(header: str) -> bool:
    """Whether a `Link` header has a link to a canonical page, usable or not."""
    return next(_targets(header, "canonical"), None) is not None


def _targets(header: str, relation: str) -> Iterator[str]:
    at = 0
    while (target := _TARGET.match(header, at)) is not None:
        at = target.end()
        parameters: dict[str, str] = {}
        while (one := _PARAMETER.match(header, at)) is not None:
            at = one.end()
            quoted, plain = one[2], one[4]
            value = _ESCAPED.sub(r"\1", quoted) if quoted is not None else (plain or "").strip()
            # A second `rel` is ignored (RFC 8288, §3.3).
            parameters.setdefault(one[1].lower(), value)
        if "anchor" not in parameters and relation in parameters.get("rel", "").lower().split():
            yield target[1]
