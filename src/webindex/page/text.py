"""Cleaning of text extracted from markup, shared by titles, anchors and main text."""

import re

__all__ = ["collapse"]

# Controls and noncharacters: invisible, and some consumers reject them (language detection does).
# And what only says where a word may be divided, or not: it would end the word for a search index.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff"
    "\xad\u200b\u2060\ufeff]"
)


def collapse(text: str) -> str:
    """Return `text` in one line: each run of whitespace a single space, none at the ends.

    Control characters, lone surrogates and noncharacters are removed, so the result can always be
    encoded as UTF-8; and soft hyphens and characters without width between letters of a word.
    """
    if not text.isascii() or not text.isprintable():
        text = _INVISIBLE.sub("", text)
    return " ".join(text.split())
