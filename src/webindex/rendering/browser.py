"""Headless Chromium that sees nothing but what it is given: from a URL and answers to an image.

Three walls keep a page in. Every request of the browser is intercepted and answered by the caller,
or refused. The browser runs in a network namespace of its own, in which there is no network; where
the system has none, it has at least no resolver and no proxy (interception alone would let a page
connect outwards, by a WebSocket for instance). And it runs without privileges, as `nobody` if this
process is root's, in its own sandbox, with a profile that is removed afterwards.

A page has a browser context, and so cookies and storage, of its own; scripts are off unless asked
for. What it may use is bounded: time, memory, requests, height. A page that exceeds a bound, or
crashes its tab, ends the whole process group; the next page starts another browser.

The same answers give the same bytes: animations stand still, at their end if they have one, the
zone is UTC, and text is drawn without the display's subpixels. `Browser.version` says what else a
picture depends on.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from webindex.errors import NoBrowserError, RenderError
from webindex.rendering.devtools import Connection, RefusedError

__all__ = ["Answer", "Bounds", "Browser", "Rendered", "find_browser"]

BROWSER_VARIABLE: Final = "CHROMIUM"
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_NOBODY: Final = 65534
_LAUNCH_SECONDS: Final = 60.0
_FOLDERS: Final = "webindex-renderer-"
_OFF: Final = (
    "Translate",
    "OptimizationHints",
    "MediaRouter",
    # Each context has a window, and in it Chromium loads pages of its own, such as the list below
    # the address bar, in one process more: that takes longer than rendering the page.
    "WebUIOmniboxPopup",
    "WebUIOmniboxAimPopup",
    # And it starts a process in advance, for a second page of the context.
    "SpareRendererForSitePerProcess",
    # It would ask for the https URL of a page that was captured by http.
    "HttpsUpgrades",
)
_FLAGS: Final = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    # Frames of other sites, and those in a sandbox, in the process of their page: a frame with one
    # of its own has its scripts, and its requests are not seen.
    "--disable-site-isolation-trials",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-domain-reliability",
    "--no-pings",
    # No way outwards, should a request not be intercepted.
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--proxy-server=127.0.0.1:9",
    "--proxy-bypass-list=<-loopback>",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    f"--disable-features={','.join(_OFF)}",
    # What is drawn must not depend on the machine or the moment.
    # Images are loaded at once; of those that move (policy 2: none does), the first frame is shown.
    "--blink-settings=lazyLoadEnabled=false,imageAnimationPolicy=2",
    "--disable-checker-imaging",
    "--disable-threaded-animation",
    "--run-all-compositor-stages-before-draw",
    "--hide-scrollbars",
    "--mute-audio",
    "--force-color-profile=srgb",
    "--force-device-scale-factor=1",
    "--font-render-hinting=none",
    "--disable-lcd-text",
    "--lang=en-US",
    "--js-flags=--max-old-space-size=256",
)

_STAND_STILL: Final = """
const stand = (root) => {
  for (const moving of root.getAnimations()) {
    const ends = Number.isFinite(moving.effect?.getComputedTiming().endTime);
    if (ends && moving.playState !== "paused") moving.finish();
  }
  for (const moved of root.querySelectorAll("marquee")) {
    const still = moved.cloneNode();
    still.setAttribute("scrollamount", "0");
    still.append(...moved.childNodes);
    moved.replaceWith(still);
  }
  for (const one of root.querySelectorAll("*")) if (one.shadowRoot) stand(one.shadowRoot);
};
stand(document);
"""

_SETTINGS: Final = blake2b(" ".join([*_FLAGS, _STAND_STILL]).encode(), digest_size=4).hexdigest()


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a page may use.

    Attributes:
        width, height: of the window, in pixels.
        max_height: of the image; a longer page is cut off there.
        seconds: from the first request to the image.
        memory: resident bytes of all processes of the browser.
        requests: that are answered; all further ones are refused.
        scripts: whether scripts run.
    """

    width: int = 1024
    height: int = 768
    max_height: int = 8192
    seconds: float = 15.0
    memory: int = 1500 << 20
    requests: int = 500
    scripts: bool = False


