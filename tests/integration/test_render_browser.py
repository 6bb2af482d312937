"""Pages rendered by a real Chromium: what it sees, what it asks for, and what it may not do."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import socket
import struct
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from needs import lack, need

from webindex.errors import NoBrowserError, RenderError
from webindex.rendering.browser import Answer, Bounds, Browser, Rendered, find_browser

SITE = "https://example.org/"
FEW: Any = {"width": 320, "height": 240}
SQUARE = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="40">{}</svg>'
BLUE = '<rect width="40" height="40" fill="#0000ff"/>'
TYPES = {"css": "text/css", "svg": "image/svg+xml", "js": "text/javascript"}


class Site:
    """Answers to a browser, and every URL that it asked for."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = {SITE + name: text for name, text in files.items()}
        self.asked: list[str] = []

    def __call__(self, url: str) -> tuple[str | None, Answer | None]:
        self.asked.append(url)
        text = self.files.get(url)
        if text is None:
            return url, None
        if text.startswith("->"):
            return url, Answer(302, {"location": SITE + text[2:]}, b"", text)
        kind = TYPES.get(url.rpartition(".")[2], "text/html; charset=utf-8")
        return url, Answer(200, {"content-type": kind}, text.encode(), f"digest of {text[:9]}")


@pytest.fixture(scope="module")
def executable() -> str:
    need("browser")
    try:
        return find_browser()
    except NoBrowserError as error:
        lack("browser", str(error))


@pytest.fixture(scope="module")
def browser(executable: str) -> Iterator[Browser]:
    # Bounds of a page's time are far above what it takes here on a busy machine.
    with Browser(Bounds(seconds=120, **FEW), executable) as started:
        yield started


@pytest.fixture(scope="module")
def scripted(executable: str) -> Iterator[Browser]:
    """One that runs scripts."""
    with Browser(Bounds(seconds=120, scripts=True, **FEW), executable) as started:
        yield started


def process_of(browser: Browser) -> Any:
    """Its process, started if need be."""
    assert browser.version and browser._process is not None
    return browser._process


def render(browser: Browser, files: dict[str, str], name: str = "") -> tuple[Rendered, Site]:
    site = Site(files)
    return browser.render(SITE + name, site), site


def moving_image() -> str:
    """A GIF of one pixel that has eight colours, each for 40 ms, as a URL."""
    colours = b"".join(bytes([30 * n, 70 * n % 256, 255 - 30 * n]) for n in range(8))
    gif = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0b11110010, 0, 0) + colours
    gif += b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"
    for n in range(8):
        gif += b"\x21\xf9\x04\x04" + struct.pack("<HBB", 4, 0, 0)
        gif += b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0)
        # Codes of four bits: clear, the colour, the end.
        gif += b"\x03\x02" + (8 | n << 4 | 9 << 8).to_bytes(2, "little") + b"\x00"
    return f"data:image/gif;base64,{base64.b64encode(gif + b';').decode()}"


