"""Why a page shows the text of a link: from its document back to the capture that was loaded."""

from __future__ import annotations

from chains import WORDS, Chain, page

from percola.observers.causes import Change, causes
from webindex import tables
from webindex.page.urls import page_row

LINKED, LINKING = "https://a.example/", "https://b.example/links"


def steps(change: Change) -> list[str]:
    """From a change back to its first cause, by the newest change of each run."""
    found = [f"{change.cell.table}.{change.cell.column.decode().partition(':')[0]}"]
    while change.runs:
        change = change.runs[0].changes[0]
        found.append(f"{change.cell.table}.{change.cell.column.decode()}")
    return [*found, change.end]


def test_the_text_of_a_link_leads_back_to_the_page_that_links(empty: Chain) -> None:
    empty.repo.record_runs()
    empty.load([page(LINKED, f"<title>A</title>{WORDS}")])
    empty.work(threads=1)
    empty.load([page(LINKING, f'<title>B</title>Other {WORDS} <a href="{LINKED}">anchor</a>')])
    empty.work(threads=1)
    assert "anchor" in str(empty.document(LINKED))
    found = causes(empty.repo, tables.document, empty.cluster(LINKED))
    assert steps(found) == [
        "clusters.document",
        "clusters.changed",
        "inlinks.changed",
        "pages.links",
        "pages.capture",
        "not written by an observer: by a program, a loader or a job",
    ]
    change = found
    while change.cell.table != "pages":
        change = change.runs[0].changes[0]
    assert change.cell.row == page_row(LINKING).encode()
