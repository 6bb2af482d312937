"""The query syntax of the search box, the same for every serving index.

    linux kernel        both words, anywhere in the document
    "linux kernel"      the two words side by side
    linux -kernel       without the second word, as typed: pages with other forms of it stay
    git --amend         both words: an option, with two dashes
    linux kern          words that begin with the last one, if no document contains it as typed
    what is linux       "what" and "is" need not be there: little words beside others
    raw_input, $HOME    that very name before its parts
    kernel.org/doc      the page with that URL; then pages with those words

There is no other syntax and there are no errors: stray quotes, colons, brackets and operators
come from pasted text and only separate words. A typed word that an index splits into several,
such as mod_rewrite, std::vector, a run of Chinese or a Hebrew abbreviation, means those words side
by side. A quote after a digit stands for inches.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace

from webindex.page.text import collapse

# Limits beyond what people type. Indexes ignore the rest of a longer query; `check_length`
# refuses it before, so that a user knows.
MAX_CHARACTERS = 500
MAX_CLAUSES = 32

# As in Hebrew abbreviations, which have a quote before their last letter.
_IN_WORD = r'(?<=[\u05d0-\u05ea])"(?=[\u05d0-\u05ea])'
_CLAUSE = re.compile(
    rf"""
    (?:(?<!\S)(?P<minus>-)(?!-))?
    (?: (?: (?<![\d\u05d0-\u05ea])" | [“„”] ) (?P<phrase>(?:[^"“„”]|{_IN_WORD})+) ["“”]
      | (?P<word>(?:[^\s"“„”]|{_IN_WORD})+) )
    """,
    re.VERBOSE,
)


_LITTLE = frozenset(
    """
    a about all an and any are as at be been between by can could did do does for from had has have
    how i if in into is it its me my no not of on or our should so than that the their them then
    there these they this those to us was we were what when where which who why will with would you
    your
    der die das den dem des ein eine einen einem einer und oder ist sind wie was wo wann warum wer
    ich man kann im am auf aus bei mit nach von zu zum zur für nicht
    le la les un une des du de et ou est sont comment quoi pourquoi quand qui que je on dans sur
    pour avec par au aux en ne pas
    el los las una y o es son cómo qué por para con del al se no
    """.split()  # noqa: SIM905
)
"""Words that hold a sentence together. Pages need not have them, unless a query has no others."""

# Letters with a digit, an underscore or a dollar sign among them, as names of programs have.
_NAME = re.compile(r"(?=.*(?:[^\W\d_]|\$))(?=.*[\d_$])[\w$]+")


class BadQueryError(ValueError):
    """A search that is not possible; the message is a sentence for the user who typed it."""


@dataclass(frozen=True, slots=True)
class Clause:
    """Words that must stand side by side or, with `excluded`, must not.

    `quoted` means that they were typed as a phrase; `little` that a page without them may match,
    and one with them is better.
    """

    text: str
    excluded: bool = False
    quoted: bool = False
    little: bool = False

    @property
    def name(self) -> str | None:
        """The identifier that this is, in lower case: `pg_dump`, `$1`, `utf8`; else None."""
        text = self.text.strip("().,;:").lower()
        return text if not self.quoted and _NAME.fullmatch(text) else None


def check_length(query: str) -> None:
    """Raise BadQueryError if a part of this query would be ignored."""
    words = sum(match["word"] != "AND" for match in _CLAUSE.finditer(query))
    for number, most, what in (
        (len(query), MAX_CHARACTERS, "characters"),
        (words, MAX_CLAUSES, "words and phrases"),
    ):
        if number > most:
            raise BadQueryError(
                f"Your query has {number:,} {what} and may have {most}: "
                "leave out what you can do without."
            )


def hint_for(query: str, words: int) -> str | None:
    """What to do about a query that has nothing to look for in it; None if it has.

    `words` says how many words and phrases of it the index has looked for.
    """
    clauses = parse_query(query)
    if any(letter.isalnum() for letter in query) and clauses:
        if all(one.excluded for one in clauses):
            return "Your query only says what to leave out: add a word that pages should have."
        if words:
            return None
    return "There is no word in your query that can be looked for: type a word or two."


def with_replaced(query: str, new: Callable[[Clause], str | None]) -> str | None:
    """The query with other texts in place of its clauses, except where `new` gives None.

    None if it gives no other text.
    """
    tidied = _tidied(query[:MAX_CHARACTERS])

    def replaced(match: re.Match[str]) -> str:
        return new(_clause(match)) or match[0]

    changed = _CLAUSE.sub(replaced, tidied, MAX_CLAUSES)
    return changed if changed != tidied else None


def _tidied(query: str) -> str:
    # As texts are: without lone surrogates, which some clients send, and without soft hyphens.
    return unicodedata.normalize("NFC", collapse(query))


def _clause(match: re.Match[str]) -> Clause:
    return Clause(
        match["phrase"] or match["word"],
        excluded=bool(match["minus"]),
        quoted=match["phrase"] is not None,
    )


def parse_query(query: str) -> list[Clause]:
    """Parse a user's query. The texts are in Unicode form NFC and may contain no word at all."""
    clauses = [
        _clause(match)
        for match in _CLAUSE.finditer(_tidied(query[:MAX_CHARACTERS]))
        # Every word is required anyway, so AND is redundant; it is not searched for.
        if match["word"] != "AND"
    ]
    clauses = clauses[:MAX_CLAUSES]
    little = [
        not (one.excluded or one.quoted) and one.text.strip("?!.,;:").lower() in _LITTLE
        for one in clauses
    ]
    if all(little[at] or one.excluded for at, one in enumerate(clauses)):
        return clauses
    return [replace(one, little=at) for one, at in zip(clauses, little, strict=True)]
