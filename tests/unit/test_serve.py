"""The page of `percola serve`: what it shows, who may see it, and what its buttons do."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import joints
import pytest
from holders import Holder
from http_served import running
from serve_client import TOKEN, Served, served, words
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from stores import DEADLINE, Ground, ScriptedClock, at_work

import percola
from percola import DATE, Repository, Table, Transaction, Worker, inspection, observer
from percola.cells import Cell, Kind
from percola.observers import survey as surveying
from percola.serve import HEADERS, Sample, Sampler, listening, sampler, since
from percola.serve.actions import encode_letter
from percola.serve.app import MAX_FORM
from percola.serve.login import Login

WaitUntil = Callable[..., Any]

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
title = docs.column("title", str, observed=True)
TABLES = [docs]
QUICK: dict[str, Any] = {"attempts": 1, "first_wait": 0.001, "threads": 1, "report": 0.05}
HOSTILE = "<img src=x onerror=window.hacked=1> \u202e'\"&\x1b[31m"


@observer(contents)
def index(t: Transaction, row: str) -> None:
    """Fail on what is to fail."""
    if (t.get(contents, row) or "").startswith("fail"):
        raise ValueError(f"cannot index <script>window.hacked=1</script> {row}")


@observer(title)
def follow(t: Transaction, row: str) -> None:
    """Do nothing."""


def put(repo: Repository, column: Any, *rows: str, text: str = "text") -> None:
    for row in rows:
        with repo.transaction() as t:
            t.set(column, row, text)


def work(repo: Repository) -> None:
    Worker(repo, [index, follow], **QUICK).run_until_idle()


def fail(repo: Repository, *rows: str) -> None:
    """Have changes of these rows dead-lettered."""
    put(repo, contents, *rows, text="fail")
    work(repo)


def raising(error: Exception) -> Callable[..., Any]:
    def broken(*_: Any, **__: Any) -> Any:
        raise error

    return broken


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    folder = tmp_path / "r"
    percola.create(folder, durability="relaxed")
    with percola.open(folder, TABLES) as opened:
        yield opened


@pytest.fixture
def page(repo: Repository) -> Iterator[Served]:
    """A page that can only be read."""
    with served(repo, [index, follow]) as one:
        yield one


@pytest.fixture
def mine(repo: Repository) -> Iterator[Served]:
    """A page with a token, which has been shown."""
    with served(repo, [index, follow], token=TOKEN) as one:
        assert one.log_in().status_code == 303
        yield one


# --- What it shows ------------------------------------------------------------------------------


def test_what_waits_is_counted_by_observer_and_the_oldest_change_has_an_age(
    page: Served, wait_until: WaitUntil
) -> None:
    first = page.samples()[-1]
    assert first["waiting"] == {} and first["oldest_s"] == 0
    put(page.repo, contents, "a", "b")
    put(page.repo, title, "a")
    last = wait_until(lambda: (s := page.samples()[-1])["oldest_s"] > 1 and s, what="an age")
    assert last["waiting"] == {"index": 2, "follow": 1}
    text = page.words()
    assert "No worker is running. 3 changes wait." in text and "Changes waiting 3" in text
    assert re.search(r"index docs.contents no worker runs it 2 \d\.\d s", text)
    work(page.repo)
    wait_until(lambda: not page.samples()[-1]["waiting"], what="the answers")


def test_what_a_worker_does_is_told_by_its_reports(page: Served, wait_until: WaitUntil) -> None:
    with at_work(Worker(page.repo, [index, follow], **QUICK, retention=3600.0)):
        wait_until(lambda: "in 1 process" in page.part("observers"), what="the worker")
        numbers = itertools.count()

        def told() -> Any:
            put(page.repo, contents, f"row {next(numbers)}")
            last = page.samples()[-1]
            return last["runs"] and last["p95"] and last

        last = wait_until(told, what="its runs")
        assert 0 < last["p50"] <= last["p95"] <= last["p99"]
        details = page.part("details")
        assert str(os.getpid()) in details and "1 thread; keeps old versions for 60 min" in details
        assert "no run of more than a second" in details
        assert "Nothing needs attention." in page.words()


def test_a_change_that_failed_and_will_be_tried_again_is_named(
    page: Served, monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    put(page.repo, contents, HOSTILE, text="fail")
    waits = {**QUICK, "attempts": 2, "first_wait": 3_600, "longest_wait": 3_600}
    worker = Worker(page.repo, [index, follow], **waits)
    worker.start()
    try:
        wait_until(lambda: "1 1 after a failure" in page.part("observers"), what="the attempt")
        # Only a change that has waited for a while is named: others come and go.
        clock, passed = page.repo.context.clock, time.monotonic() + 60
        monkeypatch.setattr(clock, "monotonic", lambda: passed)
        named = "the oldest waits on <img src=x onerror=window.hacked=1> \\u202e"
        wait_until(lambda: named in page.part("observers"), what="the row")
    finally:
        monkeypatch.undo()
        worker.stop()


def test_a_worker_that_reports_nothing_is_said_to(page: Served, wait_until: WaitUntil) -> None:
    with at_work(Worker(page.repo, [index, follow], **{**QUICK, "report": None})):
        text = "not known: this worker reports no numbers"
        wait_until(lambda: text in page.part("details"), what="the process")
        put(page.repo, contents, "a")
        assert page.samples()[-1]["runs"] is None
        assert "Runs committed – a second" in page.words()


def test_changes_that_no_observer_is_known_for_are_a_problem(repo: Repository) -> None:
    put(repo, title, "a", "b")
    with served(repo, [index]) as page:
        assert page.samples()[-1]["waiting"] == {"docs.title": 2}
        text = page.words()
        assert "2 changes of the column docs.title wait, and no observer is known for it" in text


def test_observers_of_live_workers_are_known_without_naming_any(repo: Repository) -> None:
    with at_work(Worker(repo, [index], **QUICK)), served(repo) as page:
        assert "index docs.contents in 1 process" in page.part("observers")


def test_without_observers_and_workers_it_says_how_to_name_them(repo: Repository) -> None:
    with served(repo) as page:
        assert "percola serve MODULE:NAME" in page.part("observers")
        assert "No worker is running. Changes will wait." in page.words()


def test_locks_are_listed_with_their_age_and_owner(ground: Ground) -> None:
    repo: Repository = ground.repo(TABLES)
    holder = Holder(ground, TABLES, contents, HOSTILE)
    holder.lock()
    with served(repo, [index]) as page:
        told = page.part("details")
        assert "1 locked cell" in told and "docs.contents primary" in told
        assert "the oldest lock" in told, "it holds the safe point back"
        assert f"at {holder.start_ts:,}" in told


def test_of_the_locks_of_a_job_nobody_says_that_its_process_is_alive(ground: Ground) -> None:
    repo = ground.repo(joints.TABLES)
    joints.begin(joints.joint(repo, "load"), 0, 1).write([joints.row("a", "new")])
    with served(repo) as page:
        told = page.part("details")
        assert "docs.title" in told and "a job" in told and "alive" not in told


def test_what_takes_a_scan_of_whole_tables_is_not_read_and_it_says_so(
    page: Served, monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    monkeypatch.setattr(page.repo.context.store, "has_notify_table", True)
    fail(page.repo, "a")
    told = "on this store that takes a scan of whole tables"
    wait_until(lambda: told in page.part("details"), what="the sentence")
    assert told in page.part("letters") and page.samples()[-1]["failed"] is None
    read: list[Kind] = []
    scan_kind = page.repo.context.store.scan_kind

    def watched(kind: Kind, *arguments: Any, **more: Any) -> Any:
        read.append(kind)
        return scan_kind(kind, *arguments, **more)

    monkeypatch.setattr(page.repo.context.store, "scan_kind", watched)
    before = page.samples()[-1]["number"]
    wait_until(lambda: page.samples()[-1]["number"] > before + 1, what="other samples")
    assert Kind.NOTIFY in read and not {Kind.LOCK, Kind.FAILED} & set(read)


def test_the_safe_point_has_an_age_and_what_holds_it_back(page: Served) -> None:
    put(page.repo, contents, "a")
    with page.repo.snapshot() as now:
        page.repo.hold(now.start_ts, 60, name="for a <b>stream</b>")
        page.repo.context.store.raise_safe_point(now.start_ts)
        told = page.part("details")
    assert f"The oldest timestamp that can be read is {now.start_ts:,}" in told
    assert "the hold 'for a <b>stream</b>', until it ends or is released" in told
    assert f"a snapshot or transaction that process {os.getpid()} (user " in told


def test_hostile_rows_and_tracebacks_are_text_and_nothing_else(page: Served) -> None:
    fail(page.repo, HOSTILE)
    html = page.page()
    assert "<img" not in html and "<script>w" not in html and "window.hacked=1&gt;" in html
    assert "\u202e" not in html and "\x1b" not in html and "\\u202e" in html and "\\x1b" in html
    told = json.dumps(page.told())
    assert "<img" not in told and "<script>w" not in told
    letters = page.part("letters")
    assert "Traceback (most recent call last)" in letters and "index" in letters
    assert "1 change of index is dead-lettered" in page.words()


def test_nothing_in_the_page_is_a_script_or_a_style(mine: Served) -> None:
    fail(mine.repo, HOSTILE)
    html = mine.page()
    assert re.findall(r"<script[^>]*>", html) == ['<script src="/static/percola/live.js" defer>']
    assert "<style" not in html and not re.search(r"<[^>]* (style|on[a-z]+)=", html)


def test_a_survey_that_ends_early_is_said_to_be_a_lower_bound(
    page: Served, monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    monkeypatch.setattr(surveying, "COUNTED", 3)
    put(page.repo, contents, *"abcdef")
    wait_until(lambda: page.samples()[-1]["waiting"] == {"index": 3}, what="a bounded survey")
    text = page.words()
    assert "Changes waiting 3 or more" in text and "are lower bounds" in text


def test_only_new_samples_and_changed_parts_are_sent(page: Served) -> None:
    first = page.told()
    assert set(first["parts"]) == {"summary", "observers", "letters", "details"}
    newest = first["samples"][-1]["number"]
    marks = ",".join(part["mark"] for part in first["parts"].values())
    told = page.told(newest, marks)
    assert all(one["number"] > newest for one in told["samples"])
    assert "letters" not in told["parts"]
    # A page that was opened before the server was started anew gets everything.
    assert page.samples(newest + 1_000)[0]["number"] == 1
    for odd in ("-1", "x", "9" * 40):
        assert page.client.get("/live.json", params={"since": odd}).json()["samples"]


def test_viewers_share_samples_and_what_was_rendered(
    page: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    def measure(self: Sampler, at_ms: int, seconds: float | None) -> dict[str, float | None]:
        taken.append(at_ms)
        return {}

    monkeypatch.setattr(Sampler, "measure", measure)
    page.told()
    began, before = time.monotonic(), len(taken)
    for _ in range(100):
        page.told()
    assert len(taken) - before <= time.monotonic() - began + 2


def test_the_samples_kept_are_bounded_and_found_by_number() -> None:
    samples = [Sample(n, n, n, {}, 0, 0.0) for n in range(5, 15)]
    assert [one.number for one in since(samples, 12)] == [13, 14]
    assert since(samples, 14) == since([], 0) == since(samples, 99) == []
    assert len(since(samples, 0)) == 10
    assert sampler.KEPT <= 3_600


def test_samples_are_seldom_while_nobody_looks(
    repo: Repository, monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    monkeypatch.setattr(sampler, "_LOOKED_AT", 0.01)
    monkeypatch.setattr(sampler, "_UNATTENDED", 30.0)
    monkeypatch.setattr(sampler, "_ATTENTION", 0.5)
    monkeypatch.setattr(sampler, "_SHARE", 0)
    one = Sampler(repo)
    with at_work(one):
        wait_until(lambda: len(one.look()[0]) > 5, what="samples while somebody looks")
        # Attention fades, and the next sample does not come.
        held: list[int] = []

        def settled() -> bool:
            held.append(len(one._samples))
            return len(held) > 200 and held[-200] == held[-1]

        wait_until(settled, what="the end of the samples")
        count = len(one._samples)
        assert len(one.look()[0]) > count, "who looks again gets a new one at once"


def test_a_trouble_of_the_store_is_said_and_what_was_known_stays(
    page: Served, monkeypatch: pytest.MonkeyPatch, wait_until: WaitUntil
) -> None:
    put(page.repo, contents, "a", "b")
    wait_until(lambda: page.samples()[-1]["waiting"], what="what waits")

    away = percola.StoreError("The store <b>is away</b>.")
    monkeypatch.setattr(sampler, "take_survey", raising(away))
    wait_until(lambda: page.told()["trouble"] == "The store <b>is away</b>.", what="the trouble")
    html = page.page()
    assert "The store &lt;b&gt;is away&lt;/b&gt;." in html and "Changes waiting 2" in words(html)
    assert "index docs.contents no worker runs it 2" in words(html)
    monkeypatch.undo()
    wait_until(lambda: not page.told()["trouble"], what="its end")


def test_a_defect_is_said_logged_and_outlived(
    page: Served,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wait_until: WaitUntil,
) -> None:
    monkeypatch.setattr(sampler, "take_survey", raising(KeyError("a secret of the server")))
    trouble = wait_until(lambda: page.told()["trouble"], what="the trouble")
    assert "server's output" in trouble and "secret" not in trouble
    assert "a secret of the server" in caplog.text
    monkeypatch.undo()
    wait_until(lambda: not page.told()["trouble"], what="its end")


# --- Who may look -------------------------------------------------------------------------------


def test_with_a_token_nothing_is_shown_before_it(repo: Repository) -> None:
    fail(repo, "a row to be kept secret")
    with served(repo, [index], token=TOKEN) as page:
        for path in ("/", "/live.json", "/nothing", "/act"):
            answer = page.client.get(path)
            assert answer.status_code in (401, 404, 405)
            assert "secret" not in answer.text and repo.address not in answer.text
        assert 'type="password"' in page.page(status=401)
        assert "This is not the token." in page.log_in("another").text
        assert page.log_in("another").status_code == 403
        answer = page.log_in()
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie
        assert "secret" in page.page() and page.told()["samples"]


def test_who_logs_out_is_out(mine: Served) -> None:
    kept = dict(mine.client.cookies)
    assert mine.act(logout="1").status_code == 303
    mine.client.cookies.update(kept)
    mine.page(status=401)


def test_a_session_ends_after_half_a_day() -> None:
    clock = ScriptedClock()
    login, response = Login(TOKEN, clock), Response()
    assert login.begin(TOKEN, Request({"type": "http", "scheme": "https"}), response)
    cookie = response.headers["set-cookie"]
    assert "secure" in cookie.lower()
    headers = [(b"cookie", cookie.partition(";")[0].encode())]
    request = Request({"type": "http", "headers": headers})
    assert login.may_read(request)
    clock.now += 12 * 3600 + 1
    assert not login.may_read(request)


def test_a_token_that_could_be_guessed_is_refused(repo: Repository) -> None:
    with pytest.raises(percola.UsageError, match="16 or more"), served(repo, token="short"):
        pass


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "192.168.0.1"])
def test_who_calls_it_by_another_name_learns_and_does_nothing(mine: Served, host: str) -> None:
    for path in ("/", "/live.json", "/static/percola/live.js"):
        answer = mine.client.get(path, headers={"Host": host})
        assert answer.status_code == 421 and "percola serve" in answer.text
    answer = mine.client.post("/login", data={"token": TOKEN}, headers={"Host": host})
    assert answer.status_code == 421


@pytest.mark.parametrize("path", ["/", "/live.json", "/static/percola/live.css", "/nothing"])
def test_every_answer_has_the_headers_that_keep_scripts_out(mine: Served, path: str) -> None:
    answer = mine.client.get(path)
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_only_forms_are_sent(mine: Served) -> None:
    for path in ("/", "/live.json", "/static/percola/live.js"):
        answer = mine.client.post(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    for path in ("/login", "/act"):
        answer = mine.client.get(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


# --- What its buttons do ------------------------------------------------------------------------


def dead(repo: Repository) -> set[str]:
    return {one.cell.row.decode() for one in inspection.failures(repo)}


def name_of(row: str) -> str:
    return encode_letter(Cell("docs", row.encode(), b"contents"), "index")


def test_a_dead_letter_is_retried_whatever_its_row_is(
    mine: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "percola.serve")
    fail(mine.repo, HOSTILE, "other")
    assert dead(mine.repo) == {HOSTILE, "other"}
    assert name_of(HOSTILE) in mine.page()
    answer = mine.act(retry=name_of(HOSTILE))
    assert (answer.status_code, answer.headers["location"]) == (303, "/#actions")
    assert dead(mine.repo) == {"other"}
    assert set(mine.repo.pending().values()) == {1}
    told = mine.part("observers")
    assert "Retry index on <img" in told and "made dirty again: a worker will look" in told
    lines = [one.getMessage() for one in caplog.records if one.name == "percola.serve"]
    assert any("Retry index" in one and "asked for by 127.0.0.1" in one for one in lines)
    assert all(one.isprintable() for one in lines)
    mine.act(retry=name_of(HOSTILE))
    assert "it was not dead-lettered any more" in mine.part("observers")


def test_rows_of_a_type_are_named_by_their_values(
    mine: Served, caplog: pytest.LogCaptureFixture
) -> None:
    days = Table("days", rows=DATE)
    sales = days.column("sales", int, observed=True)

    @observer(sales)
    def refuse(t: Transaction, day: date) -> None:
        raise ValueError(day)

    with percola.open(mine.repo.address, [days]) as other:
        other.run(lambda t: t.set(sales, date(2010, 10, 4), 1))
        Worker(other, [refuse], **QUICK).run_until_idle()
    logged = [one.getMessage() for one in caplog.records if one.name == "percola.worker"]
    assert len(logged) == 2 and all("on days[2010-10-04].sales" in one for one in logged), logged
    assert "refuse 2010-10-04 days.sales" in mine.part("letters")
    cell = Cell("days", DATE.encode(date(2010, 10, 4)), b"sales")
    mine.act(retry=encode_letter(cell, "refuse"))
    assert "Retry refuse on 2010-10-04 days.sales" in mine.part("observers")


def test_all_dead_letters_of_an_observer_are_retried_in_the_background(
    mine: Served, wait_until: WaitUntil
) -> None:
    rows = [f"row {number}" for number in range(60)]
    fail(mine.repo, *rows)
    text = mine.part("letters")
    assert "Retry all 60 of index" in text and "The newest 50 of 60" in text
    assert mine.act(retry_all="index").status_code == 303
    done = "60 changes made dirty again: workers will look"
    wait_until(lambda: done in mine.part("observers"), what="the retry")
    assert dead(mine.repo) == set() and sum(mine.repo.pending().values()) == 60


def test_dead_letters_of_a_table_that_is_newer_than_the_server_are_retried(
    mine: Served, wait_until: WaitUntil
) -> None:
    """They were listed, with a button that found none."""
    later = Table("later")
    text = later.column("text", str, observed=True)

    @observer(text)
    def refuse(t: Transaction, row: str) -> None:
        raise ValueError(row)

    with percola.open(mine.repo.address, [later]) as other:
        put(other, text, "a", "b")
        Worker(other, [refuse], **QUICK).run_until_idle()
    assert "Retry all 2 of refuse" in mine.part("letters")
    assert mine.repo.dead_lettered() == 2 and mine.repo.is_idle()
    assert mine.act(retry_all="refuse").status_code == 303
    done = "2 changes made dirty again: workers will look"
    wait_until(lambda: done in mine.part("observers"), what="the retry")
    assert mine.repo.pending() == {"later.text": 2} and not mine.repo.is_idle()


def test_an_observer_is_paused_with_a_reason_and_resumed(
    mine: Served, wait_until: WaitUntil
) -> None:
    with at_work(Worker(mine.repo, [index, follow], **QUICK)):
        wait_until(lambda: "Pause index" in mine.part("observers"), what="the button")
        reason = {"reason:index": " it <b>harms</b> ", "reason:follow": "not this"}
        mine.act(pause="index", **reason)
        [one] = mine.repo.paused_observers()
        assert (one.name, one.reason) == ("index", "it <b>harms</b>")
        put(mine.repo, contents, "a")
        waits = "index is paused (it <b>harms</b>), and 1 change waits."
        wait_until(lambda: waits in mine.words(), what="the problem")
        mine.act(resume="index")
        assert mine.repo.paused_observers() == []
        wait_until(lambda: not mine.repo.pending(), what="the answer")


def test_an_observer_of_the_application_is_paused_before_any_worker_runs_it(mine: Served) -> None:
    mine.act(pause="follow")
    assert [one.name for one in mine.repo.paused_observers()] == ["follow"]
    put(mine.repo, title, "a")
    work(mine.repo)
    assert mine.repo.pending() == {"docs.title": 1}


def test_what_cannot_be_done_is_a_sentence(mine: Served) -> None:
    mine.act(pause="nobody")
    assert "No live worker runs an observer named 'nobody'" in mine.part("observers")
    mine.act(resume="nobody")
    assert "The observer 'nobody' is not paused" in mine.part("observers")
    mine.act(retry=encode_letter(Cell("nowhere", b"a", b"contents"), "index"))
    assert "nowhere" in mine.part("observers")
    for form in ({}, {"do": "x"}, {"retry": ""}, {"retry": "e30="}, {"retry": "é"}):
        answer = mine.act(**form)
        assert answer.status_code == 400 and "Traceback" not in answer.text


def test_nothing_is_done_without_the_key_of_the_session(mine: Served) -> None:
    fail(mine.repo, "a")
    form = {"retry_all": "index"}
    own = mine.own
    for wrong in ({}, {"key": ""}, {"key": "x" * 43}):
        answer = mine.client.post("/act", data={**form, **wrong}, headers=own)
        assert answer.status_code == 403
    stranger = httpx.Client(base_url=mine.client.base_url, trust_env=False)
    answer = stranger.post("/act", data={**form, "key": mine.key()}, headers=own)
    assert answer.status_code == 403
    assert dead(mine.repo) == {"a"}


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_form_that_another_site_sends_does_nothing(mine: Served, headers: dict[str, str]) -> None:
    logout = {"key": mine.key(), "logout": "1"}
    for path, form in (("/act", logout), ("/login", {"token": TOKEN})):
        answer = mine.client.post(path, data=form, headers=headers)
        assert answer.status_code == 403 and "Another site" in answer.text
    assert mine.page()


def test_without_a_token_there_are_no_buttons_and_no_action(page: Served) -> None:
    fail(page.repo, "a")
    html = page.page()
    assert "<button" not in html and "percola failed retry" in html
    answer = page.client.post("/act", data={"retry_all": "index"}, headers=page.own)
    assert answer.status_code == 403 and dead(page.repo) == {"a"}
    assert page.log_in("").status_code == 403


def test_a_form_that_is_too_long_is_not_read(mine: Served) -> None:
    answer = mine.client.post("/act", data={"key": "x" * MAX_FORM}, headers=mine.own)
    assert answer.status_code == 413
    fields = "&".join(f"f{number}=1" for number in range(2_000))
    answer = mine.client.post("/act", content=fields, headers=mine.own)
    assert answer.status_code == 413


def test_the_end_does_not_wait_for_a_store_that_does_not_answer(
    repo: Repository, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Calls to one on servers are tried again for half a minute."""
    one, asked, answered = Sampler(repo), threading.Event(), threading.Event()

    def take() -> Any:
        asked.set()
        answered.wait(DEADLINE)
        raise RuntimeError("too late")

    monkeypatch.setattr(one, "_take", take)
    monkeypatch.setattr(sampler, "END_SECONDS", 0.01)
    one.start()
    assert asked.wait(DEADLINE)
    one.stop()
    assert one._thread.is_alive()
    answered.set()
    one._thread.join(DEADLINE)
    assert not (one._thread.is_alive() or caplog.records)


