"""Chromium without a window, for tests that look at pages as people do."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from needs import lack, need
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

ROOT = Path(__file__).resolve().parents[2]
WaitUntil = Callable[..., Any]

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--disable-dev-shm-usage --window-size=1200,900"
)


@contextlib.contextmanager
def command(line: Sequence[object], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that prints to the test; killed at the end if it has not ended."""
    process = subprocess.Popen(
        [*map(str, line)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def address_of(process: subprocess.Popen[str]) -> str:
    """The address that a server prints in its first line."""
    assert process.stdout is not None
    found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
    assert found, process.communicate()
    return found[0]


class Browser:
    """Chromium, with what the tests look at."""

    def __init__(self, driver: webdriver.Chrome, base: str, wait_until: WaitUntil) -> None:
        self.driver = driver
        self.base = base
        self._wait_until = wait_until
        self._departures = 0

    def open(self, path: str) -> None:
        self.driver.get(self.base + path)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def follow(self, act: Callable[[], object]) -> None:
        """Do what leads to another page, and return when that is there."""
        # A page to which one goes back is as it was left: so each departure has its number.
        self._departures += 1
        number = self._departures
        self.driver.execute_script(f"window.departure = {number}")
        act()

        def left() -> bool:
            # Between two documents Chromium has none to ask, and says so in several ways.
            with contextlib.suppress(WebDriverException):
                return bool(
                    self.ask(f"window.departure !== {number} && document.readyState === 'complete'")
                )
            return False

        self._wait_until(left, what="the next page")

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def ask(self, script: str) -> Any:
        return self.driver.execute_script(f"return {script}")

    def text_of(self, selector: str, attribute: str = "") -> str:
        """The text, or an attribute, of the first element that is selected; empty if none is.

        Asked in one step, for pages that change all the time.
        """
        what = f"getAttribute({attribute!r})" if attribute else "textContent"
        script = f"return document.querySelector(arguments[0])?.{what} ?? ''"
        return str(self.driver.execute_script(script, selector))

    def complaints(self) -> list[dict[str, Any]]:
        """What the console says: violations of the policy, errors of scripts, failed requests."""
        found: list[dict[str, Any]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return found

    def window(self, width: int, height: int, scheme: str) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    need("browser")
    found = subprocess.run(
        [ROOT / "scripts" / "chromium.sh", "path"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        lack(
            "browser",
            "This test needs Chromium and its driver: scripts/chromium.sh install gets them or "
            "says how (Debian: apt-get install chromium chromium-driver).",
        )
    browser, chromedriver = found.stdout.split("\n")[:2]
    options = Options()
    options.binary_location = browser
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # With both paths given Selenium looks for nothing, and so downloads nothing.
    started = webdriver.Chrome(options=options, service=Service(chromedriver))
    try:
        started.set_page_load_timeout(60)
        yield started
    finally:
        started.quit()


def contrast(browser: Browser, selector: str) -> float:
    """The ratio of WCAG 2 between an element's text and what is behind it."""
    return float(
        browser.driver.execute_script(
            """return ((element) => {
              const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
              const light = (color) => {
                const [r, g, b] = numbers(color).slice(0, 3).map((v) => v / 255)
                  .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
              };
              let behind = element;
              while (numbers(getComputedStyle(behind).backgroundColor)[3] === 0)
                behind = behind.parentElement;
              const one = light(getComputedStyle(element).color);
              const other = light(getComputedStyle(behind).backgroundColor);
              return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
            })(document.querySelector(arguments[0]))""",
            selector,
        )
    )


def line(browser: Browser, plot: str, color: int) -> str:
    """The path of a line of a plot; empty if there is none."""
    return browser.text_of(f'[data-plot="{plot}"] .line.c{color}', "d")
