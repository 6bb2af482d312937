"""The page that `webindex serve` makes, in a real browser: Debian's Chromium without a window."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from browsing import Browser, WaitUntil, address_of, command, contrast, driver, line
from from_scratch import recrawl, sample
from hostile_pages import OTHER, SOURCE, TARGET, TITLE, hostile
from selenium import webdriver
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from site_client import made

import percola
from percola import Worker
from webindex.load.transaction import load_captures
from webindex.rendering.browser import Browser as Painter
from webindex.rendering.render import render_url
from webindex.sample import CHANGED_URL, CHANGED_WORDS
from webindex.workers.processes import build_observers, open_index, open_repository, running

__all__ = ["driver"]

ROOT = Path(__file__).resolve().parents[2]

HOME = "https://www.sqlite.org/"
MOVED = "https://www.sqlite.org/moved"

# --- A server, and a browser ----------------------------------------------------------------


def serve(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "webindex.cli.main", "serve", *map(str, arguments)]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "WEBINDEX_REPO"}
    return kept | {"PYTHONPATH": str(Path(percola.__file__).parents[1])}


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`webindex serve` in a process of its own: its address and the process."""
    with command(serve("--repo", folder, "--port", 0), env=environment()) as process:
        yield address_of(process), process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample, a few hostile pages and redirects, worked off."""
    path = tmp_path_factory.mktemp("browsed") / "repo"
    with open_repository(str(path), create=True) as repo, open_index(repo, create=True) as index:
        load_captures(repo, sample(), "sample.warc.gz")
        bad = [made(SOURCE, hostile(TITLE, TITLE)), made(TARGET, hostile(TITLE, "target"))]
        load_captures(repo, [*bad, made(OTHER, hostile(TITLE, "other"))], "hostile.warc.gz")
        pointing = [
            made(MOVED, "", status=301, to="/old-home"),
            made("https://www.sqlite.org/old-home", "", status=302, to="/"),
            made("https://www.sqlite.org/lost", "", status=301, to="/nowhere"),
        ]
        load_captures(repo, pointing, "pointing.warc.gz")
        Worker(repo, build_observers(index), threads=3).run_until_idle()
    return path


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    with serving(folder) as (address, _):
        yield address


@pytest.fixture
def browser(driver: webdriver.Chrome, server: str, wait_until: WaitUntil) -> Iterator[Browser]:
    """The browser on the site. After each test: nothing was hacked, nothing complained."""
    one = Browser(driver, server, wait_until)
    one.window(1200, 900, "light")
    one.complaints()
    yield one
    assert one.ask("window.hacked") is None
    assert one.complaints() == []


# --- Searching ------------------------------------------------------------------------------


def test_a_person_searches_reads_a_story_and_goes_back(browser: Browser) -> None:
    browser.open("/")
    # The field has the focus: one types at once.
    field = browser.driver.switch_to.active_element
    assert field.get_attribute("name") == "q"
    browser.follow(lambda: field.send_keys("database engine", Keys.ENTER))
    assert "q=database+engine" in browser.driver.current_url
    assert browser.driver.title == "database engine – webindex"
    titles = [title.text for title in browser.all(".hit h2")]
    folded = browser.all(".folded.more li .story")
    assert len(titles) + len(folded) == 10 and browser.all(".snippet mark")
    first = browser.one(".hit h2 a").get_attribute("href")
    browser.follow(browser.one(".hit .story").click)
    assert browser.one(".address a").get_attribute("href") == first
    assert browser.one(".headline").text == "In search"
    browser.follow(browser.driver.back)
    assert [title.text for title in browser.all(".hit h2")] == titles
    browser.follow(browser.one(".hit .story").click)
    browser.follow(browser.one(".back a").click)
    assert [title.text for title in browser.all(".hit h2")] == titles


def test_the_keyboard_goes_to_the_field_and_from_hit_to_hit(browser: Browser) -> None:
    browser.open("/?q=index")
    active = "document.activeElement"
    assert browser.ask(f"{active} === document.body")
    browser.one("body").send_keys("/")
    assert browser.ask(f"{active}.id") == "q"
    assert browser.one("#q").get_attribute("value") == "index", "the slash was not typed"
    browser.one("#q").send_keys(Keys.ARROW_DOWN)
    hits = browser.all(".hit h2 a")
    assert browser.driver.switch_to.active_element == hits[0]
    hits[0].send_keys(Keys.ARROW_DOWN)
    assert browser.driver.switch_to.active_element == hits[1]
    hits[1].send_keys(Keys.ARROW_UP)
    hits[0].send_keys(Keys.ARROW_UP)
    assert browser.ask(f"{active}.id") == "q"
    browser.one("#q").send_keys(Keys.ESCAPE)
    assert browser.ask(f"{active} === document.body")
    assert browser.one("#q").get_attribute("value") == "index", "the query stays"


# What has moved, as "value: element from top to top".
_SHIFTS = (
    "(() => { window.shifted = []; new PerformanceObserver((all) => all.getEntries().forEach((one) "
    "=> window.shifted.push(`${one.value}: ` + one.sources.map((of) => `${of.node?.nodeName} "
    "${of.node?.id ?? ''} ${of.node?.className ?? ''} from ${of.previousRect.top} to "
    "${of.currentRect.top}`).join(', '))))"
    ".observe({type: 'layout-shift', buffered: true}) })()"
)


def test_completions_are_chosen_by_keys_and_move_nothing(
    browser: Browser, wait_until: WaitUntil
) -> None:
    browser.open("/?q=index")
    browser.ask(_SHIFTS)
    field = browser.one("#q")
    field.clear()
    field.send_keys("create tab")
    wait_until(lambda: browser.all("#completions li"), what="completions")
    assert field.get_attribute("role") == "combobox"
    assert field.get_attribute("aria-expanded") == "true"
    found = [one.text for one in browser.all("#completions li")]
    field.send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert field.get_attribute("value") == found[1]
    assert browser.one("#completions [aria-selected=true]").text == found[1]
    field.send_keys(Keys.ESCAPE)
    assert field.get_attribute("value") == "create tab", "what was typed is back"
    assert not browser.one("#completions").is_displayed()
    assert browser.ask("window.shifted") == []
    field.send_keys("l")
    wait_until(lambda: browser.one("#completions").is_displayed(), what="completions again")
    # Both within one turn of the browser, and so before the completions of what was typed.
    browser.driver.execute_script(
        "const field = document.querySelector('#q'); field.value = 'create tables'; "
        "field.dispatchEvent(new Event('input', {bubbles: true})); field.dispatchEvent("
        "new KeyboardEvent('keydown', {key: 'Escape', bubbles: true}))"
    )
    assert field.get_attribute("value") == "create tables", "none of its letters is lost"
    field.send_keys(Keys.BACKSPACE)
    wait_until(lambda: browser.one("#completions").is_displayed(), what="completions of table")
    field.send_keys(Keys.ARROW_DOWN)
    chosen = field.get_attribute("value")
    browser.follow(lambda: field.send_keys(Keys.ENTER))
    assert browser.one("#q").get_attribute("value") == chosen
    browser.follow(browser.driver.back)
    assert not browser.one("#completions").is_displayed()
    assert browser.one("#q").get_attribute("aria-expanded") == "false"


def test_a_completion_is_chosen_by_the_first_button_of_the_mouse_alone(
    browser: Browser, wait_until: WaitUntil
) -> None:
    browser.open("/")
    browser.ask(
        "document.querySelector('.field').addEventListener('submit', (event) => "
        "{ event.preventDefault(); window.sent = document.querySelector('#q').value })"
    )
    browser.one("#q").send_keys("create tab")
    wait_until(lambda: browser.all("#completions li"), what="completions")
    first = browser.one("#completions li")
    words = first.text
    ActionChains(browser.driver).click(first).perform()
    assert browser.ask("window.sent") == words
    browser.ask("window.sent = null")
    ActionChains(browser.driver).context_click(first).perform()
    assert browser.ask("window.sent") is None


def test_results_do_not_move_while_they_load(browser: Browser) -> None:
    for path in ("/?q=index", f"/page?url={HOME}"):
        browser.open(path)
        browser.ask(_SHIFTS)
        assert (
            browser.ask("new Promise((done) => setTimeout(() => done(window.shifted), 50))") == []
        )


def test_the_links_around_a_page_are_drawn_in_a_narrow_window(browser: Browser) -> None:
    browser.window(360, 780, "light")
    browser.open(f"/page?url={HOME}")
    assert not browser.one(".around .wide").is_displayed()
    drawing = browser.one(".around .narrow")
    assert drawing.is_displayed() and drawing.rect["width"] <= 360
    labels = browser.all(".around .narrow text")
    assert all(one.rect["height"] > 9 for one in labels)
    right = max(one.rect["x"] + one.rect["width"] for one in labels)
    assert right <= 360, "no label is cut off"
    browser.window(1200, 900, "light")


def test_filters_and_folded_duplicates_open_with_a_click(browser: Browser) -> None:
    browser.open("/?q=self-contained")
    browser.one(".folded summary").click()
    assert browser.one(".folded li a").text == "https://www.sqlite.org/index.html"
    browser.follow(browser.all(".filters a")[0].click)
    assert "host=" in browser.driver.current_url
    browser.follow(browser.one(".chip").click)
    assert "host=" not in browser.driver.current_url


def test_an_image_of_a_page_is_shown_with_its_result_and_in_its_story(
    browser: Browser, folder: Path, wait_until: WaitUntil
) -> None:
    def width(image: str) -> int:
        """Of an image, once it is there: lazy ones come after the page."""
        found = f"document.querySelector('{image}')"
        wait_until(lambda: browser.ask(f"{found}.complete && {found}.naturalWidth"), what=image)
        return int(browser.ask(f"{found}.naturalWidth"))

    with open_repository(str(folder)) as repo, Painter() as painter:
        repo.run(lambda t: render_url(t, HOME, painter))
    browser.open("/?q=self-contained+database+engine")
    assert width(".thumbnail img") == 256
    browser.follow(browser.one(".thumbnail").click)
    assert browser.one(".address a").get_attribute("href") == HOME
    assert browser.one(".picture .list li").text.startswith("Rendered first at ")
    assert width(".picture img") == 256


def test_a_redirect_leads_step_by_step_to_the_page_that_search_shows(browser: Browser) -> None:
    browser.open(f"/page?url={MOVED}")
    assert browser.one(".headline").text == "In search, under the page it redirects to"
    steps = [step.text for step in browser.all(".way .url")]
    assert steps == [MOVED, "https://www.sqlite.org/old-home", HOME]
    browser.follow(browser.all(".way a")[-1].click)
    assert browser.one("h1").text == "SQLite Home Page"
    pointing = {link.text for link in browser.all("[aria-labelledby=pointing-title] .url")}
    assert MOVED in pointing
    browser.open("/page?url=https://www.sqlite.org/lost")
    assert "leads to no page" in browser.one(".standing").text


# --- The live view --------------------------------------------------------------------------


@pytest.mark.long
def test_the_plots_move_while_a_page_is_loaded_and_worked_off(
    browser: Browser, folder: Path, wait_until: WaitUntil
) -> None:
    browser.open("/live")

    def tile(name: str) -> str:
        return browser.text_of(f'.tile[data-key="{name}"] dd span')

    wait_until(lambda: line(browser, "searchable", 2), what="the first plot")
    quiet = line(browser, "searchable", 2)
    with open_repository(str(folder)) as repo, running(str(folder), 1) as workers:
        workers.wait_ready()
        wait_until(lambda: tile("Workers") == "1", what="the worker process")
        for step in range(3):
            load_captures(repo, [made(f"https://new.example/{step}", f"<p>new words {step}")], "x")
        wait_until(lambda: tile("Load to searchable, p95") not in ("–", ""), what="a latency")
        wait_until(lambda: line(browser, "exported", 1), what="the latency's line")
        # What the worker tells of itself: the percentiles of its observers.
        wait_until(lambda: line(browser, "latency", 1), what="the answers' line")
        moved = wait_until(lambda: line(browser, "searchable", 2), what="the plot")
        wait_until(lambda: tile("Changes waiting") == "0", what="the end of the work")
    # The processes have ended: neither the tile nor the table has any of them.
    wait_until(lambda: tile("Workers") == "0", what="the end of the processes")
    wait_until(lambda: not browser.all("#processes"), what="the end of the table")
    assert "webindex work" in browser.one("#no-processes").text
    assert moved != quiet
    # Its curve has left the ground: of its points some are higher than others.
    heights = {point.split(",")[1] for point in re.findall(r"[\d.]+,[\d.]+", moved)}
    assert len(heights) > 1


# --- What is hostile ------------------------------------------------------------------------


def test_hostile_pages_run_nothing_and_violate_nothing(browser: Browser) -> None:
    """Their text is there, and after it neither a script of theirs nor a complaint."""
    for path in ("/?q=malevolence", "/page?url=" + SOURCE, "/live"):
        browser.open(path)
        assert browser.ask("window.hacked") is None
        browser.driver.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    browser.open("/?q=malevolence")
    assert "<script>window.hacked=1</script>" in browser.one(".hit h2").text
    browser.follow(browser.one(".hit .story").click)
    assert "<script>window.hacked=1</script>" in browser.one("h1").text
    for node in browser.all(".around svg a")[:2]:
        assert (node.get_dom_attribute("href") or "").startswith("/page?url=")


def test_the_policy_stops_what_would_slip_through(browser: Browser, wait_until: WaitUntil) -> None:
    """Were a script or a style ever let into a page, the browser would not run it."""
    browser.open("/")
    browser.ask(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.slipped = 1';"
        " document.body.append(s); const p = document.createElement('p');"
        " p.innerHTML = '<img src=x onerror=\"window.slipped = 1\">'; document.body.append(p);"
        " p.firstChild.addEventListener('error', () => { window.failed = 1 }); })()"
    )
    # The handler that must not run is called when the image has failed, not at once; and the
    # browser may say that it failed later still, when the next test would be blamed for it.
    wait_until(lambda: browser.ask("window.failed") == 1, what="the image's failure")
    assert browser.ask("window.slipped") is None
    said: list[str] = []

    def all_said() -> bool:
        said.extend(one["message"] for one in browser.complaints())
        return len(said) >= 3

    wait_until(all_said, what="what the browser says of two scripts and an image")
    refused = [one for one in said if "Content Security Policy" in one]
    (missed,) = [one for one in said if one not in refused]
    assert len(refused) == 2 and "/x" in missed and "404" in missed


# --- How it looks ---------------------------------------------------------------------------

WINDOWS = {"light": (1200, 900), "dark": (1200, 900), "narrow": (320, 780)}


@pytest.mark.parametrize("look", WINDOWS)
def test_every_page_fits_its_window(browser: Browser, look: str, tmp_path: Path) -> None:
    """Nothing is wider than the window; the screenshots are kept for whoever wants to look."""
    width, height = WINDOWS[look]
    browser.window(width, height, "dark" if look == "dark" else "light")
    papers = set()
    pages = {
        "home": "/",
        "search": "/?q=database+engine",
        "respelt": "/?q=databse",
        "nothing": "/?q=databse&exactly=1",
        "folded": "/?q=server",
        "story": "/page?url=https%3A%2F%2Fwww.sqlite.org%2Findex.html",
        "moved": f"/page?url={MOVED}",
        "which": "/page",
        "live": "/live",
    }
    for name, path in pages.items():
        browser.open(path)
        wide = browser.ask("document.documentElement.scrollWidth")
        assert wide <= width, f"{name} is {wide} wide in a window of {width}"
        papers.add(browser.ask("getComputedStyle(document.body).backgroundColor"))
        assert browser.driver.save_screenshot(str(tmp_path / f"{name}-{look}.png"))
        assert (tmp_path / f"{name}-{look}.png").stat().st_size > 5_000
    (paper,) = papers
    lightness = sum(map(int, re.findall(r"\d+", paper)[:3])) / 3
    assert lightness < 60 if look == "dark" else lightness > 200


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out_from_its_paper(browser: Browser, scheme: str) -> None:
    browser.window(1200, 900, scheme)
    for path, selectors in {
        "/?q=self-contained": [".hit h2 a", ".snippet", ".meta", ".where", "mark", ".total",
                               ".filters h2", ".number", ".top nav a", ".field button", "summary"],
        "/page?url=www.sqlite.org/index.html": [".headline", ".notes", ".tag", "th", ".status"],
        f"/page?url={MOVED}": [".headline", ".way .tag", ".way .status.s2", ".way .status.s3"],
        "/live": [".tile dt", ".tile .note", ".zero", ".verdict .wait"],
    }.items():  # fmt: skip
        browser.open(path)
        for selector in selectors:
            assert contrast(browser, selector) >= 4.5, f"{selector} of {path} in {scheme}"


# --- The process ----------------------------------------------------------------------------


def test_what_another_process_makes_searchable_is_found_within_a_second(
    folder: Path, server: str
) -> None:
    with (
        httpx.Client(base_url=server, trust_env=False) as client,
        open_repository(str(folder)) as repo,
        open_index(repo) as index,
    ):
        assert CHANGED_URL not in client.get("/", params={"q": CHANGED_WORDS}).text
        load_captures(repo, recrawl(), "recrawl.warc.gz")
        Worker(repo, build_observers(index), threads=2).run_until_idle()
        indexed = time.monotonic()
        while CHANGED_URL not in client.get("/", params={"q": CHANGED_WORDS}).text:
            assert time.monotonic() < indexed + 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_cleanly(folder: Path, number: signal.Signals) -> None:
    with serving(folder) as (address, process):
        # With a connection that is kept open, as a browser does.
        with httpx.Client(base_url=address, trust_env=False) as client:
            assert client.get("/live.json").status_code == 200
            process.send_signal(number)
            out, err = process.communicate(timeout=90)
        assert process.returncode == 0 and err == "" and "Traceback" not in out


def test_a_port_that_is_taken_and_a_folder_that_is_none_are_one_sentence_each(
    folder: Path, tmp_path: Path
) -> None:
    def failed(*arguments: object) -> str:
        done = subprocess.run(
            serve(*arguments), env=environment(), capture_output=True, text=True, timeout=180
        )
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
        return done.stderr

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = failed("--repo", folder, "--port", port)
        assert f"Port {port} of 127.0.0.1 cannot be had (Address already in use)" in said
        assert "--port 0" in said
    assert "There is no repository" in failed("--repo", tmp_path / "none", "--port", 0)
    assert "--host" in failed("--repo", folder, "--host", "no.such.host.invalid", "--port", 0)
    assert not (tmp_path / "none").exists()
