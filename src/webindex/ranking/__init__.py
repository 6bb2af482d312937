"""PageRank: how much the links of the whole web vouch for each page, computed on Spark.

    graph        pages, and who links to whom, from one snapshot: read in parallel by page rows
    pagerank     the iteration, as arithmetic on arrays
    distributed  the same in Spark tasks: reading, numbering, iterating
    writing      ranks that have moved go back, by transactions that only the newest run can commit
    job          `rank`: all of it; report: what it has to say
    command      `webindex rank`

Ranks reach the index by the same way as everything else: each one that is written tells the
page's cluster, which elects its canonical page anew and exports its document if it has changed.
"""
