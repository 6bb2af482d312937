"""A receiver of OpenTelemetry's spans, by OTLP over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Received:
    """What has come to an endpoint."""

    endpoint: str
    spans: list[Any] = field(default_factory=list)

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


@contextmanager
def receiver() -> Iterator[Received]:
    """Receives spans on a port of its own until the block ends."""

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    received.spans.extend(scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    received = Received(f"http://127.0.0.1:{server.server_port}")
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield received
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def identity(span: Any) -> tuple[int, int]:
    """The trace and span ids of a received span, or of the span that a link leads to."""
    return int.from_bytes(span.trace_id, "big"), int.from_bytes(span.span_id, "big")


def linked(span: Any) -> set[tuple[int, int]]:
    """The trace and span ids that a received span links to."""
    return set(map(identity, span.links))


def commit_ts(span: Any) -> int | None:
    """The commit_ts that a received span, or a link, names."""
    named = (one.value.int_value for one in span.attributes if one.key == "percola.commit_ts")
    return next(named, None)