def pixels(png: bytes) -> list[list[tuple[int, ...]]]:
    """The rows of a PNG of 8 bits a channel, as colours."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, data, channels, width = 8, b"", 0, 0
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        chunk = png[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, _, depth, colour = struct.unpack(">IIBB", chunk[:10])
            assert depth == 8 and colour in (2, 6)
            channels = 3 if colour == 2 else 4
        elif kind == b"IDAT":
            data += chunk
        at += 12 + length
    raw, stride = zlib.decompress(data), width * channels
    rows: list[list[tuple[int, ...]]] = []
    before = bytearray(stride)
    for begin in range(0, len(raw), stride + 1):
        method, line = raw[begin], bytearray(raw[begin + 1 : begin + 1 + stride])
        for n in range(stride):
            left = line[n - channels] if n >= channels else 0
            up, corner = before[n], before[n - channels] if n >= channels else 0
            guess = [0, left, up, (left + up) // 2, _paeth(left, up, corner)][method]
            line[n] = (line[n] + guess) & 255
        rows.append([tuple(line[n : n + 3]) for n in range(0, stride, channels)])
        before = line
    return rows


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    return min((left, up, corner), key=lambda one: abs(guess - one))


def colours(png: bytes) -> set[tuple[int, ...]]:
    return {colour for row in pixels(png) for colour in row}


def differences(images: set[bytes]) -> str:
    """Where images of one size differ from the first of them, for the message of a failure."""
    first, *others = map(pixels, images)
    found = [
        (x, y)
        for other in others
        for y, (row, its) in enumerate(zip(first, other, strict=True))
        for x, (one, another) in enumerate(zip(row, its, strict=True))
        if one != another
    ]
    columns, rows = zip(*found, strict=True)
    left, right, top, bottom = min(columns), max(columns), min(rows), max(rows)
    return f"{len(found)} pixels differ, x {left} to {right} and y {top} to {bottom}"


# --- What it shows --------------------------------------------------------------------------


def test_a_page_is_shown_with_its_styles_and_images(browser: Browser) -> None:
    files = {
        "": '<link rel=stylesheet href="a.css"><img src="moved.svg"><img src="gone.svg" alt="">',
        "a.css": "@import 'b.css';",
        "b.css": "body { background: #00ff00 }",
        "moved.svg": "->c.svg",
        "c.svg": SQUARE.format(BLUE),
    }
    done, _ = render(browser, files)
    shown = colours(done.image)
    assert {(0, 255, 0), (0, 0, 255)} <= shown
    assert (done.width, done.height, done.cut) == (320, 240, False)
    names = {url.removeprefix(SITE): digest is not None for url, digest in done.asked.items()}
    assert names == {
        "a.css": True,
        "b.css": True,
        "moved.svg": True,
        "c.svg": True,
        "gone.svg": False,
    }
    small = pixels(done.thumbnail)
    assert (len(small[0]), len(small)) == (80, 60) and small[-1][-1] == (0, 255, 0)


def test_images_that_a_page_loads_late_are_there(browser: Browser) -> None:
    html = '<body style="margin:0"><div style="height:5000px"></div><img loading=lazy src="c.svg">'
    done, _ = render(browser, {"": html, "c.svg": SQUARE.format(BLUE)})
    assert done.height > 5000 and pixels(done.image)[5010][10] == (0, 0, 255)


def test_what_a_marquee_moves_is_shown_and_stands_still(browser: Browser) -> None:
    moved = '<marquee bgcolor="#00ff00"><marquee><img src="c.svg"></marquee></marquee>'
    done, _ = render(browser, {"": f"<body style='margin:0'>{moved}", "c.svg": SQUARE.format(BLUE)})
    shown = pixels(done.image)
    assert (shown[10][10], shown[10][300]) == ((0, 0, 255), (0, 255, 0))


def test_what_fades_in_is_shown_and_what_would_fade_out_later(browser: Browser) -> None:
    page = """
        <style>
          @keyframes k { from { opacity: 0 } }
          @keyframes out { to { opacity: 0 } }
          body { margin: 0 }
          img { display: block; animation: k 9s }
          img + img { animation: k 2s 5s both }
          img + img + img { animation: out 1s both paused }
        </style>
        <img src="c.svg"><img src="c.svg"><img src="c.svg">
    """
    done, _ = render(browser, {"": page, "c.svg": SQUARE.format(BLUE)})
    shown = pixels(done.image)
    assert [shown[y][10] for y in (10, 50, 90)] == [(0, 0, 255)] * 3


def test_what_fades_in_or_moves_in_a_frame_or_a_shadow_is_shown(browser: Browser) -> None:
    style = "<style>@keyframes k { from { opacity: 0 } } body, img { margin: 0; display: block }"
    fades = f'{style}</style><img src="{SITE}c.svg" style="animation: k 9s">'
    site = Site(
        {
            "": f"{style} iframe {{ display: block; border: 0; height: 40px }}</style>"
            '<iframe src="fades.html"></iframe><iframe src="https://other.example/"></iframe>'
            f"<div><template shadowrootmode=open>{fades}</template></div>",
            "fades.html": fades,
            "c.svg": SQUARE.format(BLUE),
        }
    )
    site.files["https://other.example/"] = f'{style}</style><marquee><img src="{SITE}c.svg">'
    shown = pixels(browser.render(SITE, site).image)
    assert [shown[y][10] for y in (10, 50, 90)] == [(0, 0, 255)] * 3


def test_the_same_page_gives_the_same_bytes_also_in_another_browser(
    browser: Browser, executable: str
) -> None:
    files = {
        "": "<style>@keyframes k { from { color: red } to { color: blue; left: 99px } }"
        "p { animation: k 1s infinite; position: relative }</style><link rel=stylesheet "
        "href=a.css><h1>Words</h1><p>and more words<p>äöü 漢字 <b>bold</b><marquee>m</marquee>"
        f'<img width=90 height=90 src="{moving_image()}">',
        "a.css": "h1 { transition: all 1s; color: green }",
    }
    found = {render(browser, files)[0].image for _ in range(6)}
    with Browser(browser.bounds, executable) as other:
        assert other.version == browser.version
        found.add(render(other, files)[0].image)
    assert len(found) == 1, differences(found)


def test_a_page_that_was_captured_by_http_is_asked_for_by_http(browser: Browser) -> None:
    url = "http://example.org/"
    asked = []

    def answers(name: str) -> tuple[str, Answer | None]:
        asked.append(name)
        page = b"<body style='background: #0000ff'>"
        return name, Answer(200, {"content-type": "text/html"}, page, "d") if name == url else None

    done = browser.render(url, answers)
    assert asked == [url] and colours(done.image) == {(0, 0, 255)}


def test_an_answer_that_http_does_not_allow_holds_no_page_up(browser: Browser) -> None:
    """A header folded into two lines, one with a NUL, and a status without a phrase."""
    square = SQUARE.format(BLUE).encode()
    found = {
        "": Answer(
            200, {"content-type": "text/html;\n\tcharset=utf-8"}, b"<img src=a><img src=b>", "1"
        ),
        "a": Answer(200, {"content-type": "image/svg+xml;\0 charset=utf-8"}, square, "2"),
        "b": Answer(310, {"location": f"{SITE}a"}, b"", "3"),
    }
    done = browser.render(SITE, lambda url: (url, found[url.removeprefix(SITE)]))
    assert colours(done.image) >= {(0, 0, 255)}
    assert done.asked == {f"{SITE}a": "2", f"{SITE}b": "3"}


def test_scripts_do_not_run_unless_asked_for(browser: Browser, scripted: Browser) -> None:
    files = {
        "": "<body><script>document.body.style.background = '#ff0000'</script><noscript>"
        "<style>body { background: #00ff00 }</style></noscript><script src=a.js></script>",
        "a.js": "",
    }
    done, site = render(browser, files)
    assert (0, 255, 0) in colours(done.image) and site.asked == [SITE]
    done, site = render(scripted, files)
    assert scripted.version != browser.version
    assert (255, 0, 0) in colours(done.image) and site.asked == [SITE, SITE + "a.js"]


@pytest.mark.parametrize("kind", ["", "sandbox=allow-scripts"])
def test_a_frame_of_another_site_has_no_scripts_and_only_the_answers_it_is_given(
    browser: Browser, kind: str
) -> None:
    html = f'<body style="margin:0"><iframe {kind} src="https://other.example/" style="border:0">'
    site = Site({"": html, "c.svg": SQUARE.format(BLUE)})
    site.files["https://other.example/"] = (
        f'<body style="margin:0"><img src="{SITE}c.svg"><script>document.body.remove()</script>'
    )
    done = browser.render(SITE, site)
    assert pixels(done.image)[10][10] == (0, 0, 255)
    assert site.asked == [SITE, "https://other.example/", f"{SITE}c.svg"]


def test_chromium_draws_no_page_of_its_own_beside_one(browser: Browser) -> None:
    """They cost more than the page; if this fails with a new Chromium, see the features off."""
    render(browser, {"": "<p>words"})
    pipe = process_of(browser).pipe
    told = pipe.call("Target.getTargets", until=time.monotonic() + 60, filter=[{}])
    assert {one["type"] for one in told["targetInfos"]} <= {"page", "tab"}


# --- What it may not do ---------------------------------------------------------------------


def test_the_browser_has_no_privileges_no_network_and_a_sandbox(browser: Browser) -> None:
    process = process_of(browser)
    listed = subprocess.run(["ps", "-eo", "pid=,pgid="], capture_output=True, check=True)
    groups = dict(map(int, line.split()) for line in listed.stdout.splitlines())
    statuses = []
    for pid in (pid for pid, group in groups.items() if group == process.pid):
        # One that the browser has started for a moment may have ended since.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            statuses.append(Path(f"/proc/{pid}/status").read_text())
    assert len(statuses) > 2
    filtered = 0
    for status in statuses:
        told = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert "0" not in told["Uid"].split()
        filtered += told["Seccomp"] == "2"
    assert filtered
    if browser.isolated:
        devices = Path(f"/proc/{process.pid}/net/dev").read_text().splitlines()[2:]
        assert [one.split(":")[0].strip() for one in devices] == ["lo"]


@pytest.fixture
def outside() -> Iterator[tuple[int, Callable[[], bool]]]:
    """A listener on this machine: its port, and whether anybody has connected."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)

        def connected() -> bool:
            try:
                listening.accept()[0].close()
            except BlockingIOError:
                return False
            return True

        yield listening.getsockname()[1], connected


