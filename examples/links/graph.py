"""A link graph: who links to a page, and which links are broken.

- pages: the links of each page
- in_links: how many pages link to a page, also to one that does not exist
- linking: which pages link to a page
- broken: for each page, those of its links that lead nowhere
"""

from __future__ import annotations

from percola import JSON, Table, Transaction, observer
from percola.recipes import Index, Sums

pages = Table("pages")
links = pages.column("links", JSON, observed=True)
exists = pages.column("exists", bool)  # whether its in-linking pages know that it exists
due = pages.weak_column("due")

broken = Table("broken")
targets = broken.column("targets", JSON)

in_links = Sums("in_links", pages, {})
linking = Index("linking", pages, due=due)


@observer(links)
def follow(t: Transaction, page: str) -> None:
    """Register a page's links; if it has appeared or gone, notify the pages that link to it."""
    found = t.get(links, page)
    in_links.contribute(t, page, {target: {} for target in found or []})
    linking.register(t, page, found or [])
    if (found is not None) != bool(t.get(exists, page)):
        t.set(exists, page, found is not None)
        linking.notify_owners(t, page)


@observer(due)
def find_broken(t: Transaction, page: str) -> None:
    """Note which links of a page lead nowhere. It runs after they were registered."""
    missing = [target for target in linking.keys(t, page) if t.get(links, target) is None]
    if missing:
        t.set(targets, page, missing)
    else:
        t.delete(targets, page)


RECIPES = [in_links, linking]
SCHEMA = [pages, broken, *(table for recipe in RECIPES for table in recipe.tables)]
OBSERVERS = [follow, find_broken, *(one for recipe in RECIPES for one in recipe.observers)]
