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

from webindex.story.cluster import ORDER, Member
from webindex.story.links import KINDS, Link, kinds
from webindex.story.pending import STEPS, Trouble
from webindex.story.told import HEADLINES, UNKNOWN, Rank, Story, places, tell
from webindex.story.versions import Version
from webindex.story.ways import PointsHere, Step, Way

__all__ = [
    "HEADLINES",
    "KINDS",
    "ORDER",
    "STEPS",
    "UNKNOWN",
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
