"""The whole index computed in Spark, by code independent of the observers.

It checks the incremental index (`webindex verify`), and bulk-loads it (`webindex
rebuild`), as the index that Caffeine took over was made by MapReduces.

    read         the repository at one timestamp as RDDs
    crawl        the newest state of each page, from WARC files
    facts        the cells that follow from one page alone
    redirects    where redirects and canonical links lead
    components   which pages belong together: connected components
    inlinks      links grouped by their targets
    expected     all of it: every cell of the index, from captures alone
    renders      what documents use, and what their images would show
    actual       what the repository and the search index contain

    invariants   which cells show which of the sixteen invariants
    compare      actual cells compared with expected cells
    verify       the job of `webindex verify`, and its `verdict`
    rebuild      the job of `webindex rebuild`, and how it writes (`write`)

It shares with the observers only pure functions of one page (`pages`, `pointers`, `urls`,
`fingerprints`), and the names in `tables`.
"""
