"""Figure 7's texts. Standard library only: peers' own environments import this too."""

from __future__ import annotations

import random
from typing import Final

BODY: Final = 1000
_POOL: Final = 1 << 22
_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyzetaoin "


class Bodies:
    """The documents' texts of 1,000 letters: stretches of four million, by a document's number."""

    def __init__(self) -> None:
        table = bytes(_LETTERS[one % len(_LETTERS)] for one in range(256))
        self._pool = random.Random(77).randbytes(_POOL).translate(table).decode()

    def __getitem__(self, doc: int) -> str:
        at = doc * 7919 % (_POOL - BODY)
        return self._pool[at : at + BODY]
