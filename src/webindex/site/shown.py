"""Formatting for browsers: template output, URLs, links, languages."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import unquote, urlencode

import pycld2
from markupsafe import Markup

from webindex.text_format import harmless

# No URL of the index has white space; a full stop or comma after it belongs to the sentence.
_URL: Final = re.compile(r"(https?://\S+?)(?=[.,:;]?(?:\s|$))")
_ENCODED: Final = re.compile(r"(?:%[89A-F][0-9A-F])+", re.IGNORECASE)

_LANGUAGES: Final[dict[str, str]] = {
    **{code: name.replace("_", " ").title() for name, code in pycld2.LANGUAGES},
    # It has older codes of these, and none that only pages declare.
    "he": "Hebrew",
    "jv": "Javanese",
    "nb": "Norwegian",
    "nn": "Norwegian Nynorsk",
}


def finalize(value: Any) -> Any:
    """Jinja's last step before escaping: `harmless` for every string but our own markup."""
    return harmless(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def web_link(url: str) -> str:
    """The URL if a browser may follow it: http and https only; else empty."""
    return url if url.startswith(("http://", "https://")) else ""


def pieces(sentence: str) -> list[tuple[str, bool]]:
    """A sentence of ours split at URLs, each piece with whether it is a URL."""
    return [(words, bool(place % 2)) for place, words in enumerate(_URL.split(sentence)) if words]


def crumbs(url: str) -> list[str]:
    """A URL for display: the host, then the segments of its path and the query, decoded."""
    scheme, _, rest = url.partition("://")
    path, mark, query = rest.partition("?")
    host, *steps = path.split("/")
    shown = [host if scheme == "https" else f"{scheme}://{host}"]
    shown += [_decoded(step) for step in steps if step]
    if mark:
        shown[-1] += "?" + _decoded(query)
    return shown


def brief(url: str, beside: str, most: int) -> str:
    """What distinguishes a URL from the one beside it, in at most `most` characters."""
    steps = crumbs(url)
    if steps[0] == crumbs(beside)[0]:
        steps = steps[1:] or ["/"]
    words = "/".join(steps)
    return words if len(words) <= most else "…" + words[1 - most :]


def _decoded(text: str) -> str:
    """Decode escapes of letters beyond ASCII; everything that could mislead stays encoded."""

    def decode(found: re.Match[str]) -> str:
        try:
            words = unquote(found[0], errors="strict")
        except UnicodeDecodeError:
            return found[0]
        return words if words.isprintable() else found[0]

    return _ENCODED.sub(decode, text)


def address(path: str, **parameters: str | int | None) -> str:
    """A link within the site; parameters that are None or empty are left out."""
    given = {name: value for name, value in parameters.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def language(code: str) -> str:
    """The English name of a language, or its code if there is no name."""
    return _LANGUAGES.get(code, code)


def rounded(number: float) -> str:
    """A number with three significant digits."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
