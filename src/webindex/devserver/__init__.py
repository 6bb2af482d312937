"""An OpenSearch on this machine, for development and tests.

    webindex dev-opensearch up --folder ./search      # prints its address
    webindex dev-opensearch down --folder ./search    # also from another shell

    with OpenSearchServer(folder) as server:        # ends with the block, however the program ends
        index = OpenSearchIndex(f"{server.address}/pages")
        server.kill()                                 # kill -9
        server.start()

One process, which listens on 127.0.0.1 only, from the distribution that `opensearch.sh` has Maven
fetch. Everything of it is in its folder: conf, data, logs, pids.
"""

from __future__ import annotations

from webindex.devserver.server import OpenSearchServer, ServerError

__all__ = ["OpenSearchServer", "ServerError"]
