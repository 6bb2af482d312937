"""A page for people: search, a page's story, and a live view of the pipeline.

    app            routes, templates, what is sent with every answer
    guard          who may ask, and for how much: host, method, the repository still there
    searching      /        what a search shows
                   /page    a page's story, which `webindex.reports` tells
    neighbourhood           the links around a page as a small drawing
    live           /live    the pipeline, sampled from the repository; exports: how fast it was
    shown                   what templates put out, and how URLs and time spans are written
    command                 `webindex serve`

Everything that it shows comes from the repository and the search index, so it is right whichever
processes load and work. It reads only. To show more of a page, add a field to `story.Story` and
a section to its template; to plot more, add a field to `live.Sample` and a plot to `live.js`.

What was crawled is hostile. Templates escape everything, control characters and those that turn
the direction of writing never reach the browser (`wording.harmless` is applied to every string
that a template puts out), and the content security policy forbids every script but ours.
"""