THUMBNAIL: Final = 0.25
"""The scale of a thumbnail, which shows what fits in the window."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered: `digest` tells it from any other answer of that URL."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    digest: str


@dataclass(slots=True)
class Rendered:
    """A rendered page.

    Attributes:
        image, thumbnail: PNGs.
        width, height: of the image, in pixels.
        cut: whether the page is longer.
        asked: the URLs that the browser asked for, in the caller's spelling and in order, each with
            the digest of the answer; None if there was none.
        refused: how many requests were refused whatever they were for: they were no GET, not by
            HTTP, or too many.
    """

    image: bytes = b""
    thumbnail: bytes = b""
    width: int = 0
    height: int = 0
    cut: bool = False
    asked: dict[str, str | None] = field(default_factory=dict)
    refused: int = 0


Answers = Callable[[str], tuple[str | None, Answer | None]]
"""Gives the name of a URL, or None if it can have no answer, and its answer."""


def find_browser() -> str:
    """The browser's executable: what CHROMIUM names, or Chromium or Chrome on the path.

    Raises NoBrowserError, which says how to get one.
    """
    named = os.environ.get(BROWSER_VARIABLE)
    for one in (named,) if named else _NAMES:
        if found := shutil.which(one):
            return found
    what = f"{named} is no program" if named else "none of the names of Chromium is on the path"
    raise NoBrowserError(
        f"There is no browser to render pages with ({what}): install Chromium (Debian: apt-get "
        f"install chromium) or point {BROWSER_VARIABLE} to it; all other commands work without."
    )


class Browser:
    """A browser process that renders one page at a time; started at the first.

    Not for several threads. Use it as a context manager, or close it.
    """

    def __init__(self, bounds: Bounds = Bounds(), executable: str | None = None) -> None:
        self.bounds = bounds
        self._executable = executable or find_browser()
        self._process: _Process | None = None
        self._page: _Page | None = None

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def version(self) -> str:
        """What a picture depends on besides its page: browser, settings, fonts, window."""
        process = self._started()
        bounds = self.bounds
        size = f"{bounds.width}x{bounds.height} of {bounds.max_height}"
        scripts = ", scripts" if bounds.scripts else ""
        return f"{process.product}, settings {_SETTINGS}, fonts {fonts()}, {size}{scripts}"

    @property
    def isolated(self) -> bool:
        """Whether the browser has a network namespace of its own."""
        return _prefix()[1]

    def close(self) -> None:
        """End the browser."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def render(self, url: str, answers: Answers) -> Rendered:
        """Render a page; `answers` is called for its own URL first, then for each request.

        Raises RenderError with the reason if the page cannot be rendered within the bounds.
        """
        process = self._started()
        page = _Page(process, self.bounds, url, answers)
        self._page = page
        try:
            return page.render()
        except TimeoutError as error:
            self.close()
            raise RenderError(
                f"The page took longer than {self.bounds.seconds:g} s to render."
            ) from error
        except BaseException:
            # Whatever state it is in, the next page must not find it.
            self.close()
            raise
        finally:
            self._page = None

    def _started(self) -> _Process:
        if self._process is None:
            self._process = _Process(self._executable, self._event, self._watch)
        return self._process

    def _event(self, method: str, given: Mapping[str, Any], session: str | None) -> None:
        if self._page is not None:
            self._page.event(method, given, session)

    def _watch(self) -> None:
        if self._page is not None and self._process is not None:
            used = self._process.memory()
            if used > self.bounds.memory:
                raise RenderError(
                    f"The page took more than {self.bounds.memory >> 20:,} MiB of memory."
                )


def _remove_abandoned() -> None:
    """Remove folders of renderers that were killed: they hold the folders of theirs locked."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDERS}*"):
        with contextlib.suppress(OSError):  # Another user's, in use, or just removed.
            # One that was just made may not be locked yet.
            if time.time() - folder.stat().st_mtime < _LAUNCH_SECONDS:
                continue
            descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


class _Process:
    """Chromium's processes, and the pipe to them."""

    def __init__(
        self,
        executable: str,
        event: Callable[[str, Mapping[str, Any], str | None], None],
        watch: Callable[[], None],
    ) -> None:
        prefix, _ = _prefix()
        try:
            _remove_abandoned()
            self._folder = Path(tempfile.mkdtemp(prefix=_FOLDERS))
        except OSError as error:
            raise NoBrowserError(
                f"The browser does not start, for lack of a folder: {error}."
            ) from error
        self._in_use = os.open(self._folder, os.O_RDONLY)
        fcntl.flock(self._in_use, fcntl.LOCK_EX)
        try:
            self.pid, reading, writing = _spawned(self._folder, [*prefix, executable])
        except OSError as error:
            self._remove_folder()
            raise NoBrowserError(f"The browser does not start: {error}.") from error
        self.pipe = Connection(reading, writing, event, watch)
        try:
            until = time.monotonic() + _LAUNCH_SECONDS
            told = self.pipe.call("Browser.getVersion", until=until)
            self.product = str(told["product"])
            self.pipe.call("Browser.setDownloadBehavior", behavior="deny", until=until)
        except (RenderError, TimeoutError) as error:
            said = self._said()
            self.end()
            raise NoBrowserError(f"The browser does not start{said}.") from error

    def memory(self) -> int:
        """Resident bytes of its processes, without what they share."""
        page, total = os.sysconf("SC_PAGE_SIZE"), 0
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError, ValueError):
                stat = Path(entry.path, "stat").read_bytes()
                if int(stat.rpartition(b")")[2].split()[2]) == self.pid:
                    _, resident, shared, *_ = Path(entry.path, "statm").read_text().split()
                    total += (int(resident) - int(shared)) * page
        return total

    def end(self) -> None:
        """Kill its process group, and remove its profile."""
        self.pipe.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self._remove_folder()

    def _remove_folder(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._in_use)

    def _said(self) -> str:
        lines = (self._folder / "log").read_text(errors="replace").strip().splitlines()
        telling = [one for one in lines if "FATAL" in one or "sandbox" in one.lower()] or lines
        return f" ({telling[-1].strip()[:300]})" if telling else ""


