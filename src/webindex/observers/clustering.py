"""§3.1: clusters of pages that are one document to a reader, maintained as pages change.

A cluster is a connected component (`webindex.observers.components`). `join` maintains them one page
at a time, and reads only what it needs:

    the page's keys are new     the rows of its keys name the clusters that they belong to; these
                                are merged, the smaller moving into the larger
    the page's keys changed     the components of its old cluster alone are recomputed: the
    or the page is gone         largest keeps the name, every other one becomes a new cluster;
                                then as above, with the rest of the component around the page
    a content came or went      other contents may get another leader (`observers.leaders`): their
                                pages leave their clusters and enter others in the same way

Under snapshot isolation two transactions that write different cells do not conflict, and two
pages of one text that arrive at the same moment would each found a cluster, having seen none
(write skew). So transactions that join or leave related clusters write a common cell:

    keys.owner          one cell for all pages with a content: its cluster, and their number
    keys.near           one cell for all contents that agree in a band: two near ones share one
    pages.joined        that of a canonical page is locked by every page that names it
    clusters.size       locked by every transaction that adds to, removes from, splits or merges a
                        cluster

Of a large cluster (`webindex.observers.summaries`), which `size` tells apart, the members are read
only if its components may have changed: see `_Change.update`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from secrets import token_hex
from typing import Any, Final

from percola import Column, Snapshot, Transaction, observer
from webindex import tables
from webindex.observers.components import content_key, partition
from webindex.observers.documents import announce, share_all
from webindex.observers.leaders import bands_of, leader_of_new, leads_others, replace
from webindex.observers.redirects import target_of
from webindex.page.urls import host, page_id, page_row

__all__ = ["join"]

Member = dict[str, Any]

_SOME_IDS: Final = ("000", "00", "0")
"""Prefixes of page ids, which are hashes: one in 4096, one in 256, one in 16."""


def _read_ahead(t: Snapshot, rows: Sequence[str]) -> None:
    """Prefetch what `join` reads for these pages, in batches."""
    own = (tables.capture, tables.fingerprint, tables.sketch, tables.joined, tables.resolved)
    t.get_many((column, row) for row in rows for column in own)
    cells: list[tuple[Column[str, Any], str]] = []
    leaving: list[Mapping[str, Any]] = []
    entering: list[tuple[str, Member]] = []
    sketches = {row: t.get(tables.sketch, row) for row in rows}
    for row in rows:
        found, standing = t.get(tables.capture, row), t.get(tables.joined, row)
        now = None if found is None else _member(t, row, found["url"])
        if found is None or (standing is None and now is None):
            continue
        page = page_id(found["url"])
        if standing is not None and now is not None and _same_keys(standing, now):
            cells += [(tables.member[page], standing["cluster"])]
            cells += [(tables.size, standing["cluster"])]
            continue
        cells.append((tables.live, _counter(found["url"])))
        if standing is not None:
            leaving.append(standing)
            cells += [(tables.owner, standing["content"]), (tables.size, standing["cluster"])]
            cells.append((tables.member[page], standing["cluster"]))
            cells.append((tables.sketch_of, standing["content"]))
        if now is not None:
            entering.append((row, now))
            cells.append((tables.owner, now["content"]))
            if now["target"] is not None:
                cells.append((tables.joined, page_row(now["target"])))
    t.get_many(cells)
    left = {
        standing["cluster"]
        for standing in leaving
        if t.get(tables.size, standing["cluster"]) is None
    }
    t.get_rows(tables.clusters, left, [tables.member])
    t.get_rows(tables.aliases, [page_row(now["url"]) for _, now in entering], [tables.leads_here])
    cells = []
    for standing in leaving:
        owner = t.get(tables.owner, standing["content"])
        if owner is not None and owner["pages"] == 1:
            cells += bands_of(standing["content"], t.get(tables.sketch_of, standing["content"]))
    new = []
    for row, now in entering:
        cells += [(tables.joined, page_row(one["url"])) for one in _copies(t, now)]
        if t.get(tables.owner, now["content"]) is None:
            new.append((row, now))
            cells += bands_of(now["content"], sketches[row])
    t.get_many(cells)
    for row, now in new:
        now["leader"] = leader_of_new(t, now["content"], sketches[row])
    around = [_around(t, now, t.get) for _, now in entering]
    t.get_many((tables.size, cluster) for one in around for cluster in one)
    merged = {cluster for one in around if len(one) > 1 for cluster in one}
    merged = {cluster for cluster in merged if t.get(tables.size, cluster) is None}
    t.get_rows(tables.clusters, merged - left, [tables.member])


@observer(tables.join_due, batch=tables.BATCH, ahead=_read_ahead)
def join(t: Transaction, row: str) -> None:
    """Update a page's membership, and the clusters around it, to match its current keys."""
    found = t.get(tables.capture, row)
    if found is None:
        return
    url = found["url"]
    page = page_id(url)
    standing = t.get(tables.joined, row)
    now = _member(t, row, url)
    if standing is None and now is None:
        return
    if standing is not None and now is not None and _same_keys(standing, now):
        _show(t, standing["cluster"], page, now)
        return
    change = _Change(t)
    was = None if standing is None else change.find(standing["cluster"], page)
    _count(
        t,
        url,
        pages=(now is not None) - (was is not None),
        indexable=(now is not None and now["indexable"]) - (was is not None and was["indexable"]),
    )
    _name(t, page, was, now)
    led = _change_content(t, row, was, now)
    touched = change.lead(led)
    if standing is not None and was is not None:
        stays = now is not None and now["content"] == was["content"]
        if not change.update(standing["cluster"], page, now if stays else None):
            change.load(standing["cluster"])
            change.put(standing["cluster"], page, now)
            touched.add(standing["cluster"])
    for cluster in sorted(touched):
        change.split(cluster)
    if now is None:
        t.delete(tables.joined, row)
    else:
        _enter(t, change, page, now, changed=was is None or was["content"] != now["content"])
    change.follow(led)
    change.write()


