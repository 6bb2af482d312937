"""Reports about one URL: all that is known of it, and why search shows it or does not.

    page            the report itself, and the page's status in search
    redirect_paths  where the page points, and what points here: redirects and canonical pages
    cluster         the pages that are one document with it, what joins them, which is canonical
    links           links to it and from it
    versions        its captures over time, and what each changed
    picture         its image, and why it was rendered
    pending         pending work of observers for it, and dead-lettered changes
    summary         totals of the whole index
    withheld        what a page asks not to be shown of it
    to_crawl        what to crawl next: URLs that were never captured, pages that are due

The web page (`webindex.site`) and the command line (`webindex explain`) show the same report. To
add to it, add a field to `Story` in `page`; both find it there.

Everything is read at one timestamp, except the versions, which are all that is kept, and the search
index, which lags the repository by milliseconds: where it differs, the report notes it.
"""

from webindex.reports.cluster import ORDER, Member
from webindex.reports.links import KINDS, Counted, Link, kinds
from webindex.reports.page import HEADLINES, UNKNOWN, Rank, Story, places, tell
from webindex.reports.pending import STEPS, Trouble
from webindex.reports.picture import Picture, thumbnails_of
from webindex.reports.redirect_paths import PointsHere, Step, Way
from webindex.reports.to_crawl import Due, Uncaptured, due, frontier
from webindex.reports.versions import Version
from webindex.reports.withheld import asks, without_snippets

__all__ = [
    "HEADLINES",
    "KINDS",
    "ORDER",
    "STEPS",
    "UNKNOWN",
    "Counted",
    "Due",
    "Link",
    "Member",
    "Picture",
    "PointsHere",
    "Rank",
    "Step",
    "Story",
    "Trouble",
    "Uncaptured",
    "Version",
    "Way",
    "asks",
    "due",
    "frontier",
    "kinds",
    "places",
    "tell",
    "thumbnails_of",
    "without_snippets",
]
