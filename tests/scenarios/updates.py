"""Random updates of a crawl: what sites do to their pages, and crawlers to their operators.

`Updates` makes them from a seed. It keeps in mind what each page has become, so that pages come
back which had gone, and redirects lead to redirects. In whatever order its captures are loaded
the index must come to the same: so a capture that arrives late is never one of a page of which
there are revisits, because one that refers to more captures back than are kept stays unresolved.
Revisits and captures in any order are tested in `tests/webindex/test_revisits.py`.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from tests.scenarios.writing import Answer, answer_of, payload_digest
from webindex.corpus.edits import (
    Canonical,
    Comment,
    CrossLinks,
    Edit,
    NoIndex,
    Paragraph,
    Reword,
    apply,
)
from webindex.crawl.warc import Capture
from webindex.page.fingerprints import tokens
from webindex.page.pages import Page, parse
from webindex.page.pointers import MAX_HOPS
from webindex.page.urls import normalise, registrable_domain

WEIGHTS: Final = {
    "changed text": 14,
    "changed links": 12,
    "same text in other bytes": 5,
    "gone": 9,
    "back": 12,
    "redirect": 8,
    "redirect to a redirect": 5,
    "cycle of redirects": 2,
    "link of a long chain": 4,
    "refresh in the markup": 3,
    "canonical": 8,
    "canonical on another domain": 2,
    "near-duplicate": 10,
    "copy": 5,
    "noindex": 6,
    "older than all": 3,
    "late": 4,
    "unavailable": 4,
    "unchanged": 4,
}
"""How often each kind of update is made, relative to the others."""

_STATUSES: Final = {
    "gone": (404, 410),
    "redirect": (301, 302, 303, 307, 308),
    "unavailable": (500, 502, 503, 429, 408),
}
_WORDS: Final = ("the manual", "see here", "reference", "this page", "an introduction")
_LONG: Final = 300
_VARIANTS: Final = 40
_CHAIN: Final = MAX_HOPS + 4
_LAST: Final = _CHAIN + 3
_HOT: Final = 5


@dataclass(frozen=True)
class Variant:
    """A page's body with a few words changed, that is still a near-duplicate of it."""

    page: Capture
    body: bytes
    changed: bool


@dataclass
class Known:
    """What the newest capture of a page says, as far as this module knows."""

    date: datetime
    kind: str
    target: str | None = None
    digest: str | None = None