def _spawned(folder: Path, program: Sequence[str]) -> tuple[int, int, int]:
    """Start a browser: its process id, and where to read what it says and to write to it."""
    if os.geteuid() == 0:
        os.chown(folder, _NOBODY, _NOBODY)
    command = [*program, *_FLAGS, f"--user-data-dir={folder}/profile", "about:blank"]
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
    }
    with contextlib.ExitStack() as failed, contextlib.ExitStack() as done:
        their_reading, writing = os.pipe()
        done.callback(os.close, their_reading)
        failed.callback(os.close, writing)
        reading, their_writing = os.pipe()
        done.callback(os.close, their_writing)
        failed.callback(os.close, reading)
        # Away from 3 and 4, to which they are duplicated one after the other.
        theirs = []
        for one in (their_reading, their_writing):
            theirs.append(fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10))
            done.callback(os.close, theirs[-1])
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        done.callback(os.close, log)
        pid = os.posix_spawnp(
            command[0],
            command,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
                (os.POSIX_SPAWN_DUP2, theirs[0], 3),
                (os.POSIX_SPAWN_DUP2, theirs[1], 4),
            ],
            setpgroup=0,
        )
        failed.pop_all()
    return pid, reading, writing


class _Page:
    """One page in the browser."""

    def __init__(self, process: _Process, bounds: Bounds, url: str, answers: Answers) -> None:
        self._pipe = process.pipe
        self._bounds = bounds
        self._url = url
        self._answers = answers
        self._until = time.monotonic() + bounds.seconds
        self._session: str | None = None
        self._frame = ""
        self._documents = 0
        self._loaded = False
        self._crashed = False
        self._answered = 0
        self._done = Rendered()

    def render(self) -> Rendered:
        """Load the page, take its pictures, and close it."""
        context = self._call("Target.createBrowserContext")["browserContextId"]
        target = self._call("Target.createTarget", url="about:blank", browserContextId=context)[
            "targetId"
        ]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = str(attached["sessionId"])
        self._frame = str(target)
        self._set_up()
        self._pipe.send("Page.navigate", self._session, url=self._url)
        self._pipe.wait(lambda: self._loaded or self._crashed, until=self._until)
        if self._crashed:
            raise RenderError("The page crashed its tab.")
        self._picture()
        self._session = None
        self._call("Target.closeTarget", targetId=target)
        self._call("Target.disposeBrowserContext", browserContextId=context)
        return self._done

    def _call(self, method: str, **given: Any) -> Mapping[str, Any]:
        result = self._pipe.call(method, self._session, until=self._until, **given)
        if self._crashed:
            raise RenderError("The page crashed its tab.")
        return result

    def _set_up(self) -> None:
        bounds = self._bounds
        self._call("Fetch.enable", patterns=[{"urlPattern": "*"}])
        self._call("Page.enable")
        self._call("Inspector.enable")
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=bounds.width,
            height=bounds.height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self._call("Emulation.setTimezoneOverride", timezoneId="UTC")
        self._call("Emulation.setScriptExecutionDisabled", value=not bounds.scripts)
        self._call("Animation.enable")
        self._call("Animation.setPlaybackRate", playbackRate=0)

    def _picture(self) -> None:
        bounds, done = self._bounds, self._done
        self._stand_still()
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        height = max(1, int(size["height"]))
        done.width, done.height = bounds.width, min(height, bounds.max_height)
        done.cut = height > bounds.max_height
        done.image = self._screenshot(done.height, 1.0)
        done.thumbnail = self._screenshot(min(done.height, bounds.height), THUMBNAIL)

    def _stand_still(self) -> None:
        """Have animations that end be at their end, and what a <marquee> moves at its left.

        A page may fade in: at their beginning, its texts would not be seen. An animation that the
        page holds has not begun for its readers either. What a <marquee> moves would stand there,
        or outside of it where its way begins: it is chance whether it was moved before the picture.
        Only an element that never moved stands still.
        """
        for frame in _frames(self._call("Page.getFrameTree")["frameTree"]):
            # One may be elsewhere, or gone, by now.
            with contextlib.suppress(RefusedError):
                world = self._call("Page.createIsolatedWorld", frameId=frame)
                context = world["executionContextId"]
                self._call("Runtime.evaluate", expression=_STAND_STILL, contextId=context)

    def _screenshot(self, height: int, scale: float) -> bytes:
        clip = {"x": 0, "y": 0, "width": self._bounds.width, "height": height, "scale": scale}
        shot = self._call(
            "Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True
        )
        return base64.b64decode(shot["data"])

    # --- Events -----------------------------------------------------------------------------

    def event(self, method: str, given: Mapping[str, Any], session: str | None) -> None:
        """An event of the browser."""
        if method == "Fetch.requestPaused":
            self._request(given, session)
        elif method == "Page.loadEventFired" and session == self._session:
            self._loaded = self._loaded or self._documents > 0
        elif method == "Page.frameStoppedLoading" and given["frameId"] == self._frame:
            # A page that went elsewhere before it was loaded never fires the event above.
            self._loaded = self._loaded or self._documents > 1
        elif method == "Page.javascriptDialogOpening":
            self._pipe.send("Page.handleJavaScriptDialog", session, accept=False)
        elif method == "Inspector.targetCrashed":
            self._crashed = True

    def _request(self, given: Mapping[str, Any], session: str | None) -> None:
        request, number = given["request"], given["requestId"]
        url, kind = str(request["url"]), given.get("resourceType")
        first = False
        if kind == "Document" and given.get("frameId") == self._frame:
            first = self._documents == 0
            self._documents += 1
            if not first:
                # The page wants to go elsewhere: a refresh, say. After "no content" it stays.
                self._pipe.send("Fetch.fulfillRequest", session, requestId=number, responseCode=204)
                return
        if kind == "Other" and url.endswith("/favicon.ico"):
            self._refuse(number, session)
            return
        if request["method"] != "GET" or self._answered >= self._bounds.requests:
            self._done.refused += 1
            self._refuse(number, session)
            return
        self._answered += 1
        # The browser may spell the page's own URL otherwise: "%7C" for "|".
        name, answer = self._answers(self._url if first else url)
        if name is None:
            self._done.refused += 1
        elif not first:
            self._done.asked[name] = None if answer is None else answer.digest
        if answer is None:
            self._refuse(number, session)
            return
        # Stored answers may be used by any origin: a font of another host, for instance.
        headers = {"access-control-allow-origin": "*", **answer.headers}
        # Chromium leaves a request waiting if it does not take the answer: a header of several
        # lines, or a status that it has no phrase for.
        self._pipe.send(
            "Fetch.fulfillRequest",
            session,
            requestId=number,
            responseCode=answer.status,
            responsePhrase="Captured",
            responseHeaders=[
                {"name": name, "value": " ".join(text.replace("\0", " ").split())}
                for name, text in headers.items()
            ],
            body=base64.b64encode(answer.body).decode(),
        )

    def _refuse(self, number: str, session: str | None) -> None:
        self._pipe.send("Fetch.failRequest", session, requestId=number, errorReason="Aborted")