def _name(t: Transaction, page: str, was: Member | None, now: Member | None) -> None:
    """Enter a page at its canonical page, in the transaction in which it joins that one's cluster.

    `aliases.via` is changed before: it does not tell what connects a cluster until `join` has run.
    """
    targets = [None if one is None else one["target"] for one in (was, now)]
    if targets[0] != targets[1]:
        if targets[0] is not None:
            t.delete(tables.named_by[page], page_row(targets[0]))
        if targets[1] is not None:
            t.set(tables.named_by[page], page_row(targets[1]), 1)


def _change_content(
    t: Transaction, row: str, was: Member | None, now: Member | None
) -> dict[str, str]:
    """Count the page out of its old content, and find the leader of its new one.

    Returns the new leader of each content whose leader changes; the page's own is written into
    `now`, but not counted in yet.
    """
    gone, come = (None if one is None else str(one["content"]) for one in (was, now))
    if gone == come:
        assert was is not None and now is not None
        now["leader"] = was["leader"]
        return {}
    owner = None if come is None else t.get(tables.owner, come)
    if now is not None and owner is not None:
        now["leader"] = owner["leader"]
    last = None if gone is None else t.get(tables.owner, gone)
    led = replace(
        t,
        gone if last is not None and last["pages"] == 1 else None,
        come if owner is None else None,
        t.get(tables.sketch, row),
    )
    if gone is not None:
        _release(t, gone)
    if now is not None:
        # If the old content led the new one, the new one has another leader now.
        now["leader"] = led.get(now["content"], now["leader"])
    return led


def _member(t: Snapshot, row: str, url: str) -> Member | None:
    """The page as a member of a cluster; None if it is not live."""
    known = t.get(tables.fingerprint, row)
    if known is None:
        return None
    return {
        "url": url,
        "title": known["title"],
        "language": known["language"],
        "indexable": known["indexable"],
        "content": content_key(known),
        # Until its leader is known.
        "leader": content_key(known),
        "target": target_of(url, t.get(tables.resolved, row)),
        "loaded_ms": known["loaded_ms"],
        "changed": known.get("changed", ""),
    }


def _same_keys(standing: Mapping[str, Any], now: Member) -> bool:
    return all(standing[name] == now[name] for name in ("content", "target"))


