"""`webindex explain`: the report of a page on a terminal, or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from webindex.reports import KINDS, Link, Member, Picture, PointsHere, Story, Version, kinds
from webindex.text_format import count, date, harmless, moment

__all__ = ["print_story", "story_json"]

LISTED: Final = 20
"""Lines of a list by default."""

_LONGEST: Final = 300
"""Characters that are shown of what is left out of a text."""

_COLOURS: Final = {"shown": "green", "folded": "yellow", "moved": "yellow", "waiting": "yellow"}


def story_json(story: Story, most: int) -> dict[str, Any]:
    """The report as plain values, with at most `most` links, and pages that point here.

    `in_links` and `out_links` are `{total, kinds, first}`, `pointing` is `{total, first}`.
    """
    whole = asdict(story)
    for name, links in (("in_links", story.in_links), ("out_links", story.out_links)):
        whole[name] = {
            "total": len(links),
            "kinds": dict(kinds(links)),
            "first": whole[name][:most],
        }
    whole["pointing"] = {"total": len(story.pointing), "first": whole["pointing"][:most]}
    return {"headline": story.headline, "known": story.known, **whole}


def print_story(console: Console, story: Story, most: int) -> None:
    """Print the report, with at most `most` links, and pages that point here."""
    console.print(_text(story.url, style="bold green"))
    if story.title:
        console.print(_text(f"{story.title}  ({story.language or 'language unknown'})"))
    colour = _COLOURS.get(story.standing, "")
    console.print(_text(story.headline, style=f"bold {colour}".strip()))
    for reason in story.reasons:
        console.print(_text(reason))
    for step in story.waiting:
        console.print(_text(step, style="yellow"))
    if any("waits" in step for step in story.waiting):
        console.print(_text("'webindex work' works that off.", style="dim"))
    for trouble in story.troubles:
        console.print(
            _text(
                f"Dead-lettered for the observer {trouble.observer}, which failed "
                f"{count(trouble.attempts, 'time')}: {trouble.error}",
                style="red",
            )
        )
    facts = _facts(story)
    if facts:
        console.print(_text("\n" + " · ".join(facts)))
    if story.way is not None and len(story.way.steps) > 1:
        steps = [_step(one.url, one.status) for one in story.way.steps]
        _section(console, "Where it points, step by step", steps)
    pointing = [_points(one) for one in story.pointing[:most]]
    _section(console, f"Pages that point to it ({len(story.pointing):,})", pointing)
    _more(console, len(story.pointing) - len(pointing), "--links shows more")
    if story.size > 1:
        title = f"One document ({count(story.size, 'page')}, cluster {story.cluster})"
        told = story.members[:LISTED]
        _section(console, title, [line for one in told for line in _member(one)])
        _more(console, story.size - len(told), "--json has the first hundred")
    ends = [f"{one[:_LONGEST]}{'…' * (len(one) > _LONGEST)}" for one in story.left_out]
    _section(console, "Left out of its text, as its host repeats it", ends)
    _picture(console, story.picture)
    _section(console, "Captures", [_version(one) for one in story.versions[:LISTED]])
    _more(console, len(story.versions) - LISTED, "--json has them")
    _links(console, "Links to this URL", story.in_links, most)
    if story.in_links_more:
        console.print(_text("  There are more than can be listed: these are some of them."))
    if story.canonical is not None:
        console.print(_text(f"\nLinks that lead here: {story.document_in_links:,}", style="bold"))
        for line in _counted(story):
            console.print(_text(f"  {line}"))
    _links(console, "Links from it", story.out_links, most)


def _picture(console: Console, picture: Picture | None) -> None:
    """Print what the page's image is, and why it was made; nothing if there is none."""
    if picture is None:
        return
    longer = ", the page is longer" if picture.cut else ""
    size = f"{picture.width:,} x {picture.height:,} pixels{longer}"
    lines = [
        f"{size}, with {count(picture.resources, 'resource')}",
        *(one.sentence for one in picture.made),
    ]
    lines += [f"not captured: {url}" for url in picture.missing[:LISTED]]
    _section(console, "Image", lines)
    _more(console, len(picture.missing) - LISTED, "--json has them")


def _facts(story: Story) -> list[str]:
    facts = []
    if story.status is not None:
        facts.append(f"status {story.status}")
    if story.unresolved:
        facts.append(f"{count(story.unresolved, 'revisit')} not resolved")
    if story.unchanged is not None:
        facts.append(f"reported unchanged {date(story.unchanged)}")
    if story.rank is not None:
        when = "" if story.rank.at_ms is None else f"{moment(story.rank.at_ms)}, "
        how = "estimated from ranks" if story.rank.interim else "computed"
        facts.append(f"rank {story.rank.value:.3g} ({how} {when}timestamp {story.rank.run:,})")
    if story.asks:
        facts.append(f"asks for {' and '.join(story.asks)}")
    return facts


def _step(url: str, status: int | None) -> str:
    return f"{url}  {'never captured' if status is None else f'status {status}'}"


def _points(one: PointsHere) -> str:
    how = "" if one.direct else ", through other redirects"
    return f"{one.url}  {one.kind}{how}" + ("" if one.counts else "  [does not count]")


def _member(one: Member) -> list[str]:
    rank = "" if one.rank is None else f"  rank {one.rank:.3g}"
    lines = [f"{'* ' if one.canonical else '  '}{one.url}{rank}"]
    return lines + [f"      {words}" for words in [*one.belongs, one.why] if words]


def _version(one: Version) -> str:
    where = f"{one.file}@{one.offset}"
    known = [] if one.committed_by is None else [f"Loaded by {date(one.committed_by)}."]
    words = " ".join([one.change, *one.notes, *known])
    return f"{one.commit_ts:>10}  {one.date}  status {one.status}  {where}  {words}"


def _counted(story: Story) -> list[str]:
    """The summands of the number of links, if more than one URL contributes."""
    if len(story.counted) < 2:
        return []
    linked = [one for one in story.counted if one.links or one.url == story.url]
    lines = [
        f"{one.links:,} to {one.url}  {'this URL' if one.url == story.url else one.role}"
        for one in linked[:LISTED]
    ]
    if linked[LISTED:]:
        rest = sum(one.links for one in linked[LISTED:])
        lines.append(f"{rest:,} to {count(len(linked) - LISTED, 'other URL')}")
    return lines + ([f"less {story.inside:,} between its own pages"] if story.inside else [])


def _links(console: Console, title: str, links: Sequence[Link], most: int) -> None:
    if not links:
        return
    told = ", ".join(f"{number:,} {KINDS.get(rel, rel)}" for rel, number in kinds(links))
    console.print(_text(f"\n{title} ({told})", style="bold"))
    for one in links[:most]:
        console.print(_text("  " + _link(one)))
    _more(console, len(links) - most, "--links shows more")


def _link(one: Link) -> str:
    words = f"{one.url}  {' | '.join(one.anchors)!r}" if one.anchors else one.url
    if one.rel != "follow":
        return f"{words}  [{KINDS.get(one.rel, one.rel)}]"
    return words if one.counts else f"{words}  [of the same document]"


def _section(console: Console, title: str, lines: Sequence[str]) -> None:
    """Print lines under a title; nothing if there are none."""
    if lines:
        console.print(_text("\n" + title, style="bold"))
    for line in lines:
        console.print(_text("  " + line))


def _more(console: Console, number: int, how: str) -> None:
    if number > 0:
        console.print(_text(f"  … and {number:,} more ({how})", style="dim"))


def _text(words: str, style: str = "") -> Text:
    """Crawled text, without characters that break a line or control a terminal."""
    return Text(harmless(words), style=style)
