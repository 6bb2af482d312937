"""The query syntax of the search box, the same for every serving index.

    linux kernel        both words, anywhere in the document
    "linux kernel"      the two words side by side
    linux -kernel       without the second word
    linux kern          words that begin with the last one, if no document contains it as typed
    kernel.org/doc      the page with that URL; then pages with those words

There is no other syntax and there are no errors: stray quotes, colons, brackets and operators
come from pasted text and only separate words. A typed word that an index splits into several,
such as mod_rewrite, std::vector or a run of Chinese, means those words side by side.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

# Limits beyond what people type; the rest of a longer query is ignored, not refused.
MAX_CHARACTERS = 500
MAX_CLAUSES = 32

_CLAUSE = re.compile(
    r"""
    (?:(?<!\S)(?P<minus>-))?
    (?: ["“„”] (?P<phrase>[^"“„”]+) ["“”]
      | (?P<word>[^\s"“„”]+) )
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Clause:
    """Words that must stand side by side or, with `excluded`, must not.

    `quoted` means that they were typed as a phrase.
    """

    text: str
    excluded: bool = False
    quoted: bool = False


def parse_query(query: str) -> list[Clause]:
    """Parse a user's query. The texts are in Unicode form NFC and may contain no word at all."""
    # A lone surrogate, which some clients send, cannot be passed to any index.
    query = query[:MAX_CHARACTERS].encode("utf-8", "replace").decode()
    found = _CLAUSE.finditer(unicodedata.normalize("NFC", query))
    clauses = [
        Clause(
            match["phrase"] or match["word"],
            excluded=bool(match["minus"]),
            quoted=match["phrase"] is not None,
        )
        for match in found
        # Every word is required anyway, so AND is redundant; it is not searched for.
        if match["word"] != "AND"
    ]
    return clauses[:MAX_CLAUSES]