def _show(t: Transaction, cluster: str, page: str, now: Member) -> None:
    """Write what a document shows of a page that stays in its cluster."""
    cell = tables.member[page]
    was = t.get(cell, cluster)
    if was is not None:
        now = {**now, "leader": was["leader"]}
    if was is not None and was["indexable"] != now["indexable"]:
        _count(t, now["url"], pages=0, indexable=now["indexable"] - was["indexable"])
    if was != now:
        t.set(cell, cluster, now)
    announce(t, cluster, page_row(now["url"]))


def _enter(
    t: Transaction, change: _Change, page: str, now: Member, *, changed: bool = True
) -> None:
    """Merge the page's current cluster with all clusters that share a key with the page.

    `changed` means that its content key is not counted yet.
    """
    around = _around(t, now, t.get_for_update)
    own = change.cluster_of(page)
    if own is not None:
        around.add(own)
    if not around:
        into = change.create()
    elif len(around) == 1:
        [into] = around
    else:
        into = change.merge(around)
    change.put(into, page, now)
    if changed:
        _claim(t, now, into)


Get = Callable[[Column[str, Any], str], Any]


def _around(t: Snapshot, now: Member, get_target: Get) -> set[str]:
    """The clusters of other pages that have an edge to this one.

    `get_target` reads the cluster that the target has joined, and locks that cell if its caller
    joins it as well.
    """
    found: set[str] = set()
    for content in {now["content"], now["leader"]}:
        owner = t.get(tables.owner, content)
        if owner is not None:
            found.add(owner["cluster"])
    if now["target"] is not None:
        joined = get_target(tables.joined, page_row(now["target"]))
        if joined is not None:
            found.add(joined["cluster"])
    for one in _copies(t, now):
        # Only once it has joined with that target: before that, its own `join` will merge them.
        joined = t.get(tables.joined, page_row(one["url"]))
        if joined is not None and joined["target"] == now["url"]:
            found.add(joined["cluster"])
    return found


def _copies(t: Snapshot, now: Member) -> list[Mapping[str, Any]]:
    """The pages that name this one as their canonical page, as {url, kind}."""
    leading = t.get_row(tables.aliases, page_row(now["url"]), [tables.leads_here])
    found = leading.family(tables.leads_here).values()
    return [one for one in found if one["kind"] == "canonical"]


# --- Keys -----------------------------------------------------------------------------------


def _claim(t: Transaction, now: Member, cluster: str) -> None:
    """Count one more page with a content."""
    owner = t.get(tables.owner, now["content"])
    pages = owner["pages"] if owner is not None else 0
    after = {"cluster": cluster, "leader": now["leader"], "pages": pages + 1}
    t.set(tables.owner, now["content"], after)


def _release(t: Transaction, content: str) -> None:
    """Count one page fewer with a content."""
    owner = t.get(tables.owner, content)
    assert owner is not None, content
    if owner["pages"] > 1:
        t.set(tables.owner, content, {**owner, "pages": owner["pages"] - 1})
    else:
        t.delete(tables.owner, content)


# --- Clusters -------------------------------------------------------------------------------