# --- Connections ------------------------------------------------------------------------------


def _connected(client: httpx.Client) -> socket.socket:
    """A connection to the server that a client asks."""
    return socket.create_connection((client.base_url.host, client.base_url.port), timeout=60)


async def _reading(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that reads what a request has sent before it answers."""
    await Request(scope, receive).body()
    await Response("here")(scope, receive, send)


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: 127",
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\ntoken",
    ],
)
def test_a_connection_that_sends_no_whole_request_is_closed_and_nothing_is_logged_of_it(
    begun: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "REQUEST_TIMEOUT", 0.05)
    with running(_reading) as client, _connected(client) as silent:
        silent.sendall(begun)
        assert silent.recv(1) == b""
        assert client.get("/").text == "here"
    assert [record.getMessage() for record in caplog.records if record.name != "httpx"] == []


def test_a_connection_that_waits_for_its_answer_is_kept_however_long_that_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []
    kind: Any = listening._Connection

    class Kept(kind):  # type: ignore[misc]
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            made.append(self)

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"  # Not the server's own start.
        for _ in range(5):  # As often as its time is over.
            made[-1]._has_asked()
        await Response("here")(scope, receive, send)

    monkeypatch.setattr(listening, "_Connection", Kept)
    with running(slow) as client:
        assert client.get("/").text == "here"


def _answer(connection: socket.socket) -> bytes:
    """What is answered on a connection, which the server then closes."""
    connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    return b"".join(iter(lambda: connection.recv(4096), b""))


def test_connections_beyond_the_most_are_closed_at_once_and_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "MOST_CONNECTIONS", 2)
    with running(Response("here")) as client, _connected(client) as first, _connected(client):
        with _connected(client) as third, suppress(ConnectionResetError):
            assert third.recv(1) == b""
        assert _answer(first).endswith(b"here")
        assert client.get("/").text == "here"


def test_connections_whose_tls_has_yet_to_begin_count_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, cert = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    subprocess.run([*make.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    context = ssl.create_default_context(cafile=cert)
    context.check_hostname = False
    monkeypatch.setattr(listening, "MOST_CONNECTIONS", 2)
    server = running(Response("here"), tls_cert=cert, tls_key=key)
    with server as client, _connected(client) as first, _connected(client):
        with _connected(client) as third, suppress(ConnectionResetError):
            assert third.recv(1) == b""
        with context.wrap_socket(first) as greeted:
            assert _answer(greeted).endswith(b"here")
