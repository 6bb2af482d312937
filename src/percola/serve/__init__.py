"""`percola serve`: one page that shows what is going on in a repository, for any application.

    app         the routes: the page, what its script asks for, the token, the buttons
    guard       which requests are answered: host, method, origin, whether the repository is there
    login       the token, sessions, and the key in each form
    sampler     takes samples of the repository
    view        what is shown: samples, and the view of now beside them
    rates       throughput and latencies, from what workers report
    problems    what an operator should look at, in sentences
    actions     retrying dead letters, pausing and resuming observers
    messages    pages of a sentence: the error handlers
    page        rendering; the parts that change, once for all who look
    shown       formatting of numbers, times, and text that is not ours
    listening   the socket and the HTTP server

`percola.cli.serve` is the command. An application with a site of its own derives a class from
`Sampler`, and includes the page's templates and its script in a page of its own, as webindex does.

Row keys, reasons and tracebacks are hostile text. Templates escape everything, what is invisible is
written out (`shown.finalize`), and the content security policy forbids all scripts but the page's.
"""

from __future__ import annotations

from percola import extras

try:
    from percola.serve.app import static_files
    from percola.serve.guard import HEADERS, MAX_TARGET, Guard, Names, Presence, is_loopback
    from percola.serve.listening import ServeError, address, listen, make_server, run
    from percola.serve.messages import Messages
    from percola.serve.page import PARTS, LivePage, render, templates
    from percola.serve.sampler import KEPT, Sampler
    from percola.serve.shown import duration
    from percola.serve.view import Letter, Sample, View, since
except ImportError as error:
    raise ImportError(extras.missing("percola serve", error, "serve"), name=error.name) from error

__all__ = [
    "HEADERS",
    "KEPT",
    "MAX_TARGET",
    "PARTS",
    "Guard",
    "Letter",
    "LivePage",
    "Messages",
    "Names",
    "Presence",
    "Sample",
    "Sampler",
    "ServeError",
    "View",
    "address",
    "duration",
    "is_loopback",
    "listen",
    "make_server",
    "render",
    "run",
    "since",
    "static_files",
    "templates",
]