OUTWARDS = """
<link rel=preconnect href="http://127.0.0.1:{0}"><link rel=dns-prefetch href="//127.0.0.1:{0}">
<link rel=prefetch href="http://127.0.0.1:{0}/p"><img src="http://127.0.0.1:{0}/i.png">
<iframe src="http://127.0.0.1:{0}/f"></iframe><iframe src="file:///etc/passwd"></iframe>
<form action="http://127.0.0.1:{0}/post" method=post id=f><input name=a></form>
<object data="ftp://127.0.0.1:{0}/"></object><embed src="file:///etc/passwd">
<style>@import "http://127.0.0.1:{0}/c.css"; @font-face {{ font-family: x;
src: url(http://127.0.0.1:{0}/f.woff) }} p {{ font-family: x }}</style><p>words
<script>
for (const one of [
  () => new WebSocket("ws://127.0.0.1:{0}/"),
  () => fetch("http://127.0.0.1:{0}/fetch", {{mode: "no-cors"}}),
  () => navigator.sendBeacon("http://127.0.0.1:{0}/beacon", "x"),
  () => new EventSource("http://127.0.0.1:{0}/events"),
  () => {{ const c = new RTCPeerConnection({{iceServers: [{{urls: "stun:127.0.0.1:{0}"}}]}});
          c.createDataChannel("x"); c.createOffer().then(o => c.setLocalDescription(o)); }},
  () => window.open("http://127.0.0.1:{0}/window"),
  () => new Worker("data:text/javascript,fetch('http://127.0.0.1:{0}/worker')"),
  () => document.getElementById("f").submit(),
]) {{ try {{ one(); }} catch (e) {{}} }}
</script>
"""


