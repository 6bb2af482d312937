"""A page's story: all that is known of one URL, and why search shows it, or does not.

    told        the story itself, and the standing of the page in search
    ways        where the page points, and what points here: redirects and canonical pages
    cluster     the pages that are one document with it, what joins them, who stands for them
    links       links to it and from it
    versions    its captures over time, and what each changed
    pending     what observers have still to do for it, and what they gave up

The web page (`webindex.site`) and the command line (`webindex explain`) show the same story. To
tell more, add a field to `Story` here; both find it there.

Everything is read at one timestamp, but the versions, which are all that is kept, and the search
index, which follows the repository by milliseconds: where it has not yet, the story says so.
"""

from webindex.reports.cluster import ORDER, Member
from webindex.reports.links import KINDS, Counted, Link, kinds
from webindex.reports.page import HEADLINES, UNKNOWN, Rank, Story, places, tell
from webindex.reports.pending import STEPS, Trouble
from webindex.reports.redirect_paths import PointsHere, Step, Way
from webindex.reports.versions import Version

__all__ = [
    "HEADLINES",
    "KINDS",
    "ORDER",
    "STEPS",
    "UNKNOWN",
    "Counted",
    "Link",
    "Member",
    "PointsHere",
    "Rank",
    "Step",
    "Story",
    "Trouble",
    "Version",
    "Way",
    "kinds",
    "places",
    "tell",
]
