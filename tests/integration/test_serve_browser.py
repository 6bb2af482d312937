"""`percola serve` beside workers, in a real browser."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from browsing import Browser, WaitUntil, address_of, command, contrast, driver, line
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import percola
from percola import Repository, Table, inspection
from percola.serve import Sample

__all__ = ["driver"]

TOKEN = "a token of more than sixteen characters"
HOSTILE = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script> \u202e'\"&"
PROGRAM = """
import os, pathlib, threading
from percola import Table, observer

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
title = docs.column("title", str, observed=True)
CORRECTED = pathlib.Path(__file__).with_name("corrected")
RELEASED = pathlib.Path(__file__).with_name("released")

@observer(contents)
def index(t, row):
    if (t.get(contents, row) or "").startswith("fail") and not CORRECTED.exists():
        raise ValueError("cannot index <script>window.hacked=1</script> " + row)
    t.set(title, row, "title")

@observer(title)
def follow(t, row):
    while row == "slow" and not RELEASED.exists():
        threading.Event().wait(0.05)
"""

docs = Table("docs")
contents = docs.column("contents", str, observed=True)
title = docs.column("title", str, observed=True)


def put(repo: Repository, column: Any, *rows: str, text: str = "text") -> None:
    for row in rows:
        with repo.transaction() as t:
            t.set(column, row, text)


def percola_on(folder: Path, *words: object) -> AbstractContextManager[subprocess.Popen[str]]:
    """A `percola` process on the repository."""
    environment = os.environ | {"PYTHONPATH": str(Path(percola.__file__).parents[1])}
    line = [sys.executable, "-m", "percola.cli", "--repo", "r", *words]
    return command(line, cwd=folder, env=environment)


@contextmanager
def serving(folder: Path, *words: object) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with percola_on(folder, "serve", "program:index", "--port", 0, *words) as process:
        yield address_of(process), process


@contextmanager
def working(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A worker, once it runs."""
    (folder / "observers.py").write_text("from program import *\nALL = [index, follow]\n")
    with percola_on(folder, "worker", "observers:ALL", "--threads", 2) as process:
        assert process.stdout is not None
        while "docs.title" not in process.stdout.readline():
            assert process.poll() is None, process.communicate()
        yield process


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "token").write_text(TOKEN + "\n")
    percola.create(tmp_path / "r", durability="relaxed")
    return tmp_path


@pytest.fixture
def repo(folder: Path) -> Iterator[Repository]:
    with percola.open(folder / "r", [docs]) as opened:
        yield opened


Browsing = Callable[[str], Browser]


@pytest.fixture
def browsing(driver: webdriver.Chrome, wait_until: WaitUntil) -> Iterator[Browsing]:
    """Browsers on a server. After each test: nothing was hacked, nothing complained."""
    opened: list[Browser] = []

    def browse(address: str) -> Browser:
        one = Browser(driver, address, wait_until)
        driver.delete_all_cookies()
        one.window(1200, 900, "light")
        one.complaints()
        opened.append(one)
        return one

    yield browse
    for one in opened:
        assert one.ask("window.hacked") is None
        # The form for the token is a page with the status 401, about which the console tells; and
        # the page may ask for its numbers, or the browser for the page's icon, while its server
        # is killed.
        usual = re.compile(r"status of 401|/live\.json\?since|/icon\.svg .*net::ERR_")
        said = [each["message"] for each in one.complaints()]
        assert [each for each in said if not usual.search(each)] == []


def log_in(browser: Browser) -> None:
    browser.open("/")
    browser.one("#token").send_keys(TOKEN)
    browser.follow(browser.one(".token button").click)


def tile(browser: Browser, name: str) -> str:
    return browser.text_of(f'.tile[data-key="{name}"] dd span')


