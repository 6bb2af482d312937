"""§2.4: OpenTelemetry spans of transactions and runs, linked to their causes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from commands import run
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from otlp import linked, receiver

import percola
from percola import ConflictError, Repository, Table, Transaction, Worker, observer, tracing

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
title = docs.column("title", str)
poke = docs.weak_column("poke")
poked = docs.column("poked", int)


@observer(contents)
def split(t: Transaction, row: str) -> None:
    t.set(title, row, (t.get(contents, row) or "")[:1])
    t.notify(poke, "all")


@observer(contents, name="other")
def other(t: Transaction, row: str) -> None:
    pass


@observer(poke)
def receive(t: Transaction, row: str) -> None:
    t.set(poked, row, (t.get(poked, row) or 0) + 1)


OBSERVERS = [split, other, receive]


@pytest.fixture
def provider() -> Iterator[TracerProvider]:
    made = TracerProvider()
    tracing.enable(made)
    yield made
    tracing.disable()


@pytest.fixture
def memory(provider: TracerProvider) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


def by_name(spans: Sequence[ReadableSpan]) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans}


def causes_of(span: ReadableSpan) -> set[tuple[int, int]]:
    return {(link.context.trace_id, link.context.span_id) for link in span.links}


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


@pytest.mark.parametrize("two_phase", [False, True])
def test_a_run_links_to_the_transaction_that_it_answers(
    memory: InMemorySpanExporter, tmp_path: Path, two_phase: bool
) -> None:
    with percola.open(tmp_path / "repo", [docs]) as repo:
        with repo.transaction(two_phase=two_phase) as t:
            t.set(contents, "a", "red")
        Worker(repo, OBSERVERS, threads=1).run_until_idle()
    spans = by_name(memory.get_finished_spans())
    assert set(spans) == {"transaction", "split", "other", "receive"}
    written = spans["transaction"]
    assert written.attributes is not None and written.parent is None
    assert written.attributes["percola.commit_ts"] == t.commit_ts
    stages = ["prewritten", "commit_ts drawn", "primary committed"]
    assert [event.name for event in written.events] == (stages if two_phase else [])
    assert causes_of(spans["split"]) == causes_of(spans["other"]) == {ids(written)}
    assert causes_of(spans["receive"]) == {ids(spans["split"])}
    assert written.start_time and written.end_time and written.start_time < written.end_time


def test_a_conflict_is_an_error_and_the_current_span_is_linked(
    memory: InMemorySpanExporter, provider: TracerProvider
) -> None:
    repo: Repository = percola.open("memory:", [docs])
    with provider.get_tracer("program").start_as_current_span("request") as request:
        late = repo.transaction()
        late.set(title, "a", "late")
        repo.run(lambda t: t.set(title, "a", "first"))
        with pytest.raises(ConflictError):
            late.commit()
    first, conflict, outer = memory.get_finished_spans()
    assert (first.status.is_ok, conflict.status.is_ok) == (True, False)
    assert conflict.status.description == "ConflictError"
    context = request.get_span_context()
    assert causes_of(first) == causes_of(conflict) == {(context.trace_id, context.span_id)}
    assert outer.name == "request" and ids(outer)[0] != ids(first)[0]


def test_a_process_may_open_repositories_as_often_as_it_likes(
    memory: InMemorySpanExporter,
) -> None:
    """Each opening wrapped the ids of the provider's one tracer again: a RecursionError, later."""
    first = percola.open("memory:", [docs])
    for _ in range(sys.getrecursionlimit()):
        percola.open("memory:", [docs]).close()
    with first.transaction() as t:
        t.set(title, "a", "A")
    late = first.transaction()
    late.set(title, "a", "late")
    first.run(lambda t: t.set(title, "a", "first"))
    with pytest.raises(ConflictError):
        late.commit()
    written, _, conflict = memory.get_finished_spans()
    assert first.context.spans is not None and t.commit_ts is not None
    assert ids(written) == first.context.spans.ids(t.commit_ts)
    assert conflict.status.description == "ConflictError"


