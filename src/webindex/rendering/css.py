"""What a stylesheet asks for: `@import`, and `url()` wherever a value may have one.

Not a parser of CSS but a scan of its tokens, linear in the length: comments and strings are
skipped, so that nothing inside them counts. A reference that a browser would not follow (in a rule
that matches nothing, say) is listed all the same; references that a browser builds in another
way (`image-set("…")`) are not, and are known once the browser has asked for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from resiliparse.parse.encoding import map_encoding_to_html5

__all__ = ["decode_css", "references_in"]

_STRING: Final = r""""(?:[^"\\\n]|\\.)*+"?|'(?:[^'\\\n]|\\.)*+'?"""
_TOKEN: Final = re.compile(
    r"/\*.*?(?:\*/|\Z)"
    r"|(?P<at>@(?:import|namespace)\b)"
    rf"|url\(\s*+(?:(?P<quoted>{_STRING})|(?P<bare>(?:[^\s\"'()\\]|\\.)*+))\s*+\)?"
    rf"|(?P<string>{_STRING})"
    r"|(?P<end>[;{}])",
    re.IGNORECASE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(?:([0-9a-fA-F]{1,6})\s?|(\n)|(.))", re.DOTALL)
_CHARSET: Final = re.compile(rb'@charset "([\w.:-]{1,40})";')
_HEADER: Final = re.compile(r"charset\s*=[\s\"']*([\w.:-]{1,40})", re.ASCII | re.IGNORECASE)


def references_in(css: str) -> Iterator[str]:
    """The references of a stylesheet, or of a `style` attribute, as they are written."""
    statement = ""
    for token in _TOKEN.finditer(css):
        if token["end"]:
            statement = ""
        elif token["at"]:
            statement = token["at"].lower()
        else:
            written = token["quoted"] if token["quoted"] is not None else token["bare"]
            if written is None and statement == "@import":
                written = token["string"]
            # The name of a namespace is no address.
            if written and statement != "@namespace":
                text = _text(written)
                if text and not text.startswith("#"):
                    yield text
            if statement == "@import":
                statement = "@import-taken" if written else statement


def decode_css(body: bytes, content_type: str) -> str:
    """A stylesheet as text: by its byte order mark, the header's charset or its own, or UTF-8."""
    if body.startswith(b"\xef\xbb\xbf"):
        return body[3:].decode("utf-8", "replace")
    declared, own = _HEADER.search(content_type), _CHARSET.match(body)
    name = declared[1] if declared else own[1].decode("ascii") if own else "utf-8"
    # Only what browsers know by this name: Python's codecs "undefined" and "punycode" read no text.
    return body.decode(map_encoding_to_html5(name, False) or "utf-8", "replace")


def _text(written: str) -> str:
    if written[0] in "\"'":
        quote, written = written[0], written[1:]
        written = written.removesuffix(quote)
    return _ESCAPE.sub(_unescaped, written).strip() if "\\" in written else written.strip()


def _unescaped(found: re.Match[str]) -> str:
    if found[1]:
        code = int(found[1], 16)
        return chr(code) if 0 < code < 0xD800 or 0xDFFF < code < 0x110000 else "\ufffd"
    return "" if found[2] else found[3]