def test_an_operator_logs_in_reads_a_traceback_corrects_the_cause_and_retries(
    folder: Path, repo: Repository, browsing: Browsing, wait_until: WaitUntil
) -> None:
    put(repo, contents, HOSTILE, text="fail")
    put(repo, contents, *(f"row {number}" for number in range(20)), text="fine")
    with working(folder), serving(folder, "--token-file", "token") as (address, process):
        wait_until(lambda: list(inspection.failures(repo)), what="the dead letter", seconds=60)
        browser = browsing(address)
        log_in(browser)
        wait_until(lambda: tile(browser, "Dead-lettered") == "1", what="the tile")
        wait_until(
            lambda: "1 change of index is dead-lettered" in browser.one(".verdict").text,
            what="the problem",
        )
        assert browser.driver.title == "(1) r – percola"
        row = browser.one("#letters tbody tr")
        assert "<img src=x onerror=window.hacked=1>" in row.text and "\\u202e" in row.text
        row.find_element(By.TAG_NAME, "summary").click()
        before = browser.ask("document.querySelector('#letters pre').textContent")
        assert "Traceback (most recent call last)" in before and "program.py" in before
        # It stays open while the page goes on showing what is new.
        put(repo, contents, "another")
        number = tile(browser, "Oldest change"), browser.text_of("#observers tbody")
        wait_until(
            lambda: (tile(browser, "Oldest change"), browser.text_of("#observers tbody")) != number,
            what="a change",
        )
        assert browser.one("#letters pre").is_displayed()

        (folder / "corrected").touch()
        browser.follow(browser.one("#letters button").click)
        assert browser.driver.current_url.endswith("/#actions")
        assert "made dirty again" in browser.one("#actions + .scroll").text
        wait_until(lambda: repo.snapshot().get(title, HOSTILE) == "title", what="the run")
        wait_until(lambda: browser.all("#no-letters"), what="the end of the dead letter")
        wait_until(
            lambda: "Nothing needs attention." in browser.one(".verdict").text, what="the verdict"
        )
        assert browser.driver.title == "r – percola"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0 and "Retry index on <img" in err and "Traceback" not in out


def test_an_observer_is_paused_from_a_form_that_stays_open_and_resumed(
    folder: Path, repo: Repository, browsing: Browsing, wait_until: WaitUntil
) -> None:
    with working(folder), serving(folder, "--token-file", "token") as (address, _):
        browser = browsing(address)
        log_in(browser)
        row = '#observers tr[data-key="index"]'
        wait_until(lambda: browser.all(f"{row} summary"), what="the button")
        browser.one(f"{row} summary").click()
        field = browser.one(f"{row} input")
        field.send_keys("it harms ")
        put(repo, contents, "a")
        changed = browser.text_of("#observers tbody")
        wait_until(lambda: browser.text_of("#observers tbody") != changed, what="a change")
        # Enter presses none of the buttons: the first one of the form is another.
        field.send_keys("others", Keys.ENTER)
        assert repo.paused_observers() == []
        browser.follow(browser.one(f"{row} .pause button").click)
        [paused] = repo.paused_observers()
        assert (paused.name, paused.reason) == ("index", "it harms others")
        put(repo, contents, "b")
        wait_until(lambda: "it harms others" in browser.text_of(row), what="the state")
        browser.follow(browser.one(f'{row} button[name="resume"]').click)
        assert repo.paused_observers() == []
        wait_until(lambda: not repo.pending(), what="the answer")


@pytest.mark.long
def test_the_plots_move_and_a_long_run_is_named(
    folder: Path, repo: Repository, browsing: Browsing, wait_until: WaitUntil
) -> None:
    with working(folder), serving(folder) as (address, _):
        browser = browsing(address)
        browser.open("/")
        put(repo, title, "slow")
        numbers = iter(range(10_000))

        def moved() -> bool:
            put(repo, contents, f"row {next(numbers)}")
            lines = [line(browser, "throughput", 1), line(browser, "latency", 1)]
            heights = [set(re.findall(r",([\d.]+)", one)) for one in lines]
            return len(heights[0]) > 1 and len(heights[1]) >= 1

        wait_until(moved, what="the plots", seconds=60)
        wait_until(lambda: browser.text_of("#processes tbody .wait-text") == "follow", what="it")
        assert browser.all("#processes") and "slow" not in browser.text_of("#processes")
        (folder / "released").touch()
        wait_until(lambda: not browser.all("#processes tbody .wait-text"), what="its end")
        assert not browser.all("button"), "without a token there is nothing to press"


def test_a_stopped_server_is_said_and_the_page_goes_on_when_it_is_back(
    folder: Path, repo: Repository, browsing: Browsing, wait_until: WaitUntil
) -> None:
    with serving(folder) as (address, _):
        browser = browsing(address)
        browser.open("/")
        wait_until(lambda: line(browser, "oldest", 2), what="the plots")
    trouble = "No new numbers"
    wait_until(lambda: trouble in browser.text_of("#trouble"), what="the trouble")
    port = int(address.rpartition(":")[2])
    with percola_on(folder, "serve", "--port", port) as process:
        assert process.stdout is not None and str(port) in process.stdout.readline()
        put(repo, contents, "a")
        wait_until(lambda: tile(browser, "Changes waiting") == "1", what="new numbers", seconds=60)
        assert not browser.one("#trouble").is_displayed()


