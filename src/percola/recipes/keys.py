"""Row keys made of parts: a group and a value, a key and its owner, a node of a tree.

    shop/blue%2Fgreen            two parts; '/' and '%' within a part are escaped
    Lorem ipsum dolor…~9f86d08…  a part that is longer than `PART_BYTES` ends with its hash

Parts are joined with '/', so all rows of one first part are one range of the table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from percola.errors import WrongTypeError

PART_BYTES: Final = 96
"""The longest part, in bytes, that is written out: rows of two parts fit into every store."""

_HASH_CHARACTERS: Final = 32
_ESCAPED: Final = str.maketrans({"%": "%25", "/": "%2F", "~": "%7E", "\0": "%00"})


def check_key(text: object) -> None:
    """Check that something can be a key of a recipe; WrongTypeError if not."""
    if not isinstance(text, str) or not text:
        raise WrongTypeError(
            f"A key of a recipe is a text of at least one character, but this is "
            f"{type(text).__name__} {text!r}."
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise WrongTypeError(f"The key {text!r} of a recipe is not valid Unicode text.") from error


def listed(keys: Iterable[str]) -> list[str]:
    """Keys as they come; WrongTypeError if one cannot be a key, or for a single text."""
    if isinstance(keys, str) or not isinstance(keys, Iterable):
        raise WrongTypeError(
            f"Keys and values of a recipe are lists of texts, but this is {type(keys).__name__} "
            f"{keys!r}."
        )
    found = list(keys)
    for key in found:
        check_key(key)
    return found


def keys_in(keys: Iterable[str]) -> list[str]:
    """Different keys in order; errors are those of `listed`."""
    return sorted(set(listed(keys)))


def part(text: str) -> str:
    """One part of a key, escaped, and shortened if it is long; WrongTypeError if it is no text.

    Different texts have different parts: those that are shortened differ in their SHA-256.
    """
    check_key(text)
    escaped = text.translate(_ESCAPED)
    raw = escaped.encode()
    if len(raw) <= PART_BYTES:
        return escaped
    kept = raw[: PART_BYTES - _HASH_CHARACTERS - 1].decode(errors="ignore")
    return f"{kept}~{hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARACTERS]}"


def join(*parts: str) -> str:
    """The row key of some parts."""
    return "/".join(map(part, parts))


def below(*parts: str) -> str:
    """The prefix of all rows that begin with these parts and have one more."""
    return join(*parts) + "/"