class Updates:
    """Updates of some pages, without end.

    Args:
        pages: captures of live pages, with bodies; a few dozen at least, from several domains.
        seed: decides all that is chance.

    Attributes:
        kinds: how many updates of each kind were made.
        near: how many near-duplicates with a text of their own.
    """

    def __init__(self, pages: Sequence[Capture], seed: int) -> None:
        self.kinds: Counter[str] = Counter()
        self.near = 0
        self._rng = random.Random(f"updates {seed}")
        self._original = {normalise(one.url): one for one in pages}
        self._urls = sorted(self._original)
        self._domains: defaultdict[str, list[str]] = defaultdict(list)
        for url in self._urls:
            self._domains[registrable_domain(url)].append(url)
        self._hot = self._rng.sample(self._urls, _HOT)
        # Pages that nobody has crawled before: other spellings of known ones, and mirrors.
        self._new = [
            *(url.replace("https:", "http:", 1) for url in self._urls[::7]),
            *(f"https://mirror.example/{n:02}" for n in range(len(self._urls) // 7)),
        ]
        self._chain = [f"https://moved.example/{n:02}" for n in range(_CHAIN)]
        self._began = max(one.date for one in pages) + timedelta(days=100)
        self._first = min(one.date for one in pages)
        self._now = self._began
        self._known = {
            url: Known(one.date, "back", digest=one.payload_digest)
            for url, one in self._original.items()
        }
        self._variants = list(self._near_variants())
        # Those that may have revisits, and those of which captures may arrive late.
        self._may_be_late = set(self._urls[::3])
        self._makers: dict[str, Callable[[], Iterator[Answer]]] = {
            "changed text": self._change_text,
            "changed links": self._change_links,
            "same text in other bytes": self._change_bytes,
            "gone": self._remove,
            "back": self._bring_back,
            "redirect": lambda: self._redirect(self._any(), self._any()),
            "redirect to a redirect": self._redirect_on,
            "cycle of redirects": lambda: self._make_cycle(self._rng.choice((2, 3))),
            "link of a long chain": self._link_chain,
            "refresh in the markup": self._refresh,
            "canonical": self._name_canonical,
            "canonical on another domain": self._name_foreign_canonical,
            "near-duplicate": self._resemble,
            "copy": self._copy,
            "noindex": self._withhold,
            "older than all": self._arrive_oldest,
            "late": self._arrive_late,
            "unavailable": self._fail,
            "unchanged": self._repeat,
        }

    def take(self, number: int) -> list[Answer]:
        """About so many updates; a cycle and a chain that is too long are there at their end."""
        kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
        taken: list[Answer] = []
        while len(taken) < number - _LAST:
            # First each kind once: what is rare must not be missing in a short run.
            never = [kind for kind in kinds if not self.kinds[kind]]
            kind = never[0] if never else self._rng.choices(kinds, weights)[0]
            some = list(self._makers[kind]())
            self.kinds[kind] += len(some)
            taken += some
        cycle = list(self._make_cycle(3))
        chain = [one for at in reversed(range(_CHAIN)) for one in self._link(at)]
        self.kinds["cycle of redirects"] += len(cycle)
        self.kinds["link of a long chain"] += len(chain)
        return [*taken, *cycle, *chain]

    def became(self) -> Counter[str]:
        """What the pages are in the end, by the kind of update that made them so; in addition
        the redirects that lead through others, round in circles, and further than is followed.
        """
        found = Counter(one.kind for one in self._known.values())
        for url, one in self._known.items():
            if one.target is None:
                continue
            seen = [url]
            at: str | None = one.target
            while at is not None and at not in seen:
                seen.append(at)
                at = self._known[at].target if at in self._known else None
            if at is not None:
                found["a redirect that ends in a cycle"] += 1
            elif len(seen) - 2 > MAX_HOPS:
                found["a redirect through too many others"] += 1
            elif len(seen) > 2:
                found["a redirect through others"] += 1
        return found

    # --- Who, when --------------------------------------------------------------------

    def _any(self) -> str:
        return self._rng.choice(self._urls)

    def _any_or_new(self) -> str:
        return self._rng.choice(self._new if self._rng.random() < 0.4 else self._urls)

    def _mark(self) -> str:
        return f"{self._rng.getrandbits(40):010x}"

    def _tick(self) -> datetime:
        self._now += timedelta(minutes=1)
        return self._now

    def _say(
        self,
        kind: str,
        url: str,
        page: Capture,
        body: bytes = b"",
        *,
        status: int = 200,
        target: str | None = None,
        date: datetime | None = None,
        robots: str | None = None,
    ) -> Iterator[Answer]:
        """An answer for `url` in the charset of a page; what it makes of it is kept in mind."""
        when = self._tick() if date is None else date
        headers = {}
        if target is not None and status != 200:
            headers["Location"] = target
        if robots is not None:
            headers["X-Robots-Tag"] = robots
        known = self._known.get(url)
        if known is None or known.date < when:
            digest = payload_digest(body) if status == 200 else None
            self._known[url] = Known(when, kind, target, digest)
        later = when - page.date
        yield answer_of(page, later, url=url, status=status, body=body, headers=headers)

    def _edited(
        self, kind: str, url: str, *edits: Edit, robots: str | None = None
    ) -> Iterator[Answer]:
        page = self._original[url]
        yield from self._say(kind, url, page, apply(edits, page.body), robots=robots)

    # --- Text and links ---------------------------------------------------------------

    def _change_text(self) -> Iterator[Answer]:
        mark = self._mark()
        edits = Reword(8, mark), Paragraph(f"Revised; the revision is known as {mark}.")
        return self._edited("changed text", self._any(), *edits)

    def _change_links(self) -> Iterator[Answer]:
        chosen = {*self._rng.sample(self._hot, 2), self._any_or_new(), self._any()}
        links = tuple((url, self._rng.choice(_WORDS)) for url in sorted(chosen))
        return self._edited("changed links", self._any(), CrossLinks(links))

    def _change_bytes(self) -> Iterator[Answer]:
        return self._edited("same text in other bytes", self._any(), Comment(self._mark()))

    def _resemble(self) -> Iterator[Answer]:
        variant = self._rng.choice(self._variants)
        self.near += variant.changed
        return self._say("near-duplicate", self._any_or_new(), variant.page, variant.body)

    def _copy(self) -> Iterator[Answer]:
        page = self._original[self._any()]
        return self._say("copy", self._any_or_new(), page, page.body)

    def _withhold(self) -> Iterator[Answer]:
        if self._rng.random() < 0.5:
            return self._edited("noindex", self._any(), robots="noindex")
        return self._edited("noindex", self._any(), NoIndex())

    def _near_variants(self) -> Iterator[Variant]:
        found = 0
        for url in self._rng.sample(self._urls, len(self._urls)):
            page = self._original[url]
            original = _parsed(page, page.body)
            if original.sketch is None or len(tokens(original.text)) < _LONG:
                continue
            for words in (4, 2, 1):
                body = apply([Reword(words, f"{url} {words}")], page.body)
                other = _parsed(page, body)
                assert other.sketch is not None
                near = other.heading == original.heading and original.sketch.is_near(other.sketch)
                if near and other.text != original.text:
                    yield Variant(page, body, other.text_hash != original.text_hash)
                    found += 1
                    break
            if found == _VARIANTS:
                return

    # --- Coming and going ---------------------------------------------------------------

    def _remove(self) -> Iterator[Answer]:
        url = self._any() if self._rng.random() < 0.8 else self._rng.choice(self._new)
        page = self._original.get(url) or self._original[self._any()]
        return self._say("gone", url, page, status=self._rng.choice(_STATUSES["gone"]))

    def _bring_back(self) -> Iterator[Answer]:
        away = [url for url in self._urls if self._known[url].kind != "back"]
        return self._edited("back", self._rng.choice(away or self._urls))

    def _fail(self) -> Iterator[Answer]:
        url = self._any()
        # It says nothing of the page, so nothing is kept in mind.
        yield answer_of(
            self._original[url],
            self._tick() - self._original[url].date,
            status=self._rng.choice(_STATUSES["unavailable"]),
        )

    def _repeat(self) -> Iterator[Answer]:
        repeatable = [
            url
            for url in self._urls
            if url not in self._may_be_late and self._known[url].digest is not None
        ]
        url = self._rng.choice(repeatable)
        self._known[url].date = date = self._tick()
        yield Answer(url, date, same=self._known[url].digest)

    def _arrive_oldest(self) -> Iterator[Answer]:
        date = self._first - timedelta(minutes=self._rng.randrange(1, 10_000))
        url = self._any()
        page = self._original[url]
        body = apply([Paragraph(f"From long ago: {self._mark()}.")], page.body)
        return self._say("older than all", url, page, body, date=date)

    def _arrive_late(self) -> Iterator[Answer]:
        """A capture of some moment since the updates began; a newer one may be known."""
        passed = (self._now - self._began) // timedelta(minutes=1)
        minutes = self._rng.randrange(max(1, passed))
        date = self._began + timedelta(minutes=minutes, seconds=self._rng.randrange(1, 60))
        url = self._rng.choice(sorted(self._may_be_late))
        page = self._original[url]
        body = apply([Paragraph(f"Arrived late: {self._mark()}.")], page.body)
        return self._say("late", url, page, body, date=date)

    # --- Pointing elsewhere ---------------------------------------------------------------

    def _redirect(self, url: str, target: str, kind: str = "redirect") -> Iterator[Answer]:
        page = self._original.get(url) or self._original[self._urls[0]]
        status = self._rng.choice(_STATUSES["redirect"])
        return self._say(kind, url, page, status=status, target=target)

    def _redirect_on(self) -> Iterator[Answer]:
        redirects = [url for url, one in self._known.items() if one.target is not None]
        target = self._rng.choice(redirects or self._urls)
        return self._redirect(self._any(), target, "redirect to a redirect")

    def _make_cycle(self, length: int) -> Iterator[Answer]:
        around = self._rng.sample(self._urls, length)
        for place, url in enumerate(around):
            yield from self._redirect(url, around[place - 1], "cycle of redirects")

    def _link_chain(self) -> Iterator[Answer]:
        """One link of a chain that is too long to be followed from its beginning."""
        unmade = [place for place, url in enumerate(self._chain) if url not in self._known]
        place = unmade[-1] if unmade else self._rng.randrange(len(self._chain))
        if not unmade and place < len(self._chain) // 2 and self._rng.random() < 0.2:
            page = self._original[self._urls[0]]
            return self._say("link of a long chain", self._chain[place], page, status=404)
        return self._link(place)

    def _link(self, place: int) -> Iterator[Answer]:
        if place < _CHAIN - 1:
            target = self._chain[place + 1]
        else:
            # A page that is no redirect: else the chain might come to lead round in a circle.
            target = self._rng.choice([one for one in self._urls if not self._known[one].target])
        return self._redirect(self._chain[place], target, "link of a long chain")

    def _refresh(self) -> Iterator[Answer]:
        url, target = self._rng.sample(self._urls, 2)
        markup = (
            f'<!doctype html><meta http-equiv="refresh" content="0; url={target}">'
            f'<title>Moved</title><a href="{target}">Moved</a>'
        )
        page = self._original[url]
        return self._say("refresh in the markup", url, page, markup.encode(), target=target)

    def _name_canonical(self) -> Iterator[Answer]:
        url = self._any()
        target = self._rng.choice(self._domains[registrable_domain(url)])
        return self._edited("canonical", url, Canonical(target))

    def _name_foreign_canonical(self) -> Iterator[Answer]:
        url = self._any()
        mine = registrable_domain(url)
        target = self._rng.choice([one for one in self._urls if registrable_domain(one) != mine])
        return self._edited("canonical on another domain", url, Canonical(target))


def _parsed(page: Capture, body: bytes) -> Page:
    return parse(body, normalise(page.url), page.headers.get("content-type"))