@pytest.mark.parametrize(
    ("minutes", "axis"),
    [
        (1, ["1 min", "45 s", "30 s", "15 s", "now"]),
        (2, ["2 min", "90 s", "1 min", "30 s", "now"]),
        (5, ["5 min", "4 min", "3 min", "2 min", "1 min", "now"]),
    ],
)
def test_the_axis_has_whole_numbers_and_every_series_its_name(
    folder: Path, browsing: Browsing, minutes: int, axis: list[str], wait_until: WaitUntil
) -> None:
    samples = [
        asdict(Sample(at + 1, 12_000 * minutes * at, at, {"index": 7}, 0, 3.0)) for at in range(6)
    ]
    answer = json.dumps({"samples": samples, "trouble": "", "parts": {}})
    source = f"window.fetch = async () => new Response({json.dumps(answer)})"
    with serving(folder) as (address, _):
        browser = browsing(address)
        added = browser.driver.execute_cdp_cmd(
            "Page.addScriptToEvaluateOnNewDocument", {"source": source}
        )
        try:
            browser.open("/")
            # It is drawn last.
            wait_until(lambda: browser.all('[data-plot="latency"] svg text'), what="the plots")
            for plot in ("throughput", "latency", "waiting", "oldest"):
                texts = browser.driver.execute_script(
                    "return [...document.querySelectorAll(arguments[0])].map((t) => t.textContent)",
                    f'[data-plot="{plot}"] svg text',
                )
                assert texts[-len(axis) :] == axis
            assert browser.text_of('[data-plot="waiting"] .legend') == "index 7"
            assert browser.text_of('[data-plot="oldest"] .legend') == "oldest 3.0 s"
        finally:
            browser.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


WINDOWS = {"light": (1200, 900), "dark": (1200, 900), "narrow": (320, 844)}


def test_everything_fits_its_window_and_stands_out_from_its_paper(
    folder: Path, repo: Repository, browsing: Browsing, wait_until: WaitUntil, tmp_path: Path
) -> None:
    """The screenshots are kept to be looked at."""
    put(repo, contents, HOSTILE, "x" * 300, text="fail")
    with working(folder) as worker, serving(folder, "--token-file", "token") as (address, _):
        wait_until(lambda: len(list(inspection.failures(repo))) == 2, what="them", seconds=60)
        repo.pause_observer("follow", reason="y" * 300)
        put(repo, contents, "a")
        browser = browsing(address)
        for name, (width, height) in WINDOWS.items():
            scheme = "dark" if name == "dark" else "light"
            browser.window(width, height, scheme)
            browser.driver.delete_all_cookies()
            browser.open("/")
            assert contrast(browser, ".token button") >= 4.5
            assert browser.ask("document.documentElement.scrollWidth") <= width
            log_in(browser)
            wait_until(lambda: line(browser, "oldest", 2), what="the plots")
            wait_until(lambda: browser.all(".verdict .wait"), what="the pause")
            for opened in ("#letters summary", "#observers summary"):
                browser.one(opened).click()
            wide = browser.ask("document.documentElement.scrollWidth")
            assert wide <= width, f"{wide} wide in a window of {width}"
            for selector in (".verdict .bad", ".verdict .wait", ".tile .note", ".tile.bad dd span",
                             ".zero", "#letters td", "#letters pre", "#letters button", ".notes",
                             ".wait-text", "summary", ".muted"):  # fmt: skip
                assert contrast(browser, selector) >= 4.5, f"{selector} in {name}"
            # What there is to press is within the window, without scrolling sideways.
            edges = browser.ask(
                "[...document.querySelectorAll('button, summary')]"
                ".map((b) => [b.getBoundingClientRect().right, b.textContent])"
            )
            assert len(edges) > 4 and max(edges)[0] <= width, max(edges)
            assert browser.driver.save_screenshot(str(tmp_path / f"serve-{name}.png"))
        assert worker.poll() is None


def test_without_a_script_the_first_state_is_whole(
    folder: Path, repo: Repository, browsing: Browsing
) -> None:
    put(repo, contents, "a", "b")
    with serving(folder) as (address, _):
        browser = browsing(address)
        disable = "Emulation.setScriptExecutionDisabled"
        browser.driver.execute_cdp_cmd(disable, {"value": True})
        try:
            browser.open("/")
            assert browser.one('.tile[data-key="Changes waiting"] dd').text.startswith("2")
            assert "index" in browser.one("#observers").text
            assert "load the page again" in browser.one("noscript").text
        finally:
            browser.driver.execute_cdp_cmd(disable, {"value": False})
