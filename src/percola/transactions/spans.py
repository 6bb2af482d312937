"""§2.2, §2.4: OpenTelemetry spans of transactions and runs, linked from effect to cause.

Off unless `percola.tracing` turns them on. Each committed transaction is a span in a trace of its
own, whose ids are computed from the repository and the commit_ts:

    trace id, span id  =  hash(repository, commit_ts)

A notify entry has the commit_ts of the transaction that put it. So a run that answers it, in any
process, knows the ids of the span of its cause and links to it: nothing is stored or sent for that,
and the decision of a sampler by trace id is the same everywhere. As the ids are known only after
the commit, a span is made at the end, with the time at which it began. One that does not commit has
random ids. A span that is current when the transaction ends is linked as well.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.id_generator import IdGenerator

log = logging.getLogger("percola.tracing")

_LINKS: Final = 100
"""The most causes that a span links to: the newest ones."""

Marks = list[tuple[str, int]]
"""Stages of a commit that have ended, and when, in nanoseconds since the epoch."""


class _Ids:
    """Gives a span the ids that were chosen for it, and all others those of the SDK."""

    def __init__(self, others: IdGenerator) -> None:
        self._others = others
        self.chosen = threading.local()

    def generate_span_id(self) -> int:
        ids = getattr(self.chosen, "ids", None)
        return self._others.generate_span_id() if ids is None else int(ids[1])

    def generate_trace_id(self) -> int:
        ids = getattr(self.chosen, "ids", None)
        return self._others.generate_trace_id() if ids is None else int(ids[0])

    def is_trace_id_random(self) -> bool:
        return True


class Spans:
    """Makes the spans of one repository.

    Args:
        provider: where the spans go: a TracerProvider of the SDK.
        repository: its address; the same in all processes, or links lead nowhere.
    """

    def __init__(self, provider: Any, repository: str) -> None:
        self._repository = repository
        self._key = repository.encode()
        self._tracer = provider.get_tracer("percola")
        self._ids: _Ids | None = None
        others = getattr(self._tracer, "id_generator", None)
        if others is not None:
            # A provider has one tracer for all repositories of the process: one is enough.
            self._ids = others if isinstance(others, _Ids) else _Ids(others)
            self._tracer.id_generator = self._ids

    def ids(self, commit_ts: int) -> tuple[int, int]:
        """The trace id and the span id of the transaction with this commit_ts."""
        digest = hashlib.blake2b(b"%d:%b" % (commit_ts, self._key), digest_size=24).digest()
        return int.from_bytes(digest[:16], "big") or 1, int.from_bytes(digest[16:], "big") or 1

    def link(self, commit_ts: int) -> Link:
        """A link to the transaction with this commit_ts."""
        trace_id, span_id = self.ids(commit_ts)
        flags = TraceFlags(TraceFlags.SAMPLED)
        context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=flags)
        return Link(context, {"percola.commit_ts": commit_ts})

    def ended(
        self,
        name: str,
        began: int,
        start_ts: int,
        commit_ts: int | None,
        *,
        cells: int,
        causes: Iterable[int] = (),
        marks: Sequence[tuple[str, int]] = (),
        observer: str = "",
        error: BaseException | None = None,
    ) -> None:
        """Make the span of a transaction that ends now; `began` is in nanoseconds of the epoch.

        Raises nothing: the transaction has its outcome, whatever becomes of its span.
        """
        links = [self.link(ts) for ts in sorted(set(causes))[-_LINKS:]]
        current = trace.get_current_span().get_span_context()
        if current.is_valid:
            links.append(Link(current))
        attributes: dict[str, str | int] = {
            "db.system.name": "percola",
            "db.namespace": self._repository,
            "percola.start_ts": start_ts,
            "percola.cells": cells,
        }
        if observer:
            attributes["percola.observer"] = observer
        if commit_ts is not None:
            attributes["percola.commit_ts"] = commit_ts
        try:
            span = self._started(name, began, commit_ts, observer, attributes, links)
            for stage, at in marks:
                span.add_event(stage, timestamp=at)
            if error is not None:
                span.record_exception(error)
                span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            span.end(time.time_ns())
        except Exception as failed:  # Of a sampler or a processor of the program.
            log.warning("a transaction has no span: %s: %s", type(failed).__name__, failed)

    def _started(
        self,
        name: str,
        began: int,
        commit_ts: int | None,
        observer: str,
        attributes: Mapping[str, str | int],
        links: Sequence[Link],
    ) -> Any:
        ids = self._ids
        if ids is not None and commit_ts is not None:
            ids.chosen.ids = self.ids(commit_ts)
        try:
            return self._tracer.start_span(
                name,
                otel_context.Context(),  # A root: the ids would be those of a parent's trace.
                kind=SpanKind.CONSUMER if observer else SpanKind.INTERNAL,
                attributes=attributes,
                links=links,
                start_time=began,
            )
        finally:
            if ids is not None:
                ids.chosen.ids = None