def _frames(tree: Mapping[str, Any]) -> Iterator[str]:
    """The ids of a frame and of those in it."""
    yield tree["frame"]["id"]
    for one in tree.get("childFrames", ()):
        yield from _frames(one)


# --- Surroundings -----------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _prefix() -> tuple[list[str], bool]:
    """The command before the browser's, and whether it gives it an empty network namespace."""
    if os.geteuid() == 0:
        drop = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
        drop.append("--no-new-privs")
        choices = [(["unshare", "--net", *drop], True), (drop, False)]
    else:
        choices = [(["unshare", "--user", "--net", "--map-current-user"], True), ([], False)]
    for prefix, isolated in choices:
        if not prefix or _works(prefix):
            return prefix, isolated
    raise NoBrowserError(
        "The browser must not run as root, and 'setpriv' (of util-linux) is not here to prevent "
        "that: install it, or render as another user."
    )


def _works(prefix: list[str]) -> bool:
    try:
        tried = subprocess.run(
            [*prefix, "true"], stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except OSError:
        return False
    return tried.returncode == 0


@lru_cache(maxsize=1)
def fonts() -> str:
    """A short digest of the installed fonts, by which text is drawn."""
    try:
        listed = subprocess.run(
            ["fc-list"], stdin=subprocess.DEVNULL, capture_output=True, check=False
        ).stdout
    except OSError:
        return "unknown"
    return blake2b(b"\n".join(sorted(listed.splitlines())), digest_size=4).hexdigest()