def test_no_request_leaves_the_browser(
    scripted: Browser, outside: tuple[int, Callable[[], bool]]
) -> None:
    """With scripts, and to a listener that the machine itself can reach."""
    port, connected = outside
    with socket.create_connection(("127.0.0.1", port)):
        assert connected()
    done, site = render(scripted, {"": OUTWARDS.format(port)})
    # A second page: whatever the first one still had in mind has had its time.
    render(scripted, {"": "<p>later"})
    assert not connected()
    asked = {url.removeprefix(f"http://127.0.0.1:{port}/") for url in site.asked}
    assert {"i.png", "f", "c.css"} <= asked
    assert not [url for url in site.asked if url.startswith(("file:", "ftp:", "ws:"))]
    assert all(digest is None for digest in done.asked.values())


def test_a_page_that_goes_elsewhere_is_shown_itself(browser: Browser) -> None:
    html = '<meta http-equiv=refresh content="0;url=other"><body bgcolor="#00ff00">'
    done, site = render(browser, {"": html, "other": '<body bgcolor="#ff0000">'})
    assert colours(done.image) == {(0, 255, 0)} and SITE + "other" not in done.asked
    assert site.asked[0] == SITE and SITE + "other" not in site.asked


def test_a_page_sees_no_cookie_and_no_storage_of_another(scripted: Browser) -> None:
    html = (
        "<body><script>document.body.style.background = document.cookie + (localStorage.a || '')"
        " ? '#ff0000' : '#00ff00'; document.cookie = 'a=b; max-age=9999'; localStorage.a = 1"
        "</script>"
    )
    for _ in range(2):
        assert (0, 255, 0) in colours(render(scripted, {"": html})[0].image)