def test_without_being_turned_on_it_loads_and_makes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tracing.disable()
    repo = percola.open("memory:", [docs])
    assert repo.context.spans is None
    assert not hasattr(repo.transaction(), "_began")
    monkeypatch.setattr(tracing, "_tried", False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:1")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert percola.open("memory:", [docs]).context.spans is None


def test_spans_on_the_console_leave_standard_output_to_the_command(tmp_path: Path) -> None:
    repo = ("--repo", tmp_path / "repo")
    assert run(*repo, "init", "--column", "docs.title:str").code == 0
    answer = run(*repo, "set", "a", "title", "A", "--json", OTEL_TRACES_EXPORTER="console")
    assert answer.json["commit_ts"] == 1
    assert '"percola.commit_ts": 1' in answer.err


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "percola"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=shop,team=x"}, "shop"),
        (
            {"OTEL_RESOURCE_ATTRIBUTES": "service.name=shop", "OTEL_SERVICE_NAME": "tills"},
            "tills",
        ),
    ],
)
def test_spans_are_of_the_service_that_the_variables_name(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], name: str
) -> None:
    tracing.disable()
    monkeypatch.setattr(tracing, "_tried", False)
    for one in ("OTEL_RESOURCE_ATTRIBUTES", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(one, raising=False)
    for one, value in {"OTEL_TRACES_EXPORTER": "console", **variables}.items():
        monkeypatch.setenv(one, value)
    try:
        assert percola.open("memory:", [docs]).context.spans is not None
        assert tracing._provider.resource.attributes["service.name"] == name
    finally:
        tracing._provider.shutdown()
        tracing.disable()


def test_a_setting_that_the_sdk_refuses_stops_no_program(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tracing.disable()
    monkeypatch.setattr(tracing, "_tried", False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "-1")
    assert percola.open("memory:", [docs]).context.spans is None
    assert "no spans are made" in caplog.text and "must be positive" in caplog.text
    tracing.disable()


def test_an_exporter_that_is_not_here_is_named_and_not_taken_for_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tracing.disable()
    monkeypatch.setattr(tracing, "_tried", False)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    assert percola.open("memory:", [docs]).context.spans is None
    assert "OTEL_TRACES_EXPORTER is 'zipkin'" in caplog.text and "console or none" in caplog.text
    tracing.disable()


@pytest.mark.parametrize("event", ["on_start", "on_end"])
def test_a_processor_of_spans_that_raises_undoes_no_commit(
    provider: TracerProvider,
    memory: InMemorySpanExporter,
    event: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An observer whose commit raised would count as failed, and a program would write again."""

    class Broken(SpanProcessor):
        pass

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(Broken, event, broken)
    provider.add_span_processor(Broken())
    with percola.open("memory:", [docs]) as repo:
        with repo.transaction() as t:
            t.set(title, "a", "x")
        assert repo.snapshot().get(title, "a") == "x"
    assert "a transaction has no span: RuntimeError: the disk is full" in caplog.text


def test_a_collector_that_does_not_answer_holds_up_no_end_of_a_repository(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each closing took seven seconds where nothing listened at the endpoint."""
    asked, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    class Provider:
        def force_flush(self, milliseconds: int = 0) -> None:
            asked.set()
            goes_on.wait(5)
            ended.set()

    monkeypatch.setattr(tracing, "_provider", Provider())
    monkeypatch.setattr(tracing, "_own", True)
    tracing.flush(0.01)
    assert not ended.is_set()
    goes_on.set()
    assert asked.wait(60) and ended.wait(60)


def test_a_worker_process_sends_its_spans_to_the_endpoint_of_its_environment(
    tmp_path: Path, memory: InMemorySpanExporter
) -> None:
    with percola.open(tmp_path / "repo", [docs]) as repo:
        repo.run(lambda t: t.set(contents, "a", "red"))
    here = Path(__file__).parent
    path = [Path(percola.__file__).parents[1], here, here.parent / "support"]
    with receiver() as received:
        answer = run(
            *("--repo", tmp_path / "repo", "worker", "--until-idle", "test_spans:OBSERVERS"),
            PYTHONPATH=os.pathsep.join(map(str, path)),
            OTEL_EXPORTER_OTLP_ENDPOINT=received.endpoint,
        )
    assert answer.code == 0, answer
    [written] = memory.get_finished_spans()
    [done] = received.named("split")
    assert linked(done) == {ids(written)}, "of the writer in this process"
