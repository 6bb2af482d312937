"""PageRank: how much the links of the whole web vouch for each page, computed on Spark.

    graph        pages and links from one snapshot: read in parallel by page rows
    pagerank     the iteration, as arithmetic on arrays
    distributed  the same in Spark tasks: reading, numbering, iterating
    writing      changed ranks are written by transactions that only the newest run can commit
    interim      ranks of pages that are newer than the last run
    job          `rank`: the whole job
    report       its report

`webindex.cli.rank` is the command `webindex rank`.

Ranks reach the index like every other change: each rank that is written notifies the
page's cluster, which elects its canonical page again and exports its document if it has changed.
"""