def test_a_page_of_a_million_pixels_is_cut_off(browser: Browser) -> None:
    done, _ = render(browser, {"": '<div style="height:1000000px">words</div>'})
    assert done.cut and done.height == browser.bounds.max_height
    assert len(done.image) < 1_000_000


def test_requests_beyond_the_limit_are_refused(executable: str) -> None:
    images = "".join(f"<img src={n}.svg>" for n in range(30))
    files = {"": images} | {f"{n}.svg": SQUARE.format(BLUE) for n in range(30)}
    with Browser(Bounds(seconds=120, requests=11, **FEW), executable) as few:
        done, site = render(few, files)
    assert len(site.asked) == 11 and len(done.asked) == 10 and done.refused == 20


ENDLESS = "<p>words<script>for (;;) {}</script>"
HUNGRY = (
    "<p>words<script>const a = []; for (;;) a.push(new Uint8Array(1 << 22).fill(a.length))</script>"
)


@pytest.mark.parametrize(
    ("html", "bounds", "reason"),
    [
        (ENDLESS, {"seconds": 8}, "took longer than 8 s"),
        (HUNGRY, {"seconds": 300, "memory": 700 << 20}, "of memory|crashed its tab"),
    ],
)
def test_a_hostile_page_harms_only_itself(
    executable: str, html: str, bounds: dict[str, Any], reason: str
) -> None:
    """It ends with the reason, and the next page is rendered by another process."""
    with Browser(Bounds(scripts=True, **bounds, **FEW), executable) as hostile:
        process = process_of(hostile)
        with pytest.raises(RenderError, match=reason):
            render(hostile, {"": html})
        assert not Path(f"/proc/{process.pid}").exists()
        hostile.bounds = Bounds(seconds=120, scripts=True, **FEW)
        done, _ = render(hostile, {"": '<body bgcolor="#00ff00">'})
        assert (0, 255, 0) in colours(done.image)


def test_a_dialog_holds_nobody_up(scripted: Browser) -> None:
    html = "<script>alert('a'); confirm('b'); prompt('c')</script><body bgcolor='#00ff00'>"
    assert (0, 255, 0) in colours(render(scripted, {"": html})[0].image)


def test_a_browser_that_is_killed_is_reported_and_replaced(
    browser: Browser, executable: str
) -> None:
    with Browser(browser.bounds, executable) as other:
        os.killpg(process_of(other).pid, signal.SIGKILL)
        with pytest.raises(RenderError, match="The browser ended"):
            render(other, {"": "<p>"})
        assert render(other, {"": "<p>"})[0].image


def test_no_file_of_a_browser_is_left(
    executable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    with Browser(Bounds(seconds=120, **FEW), executable) as other:
        render(other, {"": "<p>"})
        folder = process_of(other)._folder
        assert folder.exists()
    assert not folder.exists()


def test_what_a_killed_renderer_left_is_removed_by_the_next_one(
    executable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    left, just_made = (Path(tempfile.mkdtemp(prefix="webindex-renderer-")) for _ in range(2))
    (left / "profile").mkdir()
    with Browser(Bounds(seconds=120, **FEW), executable) as first:
        process = process_of(first)
        for folder in (left, process._folder):
            os.utime(folder, (0, 0))
        with Browser(Bounds(seconds=120, **FEW), executable) as second:
            assert process_of(second) and not left.exists() and just_made.exists()
        assert process._folder.exists()
        assert render(first, {"": "<p>"})[0].image
    just_made.rmdir()


def test_no_browser_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHROMIUM", str(tmp_path / "none"))
    with pytest.raises(NoBrowserError, match=r"There is no browser .* work without\.$"):
        find_browser()
    monkeypatch.delenv("CHROMIUM")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoBrowserError, match="Debian: apt-get"):
        find_browser()


@pytest.mark.parametrize("program", ["false", "none"])
def test_a_program_that_is_no_browser_is_one_sentence_and_leaves_nothing(
    program: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = os.listdir("/proc/self/fd")
    with (
        Browser(executable=program) as browser,
        pytest.raises(NoBrowserError, match=r"^The browser does not start.*\.$"),
    ):
        _ = browser.version
    assert os.listdir("/proc/self/fd") == before and not list(tmp_path.iterdir())