class _Change:
    """The changes that one run makes to clusters; members are written at its end.

    A cluster that a page is only added to is locked but not read, and one that is large is read
    only if it must be: it may have thousands of members.
    """

    def __init__(self, t: Transaction) -> None:
        self._t = t
        self._before: dict[str, dict[str, Member]] = {}
        self._after: dict[str, dict[str, Member]] = {}
        self._cluster_of: dict[str, str] = {}
        self._loaded: set[str] = set()

    def _lock(self, cluster: str) -> int | None:
        """Lock a cluster; its size if it is large."""
        self._before.setdefault(cluster, {})
        self._after.setdefault(cluster, {})
        return self._t.get_for_update(tables.size, cluster)

    def load(self, cluster: str) -> Mapping[str, Member]:
        """Lock a cluster and return its members."""
        if cluster not in self._loaded:
            self._lock(cluster)
            row = self._t.get_row(tables.clusters, cluster, [tables.member])
            members = row.family(tables.member)
            # Pages may have been added to it already, or found there.
            gone = self._before[cluster].keys() - self._after[cluster].keys()
            self._before[cluster] = members
            self._after[cluster] = {**members, **self._after[cluster]}
            for page in gone:
                del self._after[cluster][page]
            self._cluster_of |= dict.fromkeys(self._after[cluster], cluster)
            self._loaded.add(cluster)
        return self._after[cluster]

    def find(self, cluster: str, page: str) -> Member:
        """Lock a cluster and return a page of it; read the others only if it is not large."""
        if self._lock(cluster) is None:
            return self.load(cluster)[page]
        member: Member | None = self._t.get(tables.member[page], cluster)
        assert member is not None, (cluster, page)
        self._before[cluster][page] = self._after[cluster][page] = member
        self._cluster_of[page] = cluster
        return member

    def update(self, cluster: str, page: str, now: Member | None) -> bool:
        """Change a page of a large cluster, unless the others may not be connected afterwards.

        They are if nothing but its content and leader joins the page to them: all pages with a
        leader are joined to each other. No other page may name this one. A canonical page that it
        names must have the same leader, or another page must have that leader and name that one;
        or no other page has that leader.

        Args:
            cluster: where it is; was read by `find`.
            page: the page.
            now: what it is, if its content stays, and it is counted there. It stays with others
                that have its leader, and otherwise becomes a cluster of its own. None: it is taken
                out, and the caller adds it again where it belongs.

        Returns whether that was possible.
        """
        if cluster in self._loaded:
            return False
        member = self._after[cluster][page]
        if self._is_named(cluster, member):
            return False
        alone = self._is_alone(member, counted=now is not None)
        if member["target"] is not None and not alone:
            its = self._t.get(tables.member[page_id(member["target"])], cluster)
            if (
                its is not None
                and its["leader"] != member["leader"]
                and not self._is_named_besides(cluster, page, member)
            ):
                return False
        if now is not None and alone:
            self._move([page], cluster, self.create())
        else:
            self.put(cluster, page, now)
        return True

    def _is_named(self, cluster: str, member: Member) -> bool:
        """Whether another page of the cluster has joined it because it names this one."""
        t, url = self._t, member["url"]
        naming = t.get_row(tables.aliases, page_row(url), [tables.named_by]).family(tables.named_by)
        others = t.get_many((tables.member[one], cluster) for one in sorted(naming))
        return any(one is not None and one["target"] == url for one in others)

    def _is_alone(self, member: Member, *, counted: bool) -> bool:
        """Whether no other page has the leader of a page, which is `counted` with its content."""
        content = member["content"]
        if member["leader"] != content:
            return False
        owner = self._t.get(tables.owner, content)
        if (0 if owner is None else owner["pages"]) != counted:
            return False
        # If its content has gone with it, those that it led have other leaders already.
        sketch = self._t.get(tables.sketch_of, content) if counted else None
        return sketch is None or not leads_others(self._t, content, sketch)

    def _is_named_besides(self, cluster: str, page: str, member: Member) -> bool:
        """Whether a page with the same leader is found that names the same canonical page."""
        t, target = self._t, member["target"]
        for start in _SOME_IDS:
            family = tables.leads_here.starting(start)
            found = t.get_row(tables.aliases, page_row(target), [family]).family(family)
            naming = [n for n, one in found.items() if one["kind"] == "canonical" and n != page]
            others = t.get_many((tables.member[other], cluster) for other in naming)
            for other in others:
                if other is not None and (other["leader"], other["target"]) == (
                    member["leader"],
                    target,
                ):
                    return True
        return False

    def cluster_of(self, page: str) -> str | None:
        """The current cluster of a page, among the clusters that were loaded."""
        return self._cluster_of.get(page)

    def create(self) -> str:
        """A name for a new cluster without members; no other transaction can know it."""
        # Random: all runs of a batch have one start_ts, and a page may found two clusters in it.
        cluster = token_hex(12)
        self._before[cluster] = {}
        self._after[cluster] = {}
        self._loaded.add(cluster)
        return cluster

    def put(self, cluster: str, page: str, member: Member | None) -> None:
        """Add a page to a cluster or update it there; None removes it."""
        if cluster not in self._after:
            self._lock(cluster)
        if member is None:
            del self._after[cluster][page]
            del self._cluster_of[page]
            return
        self._after[cluster][page] = member
        self._cluster_of[page] = cluster
        keys = {name: member[name] for name in ("content", "target")}
        self._t.set(tables.joined, page_row(member["url"]), {"cluster": cluster, **keys})

    def lead(self, led: Mapping[str, str]) -> set[str]:
        """Write new leaders to contents and their pages; return the clusters of these contents."""
        touched: dict[str, set[str]] = {}
        for content, leader in led.items():
            owner = self._t.get(tables.owner, content)
            if owner is not None:
                self._t.set(tables.owner, content, {**owner, "leader": leader})
                touched.setdefault(owner["cluster"], set()).add(content)
        for cluster, contents in touched.items():
            for page, member in list(self.load(cluster).items()):
                if member["content"] in contents:
                    # What it has joined, and with which keys, stays as it is.
                    self._after[cluster][page] = {**member, "leader": led[member["content"]]}
        return set(touched)

    def follow(self, led: Mapping[str, str]) -> None:
        """Move the contents whose leader changed into that leader's cluster."""
        for content, leader in led.items():
            both = [self._t.get(tables.owner, one) for one in (content, leader)]
            clusters = {owner["cluster"] for owner in both if owner is not None}
            if len(clusters) > 1:
                self.merge(clusters)

    def split(self, cluster: str) -> None:
        """Make every component but the largest a cluster of its own."""
        for part in partition(self._after[cluster])[1:]:
            self._move(part, cluster, self.create())

    def merge(self, clusters: Collection[str]) -> str:
        """Move the members of all clusters into the largest; return its name."""
        sizes = {cluster: self._lock(cluster) or len(self.load(cluster)) for cluster in clusters}
        into = min(sizes, key=lambda cluster: (-sizes[cluster], cluster))
        for cluster in sizes.keys() - {into}:
            self._move(list(self.load(cluster)), cluster, into)
        return into

    def _move(self, pages: Iterable[str], cluster: str, into: str) -> None:
        t = self._t
        contents = set()
        for page in pages:
            member = self._after[cluster].pop(page)
            self.put(into, page, member)
            contents.add(member["content"])
        # Immediately: the rest of the run finds clusters through the keys. A key of another cluster
        # is that of the page that changes, which has not been counted there yet.
        for content in contents:
            owner = t.get(tables.owner, content)
            if owner is not None and owner["cluster"] == cluster:
                t.set(tables.owner, content, {**owner, "cluster": into})

    def write(self) -> None:
        """Write the members, and notify the clusters that changed, or the members of large ones."""
        t = self._t
        for cluster, after in self._after.items():
            before = self._before[cluster]
            if before == after:
                continue
            gone = {page: one for page, one in before.items() if page not in after}
            for page in gone:
                t.delete(tables.member[page], cluster)
            changed = {page: one for page, one in after.items() if before.get(page) != one}
            for page, member in changed.items():
                t.set(tables.member[page], cluster, member)
            size = t.get(tables.size, cluster)
            if size is None:
                t.notify(tables.cluster_changed, cluster)
                continue
            size += len(after) - len(before)
            tables.set_or_delete(t, tables.size, cluster, size)
            share_all(t, gone)
            # A leader is nothing that a page shares.
            share_all(t, {n: one for n, one in changed.items() if _shares(before.get(n), one)})
            records = t.get_many((tables.shared, page_row(one["url"])) for one in gone.values())
            if any(one is None or one["cluster"] != cluster for one in records):
                # The document may name a page that has not shared here, and so takes nothing back.
                t.notify(tables.summary_due, cluster)
            if not size:
                t.notify(tables.cluster_changed, cluster)


def _shares(was: Member | None, now: Member) -> bool:
    """Whether what a page adds to the summary of its cluster may be another."""
    return was is None or {**was, "leader": now["leader"]} != now


def _count(t: Transaction, url: str, *, pages: int, indexable: int) -> None:
    """Add to the counters of a host."""
    if not pages and not indexable:
        return
    row = _counter(url)
    before = t.get(tables.live, row) or {"pages": 0, "indexable": 0}
    after = {"pages": before["pages"] + pages, "indexable": before["indexable"] + indexable}
    if after["pages"]:
        t.set(tables.live, row, after)
    else:
        t.delete(tables.live, row)


def _counter(url: str) -> str:
    """The row of `hosts` that counts a page."""
    return f"{host(url)}/{page_id(url)[:2]}"
