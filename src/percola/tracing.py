"""Turns on OpenTelemetry spans of transactions and observers' runs: docs/tracing.md.

They are off, and cost nothing, unless the environment names an exporter in the standard variables
(`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `OTEL_TRACES_EXPORTER`), or
the program calls `enable` before it opens a repository.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from percola import extras
from percola.platform.fork_safety import at_fork

if TYPE_CHECKING:
    from percola.transactions.spans import Spans

log = logging.getLogger("percola.tracing")

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_EXPORTER: Final = "OTEL_TRACES_EXPORTER"
_EXPORTERS: Final = ("otlp", "otlp_proto_http", "console")

_provider: Any = None
_own = False
_tried = False
_guard: threading.Lock


def _start_afresh() -> None:
    global _guard
    _guard = threading.Lock()


_start_afresh()
at_fork(_start_afresh)


def enable(provider: Any = None) -> None:
    """Have repositories that are opened from now on make spans.

    Args:
        provider: a TracerProvider of OpenTelemetry's SDK; None: the one that
            `opentelemetry.trace.set_tracer_provider` was given, or, if there is none, one that
            sends to the OTLP endpoint of the environment.

    Raises ImportError, as a sentence, if `percola[otel]` is not installed, and ValueError if
    `OTEL_TRACES_EXPORTER` asks for an exporter that is not here.
    """
    global _provider, _own
    try:
        found, own = (provider, False) if provider is not None else _find_provider()
        import_module("percola.transactions.spans")
    except ImportError as error:
        raise ImportError(
            extras.missing("percola.tracing", error, "otel"), name=error.name
        ) from error
    _provider, _own = found, own


def disable() -> None:
    """Have repositories that are opened from now on make no spans, whatever the environment is."""
    global _provider, _own, _tried
    _provider, _own, _tried = None, False, True


def spans_of(address: str) -> Spans | None:
    """Makes the spans of a repository; None if tracing is off."""
    global _tried
    if _provider is None:
        if _tried or not _is_wanted():
            return None
        with _guard:
            if not _tried:
                _tried = True
                try:
                    enable()
                except Exception as error:  # Of the SDK's as well, which reads more variables.
                    log.warning("no spans are made, although OTEL_… asks for them: %s", error)
        if _provider is None:
            return None
    from percola.transactions.spans import Spans

    name = address.partition("?")[0]  # Without options: the same for all who name the repository.
    return Spans(_provider, os.path.realpath(name) if os.path.isdir(name) else name)


def flush(seconds: float = 2.0) -> None:
    """Send the spans that wait, if the provider was made here: Spark may kill a task's process.

    Returns after so many seconds even if the collector does not answer: the SDK's own limit does
    not hold while it tries again.
    """
    if _own and _provider is not None:
        send = threading.Thread(target=_provider.force_flush, name="percola-spans", daemon=True)
        try:
            send.start()
        except RuntimeError:  # The interpreter is ending: the provider's own end sends them.
            return
        send.join(seconds)


def _is_wanted() -> bool:
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = os.environ.get(_EXPORTER, "")
    return exporter != "none" and (bool(exporter) or any(map(os.environ.get, _ENDPOINTS)))


def _find_provider() -> tuple[Any, bool]:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    known = trace.get_tracer_provider()
    if isinstance(known, TracerProvider):
        return known, False
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace.export import (
        BatchSpanProcessor,
        ConsoleSpanExporter,
        SpanExporter,
    )

    asked = os.environ.get(_EXPORTER) or "otlp"
    if asked not in _EXPORTERS:
        raise ValueError(
            f"{_EXPORTER} is {asked!r}, and Percola sends spans by OTLP over HTTP: set it to "
            f"{', '.join(_EXPORTERS)} or none. For another exporter, pass a TracerProvider to "
            "percola.tracing.enable."
        )
    exporter: SpanExporter
    if asked == "console":
        exporter = ConsoleSpanExporter(out=sys.stderr)  # Standard output may be for a program.
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter()
    resource = Resource.create()  # As the SDK's variables say.
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "percola"}))
    made = TracerProvider(resource=resource)
    made.add_span_processor(BatchSpanProcessor(exporter))
    return made, True
