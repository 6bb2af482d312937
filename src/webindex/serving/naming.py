"""What a page is called: the names by which it is sought as a whole, the same for every index.

A title tells more than its page: its number in a manual, the name of the site. The texts of links
tell less: those of "Next", "Up" and "Home" are about the link and not about the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["is_navigation", "names", "telling"]

# "8.15. Arrays", "Chapter 12. Full Text Search", "Part II. The SQL Language", "F.12. dblink".
_NUMBER: Final = re.compile(r"(?:\w+ )?(?:\d+|[A-Z]|[IVXLC]{1,6})(?:\.\d+)*\. (?=\S)")
# "argparse — Parser for command-line options — Python 3.11.2 documentation"
_PARTS: Final = re.compile(r"\s+[—–|·»«:-]+\s+|:\s+")

_NAVIGATION: Final = frozenset(
    """
    back|backward|back to top|bottom|click here|close|contents|details|first|first page|forward
    |go|go to top|here|home|home page|homepage|index|last|last page|link|main page|menu|more
    |more info|more information|next|next page|next topic|next chapter|next section|parent|permalink
    |prev|prev page|previous|previous page|previous topic|previous chapter|read more|see also
    |show source|skip|skip to content|start|table of contents|this|this page|toc|top|up|up one level
    |view source|fast forward|fast backward|modules
    |da|de|en|es|fr|it|ja|ko|nl|pl|pt|pt-br|ru|tr|zh|zh-cn|zh-tw
    |zurück|weiter|nach oben|nach unten|hoch|startseite|inhalt|inhaltsverzeichnis|vorherige|vorige
    |nächste|vor|hier|mehr
    |accueil|suivant|précédent|précédente|haut|bas|sommaire|retour|ici|niveau supérieur
    |inicio|siguiente|anterior|arriba|abajo|volver|subir|índice|aquí
    |pagina principale|successivo|precedente|su|indietro|avanti|indice
    |vorige|volgende|omhoog|omlaag|início|próximo|próxima|acima
    |назад|вперед|вперёд|далее|вверх|наверх|начало|содержание|пред|след|глава
    |前へ|次へ|戻る|ホーム|上へ|目次|上一页|下一页|首页|目录|返回|이전|다음|처음|위로
    |geri|ileri|yukarı|ana sayfa
    """.replace("\n", "")
    .replace("    ", "")
    .split("|")
)


def is_navigation(text: str) -> bool:
    """Whether the text of a link tells where in a site it leads, and nothing of the page there.

    Nor does the code of a language, by which versions of a page link to each other.
    """
    said = " ".join(text.casefold().split()).strip(" .:…»«<>›‹[]()→←↑↓¶#")
    return said in _NAVIGATION or not any(letter.isalpha() for letter in said)


def telling(anchors: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """The texts of links, with their numbers, that tell something of the page."""
    return tuple((text, count) for text, count in anchors if not is_navigation(text))


def names(title: str) -> list[str]:
    """The names that a title gives its page, the whole title first.

    Those are the title without a number before it, and its beginnings up to a dash, a colon or a
    bar, after which there are explanations and the names of sites.
    """
    found = {title: None}
    bare = _NUMBER.sub("", title, count=1) if _NUMBER.match(title) else title
    for one in (title, bare):
        found[one] = None
        for part in _PARTS.finditer(one):
            found[one[: part.start()]] = None
    return [name for name in found if name.strip()]
