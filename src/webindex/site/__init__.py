"""The web site: search, the report of a page, and a live view of the pipeline.

    app            routes and templates
    searching      /        the search results
                   /page    the report of a page, computed by `webindex.reports`
    neighbourhood           the links around a page as a small drawing
    live           /live    the page of `percola serve`, and what the web index adds to it
    exports                 the throughput and latency of exports
    shown                   formatting of template output and URLs

`webindex.cli.site` is the command `webindex serve`. Which requests are answered, the headers of
responses, the HTTP server and most of the live view are those of `percola.serve`.

Everything that it shows comes from the repository and the search index, so it is right whichever
processes load and work. It only reads. To show more of a page, add a field to
`reports.page.Story` and a section to its template; to plot more, add a number to
`live.Pipeline.measure` and a plot that names it to its template.

Crawled text is hostile. Templates escape everything, control characters and those that change
the direction of writing never reach the browser (`text_format.harmless` is applied to every string
that a template outputs), and the content security policy forbids all scripts but the site's own.
"""
