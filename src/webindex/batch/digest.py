"""Short forms of values, for comparing, shuffling and displaying them.

Two values are equal if their short forms are; the short form of a long value has a digest, and its
beginning so that a reader recognises it.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any, Final

LONGEST_TEXT: Final = 400
LONGEST_VALUE: Final = 3000
_SHOWN: Final = 80

TIMES: Final = frozenset({"loaded_ms", "changed", "seen", "epoch", "file", "offset", "length"})
"""Fields that depend on when and from where something was loaded, not on its content."""


def brief(text: str, longest: int = LONGEST_TEXT) -> str:
    """The text itself if it is short; else its beginning, its length and a digest of all of it."""
    if len(text) <= longest:
        return text
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{text[:_SHOWN]}… ({len(text):,} characters, {digest})"


def canonical(value: Any) -> str:
    """A value as JSON, always the same for equal ones; a long one abbreviated."""
    if isinstance(value, bytes):
        value = value.hex()
    return brief(json.dumps(value, ensure_ascii=False, sort_keys=True), LONGEST_VALUE)


def timeless(value: dict[str, Any]) -> dict[str, Any]:
    """The fields of a value that do not depend on time."""
    return {name: one for name, one in value.items() if name not in TIMES}
