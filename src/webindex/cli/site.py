"""`webindex serve`: serves the site on a port, until it is stopped."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from percola.serve import Names, address, is_loopback, listen, make_server, run
from webindex.incomplete import refuse_half_built
from webindex.serving.located import nothing_exported
from webindex.site.app import make_app
from webindex.workers.processes import open_index, open_repository


def serve(
    repo: str, host: str, port: int, *, names: tuple[str, ...] = (), say: Callable[[str], object]
) -> None:
    """Serve on `host` and `port` until SIGINT or SIGTERM; port 0 takes any free port.

    `say` is called with messages for the user.

    Raises:
        NotARepositoryError: there is no web index at `repo`.
        RebuildError: a rebuild of it has not finished.
        ServeError: the port or the host is not available.
    """
    with ExitStack() as open_:
        opened = open_.enter_context(open_repository(repo))
        refuse_half_built(opened)
        index = open_.enter_context(open_index(opened, create=True))
        listening = listen(host, port)
        url = address(listening, host)
        server = make_server(make_app(opened, index, Names(host, names)))
        say(f"Search: {url}   Live view: {url}live   (Ctrl-C ends)")
        if lost := nothing_exported(opened, index):
            say(lost)
        if not is_loopback(host):
            say("Whoever can reach this machine can read the index: there is no password.")
        run(server, listening)
