"""The whole index at one go, computed in Spark, by code that the observers have no part in.

It is the judge of the incremental index (`webindex verify`), and its bulk loader (`webindex
rebuild`), as the index that Caffeine took over was made by MapReduces.

    reading      the repository at one timestamp, and WARC files, as RDDs
    facts        what a page comes to by itself
    following    where redirects and canonical links lead
    partition    which pages belong together: connected components
    inverting    links seen from their targets
    whole        all of it: every cell of the index, from captures alone

    invariants   which cells show which of the twelve invariants
    comparing    cells that were found against cells that were expected
    verifying    the job of `webindex verify`, and its `verdict`
    rebuilding   the job of `webindex rebuild`

Only pure functions of one page are shared with the observers (`pages`, `pointers`, `urls`,
`fingerprints`), and the names in `tables`.
"""
