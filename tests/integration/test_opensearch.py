"""The search index on a real OpenSearch: all that is promised of one in a folder, and failures."""

from __future__ import annotations

import base64
import http.client
import inspect
import itertools
import json
import random
import re
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import httpx
import pytest
from borrowed import borrow
from click.testing import CliRunner
from needs import lack, need
from server_process import ServerProcess
from stores import at_work

import percola
from percola import Repository, Worker
from tests.webindex import test_serving, test_serving_queries, test_site_serving
from tests.webindex.conftest import worked_off
from tests.webindex.from_scratch import gone, sample
from tests.webindex.site_client import Page, article, made
from webindex import tables
from webindex.cli.main import cli
from webindex.devserver import OpenSearchServer, ServerError
from webindex.load.transaction import load_captures
from webindex.observers.export import export_to
from webindex.sample import CHANGED_URL
from webindex.serving import (
    IndexUnavailableError,
    NoIndexError,
    NotAnIndexError,
    OpenSearchIndex,
    RefusedDocumentsError,
    ServingDocument,
    ServingError,
    ServingIndex,
)
from webindex.workers.processes import build_observers, open_index, open_repository

__all__ = ["worked_off"]

pytestmark = pytest.mark.long

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSearchServer]:
    need("opensearch")
    try:
        with OpenSearchServer(tmp_path_factory.mktemp("opensearch")) as started:
            yield started
    except ServerError as error:
        lack("opensearch", str(error))


@pytest.fixture
def url(server: OpenSearchServer) -> str:
    """The URL of an index of this test alone, which does not exist."""
    return f"{server.address}/test-{next(_numbers)}?shards=1&replicas=0"


def _open(url: str) -> Iterator[ServingIndex]:
    with OpenSearchIndex(url) as opened:
        yield opened
        opened._client.indices.delete(index=opened._name, ignore_unavailable=True)


@pytest.fixture
def index(url: str) -> Iterator[ServingIndex]:
    yield from _open(url)


# --- What every index promises ----------------------------------------------------------------


def _of_any_index(module: ModuleType) -> list[str]:
    """The tests of an index, whatever it is kept in: not those that look into its folder."""
    kinds = {"index", "site", "words", "fruit"}
    # OpenSearch does not list words.
    lacks = {"test_a_query_is_completed_to_names_of_pages_and_to_words_beside_those_typed"}
    return [
        name
        for name, one in vars(module).items()
        if name.startswith("test_")
        and name not in lacks
        and kinds & (asked := {*inspect.signature(one).parameters})
        and "tmp_path" not in asked
    ]


def _on_opensearch(module: ModuleType) -> type:
    def index(self: object, url: str) -> Iterator[ServingIndex]:
        yield from _open(url)

    return borrow(module, _of_any_index(module), index=pytest.fixture(index))


Test_serving = _on_opensearch(test_serving)
Test_queries = _on_opensearch(test_serving_queries)
Test_site = _on_opensearch(test_site_serving)


# --- What only an index on servers can do wrong -----------------------------------------------


def put(cluster: str, epoch: int = 1, text: str = "word") -> ServingDocument:
    url = f"https://example.org/{cluster}"
    return ServingDocument(cluster, epoch, url, "", text, "en", "example.org", (), (), 0)


def test_a_deletion_is_remembered_longer_than_opensearch_remembers_its_own(
    index: OpenSearchIndex,
) -> None:
    index.apply([put("a", 5)], [("b", 5)])
    index._client.indices.put_settings(index=index._name, body={"index.gc_deletes": "0s"})
    index.apply([], [("a", 6)])
    for _ in range(3):
        index._client.indices.flush(index=index._name, force=True)
        index._client.indices.refresh(index=index._name)
    assert index.apply([put("a", 5), put("b", 4)]) == 0
    assert (index.count(), list(index.clusters())) == (0, [])


def test_many_bytes_are_sent_in_several_requests(
    index: OpenSearchIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webindex.serving.opensearch.index._CHUNK_BYTES", 3_000)
    batch = [put(f"c{n}", text="word " * n) for n in range(200)]
    assert index.apply(batch, [("gone", 1)]) == 201
    assert index.count() == index.search("word").total + 1 == 200
    assert sorted(one.cluster for one in index.get_many(f"c{n}" for n in range(300))) == sorted(
        one.cluster for one in batch
    )


def test_an_index_that_was_deleted_is_not_made_by_a_batch_but_by_who_opens_it(
    url: str, index: OpenSearchIndex
) -> None:
    index._client.indices.delete(index=index._name)
    with pytest.raises(
        IndexUnavailableError, match="does not exist any more; 'webindex reindex' creates it"
    ):
        index.apply([put("a")])
    with pytest.raises(NoIndexError, match="There is no index"):
        OpenSearchIndex(url, create=False)
    with OpenSearchIndex(url) as again:
        assert again.apply([put("a")]) == index.count() == 1


def test_an_index_of_another_program_or_version_is_left_alone(
    server: OpenSearchServer, url: str, index: OpenSearchIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index._client.indices.create(index="others")
    monkeypatch.setattr("webindex.serving.opensearch.index.FORMAT", 0)
    for there in (f"{server.address}/others", url):
        with pytest.raises(NotAnIndexError, match="made by another program or version") as caught:
            OpenSearchIndex(there)
        assert "'webindex reindex'" in str(caught.value)
    assert "others-write" not in index._client.indices.get(index="others")["others"]["aliases"]
    for one in ("others", index._name):
        index._client.indices.put_alias(index=one, name="both")
    with pytest.raises(NotAnIndexError, match="an alias of several"):
        OpenSearchIndex(f"{server.address}/both")


@pytest.mark.parametrize(
    ("status", "kind", "body", "says"),
    [
        (502, "text/html", "<h1>Bad Gateway</h1>", "takes no requests now: status 502, without"),
        (500, "text/html", "<h1>Oops</h1>", "says: status 500, without a reason."),
        (200, "text/plain", "It works!", "another program answers there"),
    ],
)
def test_what_another_program_answers_is_told_as_it_is(
    status: int, kind: str, body: str, says: str
) -> None:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as other:
        serving = threading.Thread(target=other.serve_forever)
        serving.start()
        try:
            with pytest.raises(ServingError, match=re.escape(says)):
                OpenSearchIndex(f"http://127.0.0.1:{other.server_port}/pages")
        finally:
            other.shutdown()
            serving.join()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("ftp://host/name", "does not name an index"),
        ("http://host", "does not name an index"),
        ("http://host/Name", "small letters"),
        ("http://host:port/name", "no HOST or HOST:PORT"),
        ("http://ho st/name", "no HOST or HOST:PORT"),
        ("http://host/name?shard=2", "shard=2 is no option"),
        ("http://host/name?exporters=0", "exporters=0 is no option"),
        ("https://me:secret@host/name?ca=/nowhere.pem", "/nowhere.pem"),
    ],
)
def test_a_url_that_names_no_index_is_refused_without_quoting_the_password(
    wrong: str, says: str
) -> None:
    with pytest.raises(NotAnIndexError, match=re.escape(says)) as caught:
        OpenSearchIndex(wrong)
    assert "secret" not in str(caught.value)


def test_the_url_says_how_many_workers_export_at_a_time(url: str) -> None:
    for options, exporters in (("", 8), ("&exporters=32", 32)):
        with OpenSearchIndex(url + options) as index:
            assert export_to(index).dedicated == exporters


class Proxy(ThreadingHTTPServer):
    """Before the server: with TLS and a login, as a cluster of a team has them; and with limits.

    Attributes:
        most_bytes: a longer request is refused, with status 413.
        busy: so many requests are refused from now on, with status 429.
    """

    def __init__(self, server: OpenSearchServer, certificate: Path) -> None:
        proxy = self
        target = server.address.removeprefix("http://")
        self.most_bytes, self.busy = 1 << 30, 0
        login = "Basic " + base64.b64encode(b"me:secret").decode()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.headers.get("Authorization") != login:
                    self.answer(401, b"Unauthorized")
                elif len(body) > proxy.most_bytes:
                    self.answer(413, b"Too large")
                elif proxy.busy:
                    proxy.busy -= 1
                    self.answer(429, b'{"error": {"type": "busy", "reason": "too many requests"}}')
                else:
                    to = http.client.HTTPConnection(target)
                    headers = dict(self.headers)
                    to.request(self.command, self.path, body, headers)
                    found = to.getresponse()
                    self.answer(found.status, found.read(), found.headers.get("Content-Encoding"))
                    to.close()

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = forward  # noqa: N815

            def answer(self, status: int, body: bytes, encoding: str | None = None) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                if encoding:
                    self.send_header("Content-Encoding", encoding)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_name("key.pem"))
        self.socket = context.wrap_socket(self.socket, server_side=True)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that does not trust the certificate hangs up."""


def test_over_tls_with_a_login_and_limits(
    server: OpenSearchServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run([*make.split(), *names, *files], cwd=tmp_path, check=True, capture_output=True)
    with Proxy(server, tmp_path / "cert.pem") as proxy:
        serving = threading.Thread(target=proxy.serve_forever)
        serving.start()
        try:
            host = f"localhost:{proxy.server_port}"
            trusted = f"?shards=1&replicas=0&ca={tmp_path / 'cert.pem'}"
            for url, says in {
                f"https://me:secret@{host}/tls": "is not trusted",
                f"https://{host}/tls{trusted}": "WEBINDEX_SEARCH_PASSWORD",
                f"https://me:wrong@{host}/tls{trusted}": "WEBINDEX_SEARCH_PASSWORD",
                f"http://me:secret@{host}/tls": "cannot be reached",
            }.items():
                with pytest.raises(IndexUnavailableError, match=says) as caught:
                    OpenSearchIndex(url)
                assert "secret" not in str(caught.value) and "wrong" not in str(caught.value)
            monkeypatch.setenv("WEBINDEX_SEARCH_USER", "me")
            monkeypatch.setenv("WEBINDEX_SEARCH_PASSWORD", "secret")
            with OpenSearchIndex(f"https://{host}/tls{trusted}") as index:
                proxy.busy = 1
                with pytest.raises(IndexUnavailableError, match="too many requests"):
                    index.apply([put("a")])
                # Requests are compressed.
                proxy.most_bytes = 2_000
                noise = random.Random(1).randbytes
                batch = [put(f"c{n}", text=noise(200).hex()) for n in range(10)]
                long = put("long", text=noise(4_000).hex())
                with pytest.raises(RefusedDocumentsError, match="larger than a request") as refused:
                    index.apply([*batch, long])
                assert (refused.value.why.keys(), index.count()) == ({"long"}, 10)
        finally:
            proxy.shutdown()
            serving.join()


def test_the_command_starts_the_server_of_a_folder_and_ends_it(
    server: OpenSearchServer, tmp_path: Path
) -> None:
    def run(word: str, folder: Path = server.folder, *options: str) -> tuple[int, str]:
        said = CliRunner().invoke(cli, ["dev-opensearch", word, "--folder", str(folder), *options])
        return said.exit_code, said.output

    assert run("status") == (0, f"{server.address}  pid {server.pid()}\n")
    before = server.pid()
    status, told = run("up", server.folder, "--port", "64999")
    assert status == 1 and "listens on port" in told and server.pid() == before
    assert run("down")[0] == 0 and server.pid() is None
    assert run("status")[0] == 1
    assert server.address in run("up")[1]
    assert server.pid() is not None and run("status")[0] == 0
    assert "There is no OpenSearch in" in run("down", tmp_path)[1]
    (tmp_path / "file").touch()
    status, told = run("up", tmp_path / "file" / "folder")
    assert status == 1 and "OpenSearch cannot be started in" in told


# --- Exporters --------------------------------------------------------------------------------

DOCUMENTS: Final = 4_000

EXPORTER = """
import sys
from pathlib import Path
import percola
from percola import Worker, WorkerOptions
from webindex import tables
from webindex.observers import export
from webindex.serving import OpenSearchIndex

export.EXPORT_BATCH = 20
options = WorkerOptions(threads=1, retention=None, rescan=0.1)
with percola.open(sys.argv[1], schema=tables.SCHEMA) as repo, OpenSearchIndex(sys.argv[2]) as index:
    worker = Worker(repo, [export.export_to(index)], options)
    with worker.ending_with_input():
        print("ready", flush=True)
        worker.run()
"""


def shown(cluster: str, epoch: int) -> dict[str, Any]:
    url = f"https://example.org/{cluster}"
    texts = {"url": url, "title": cluster, "text": "word", "language": "en"}
    lists: dict[str, Any] = {"anchors": [], "duplicates": [], "aliases": []}
    return {"epoch": epoch, **texts, **lists, "inlinks": 0, "rank": 0.0}


def fill(repo: Repository, clusters: Iterable[str]) -> None:
    """Enter documents in the outbox, a few in each transaction."""
    waiting = iter(clusters)
    while some := list(itertools.islice(waiting, 5)):
        with repo.transaction() as t:
            for cluster in some:
                t.set(tables.document, cluster, shown(cluster, t.start_ts))
                tables.exports.enter(t, cluster, [])


def stored(repo: Repository) -> list[tuple[str, int]]:
    with repo.snapshot() as now:
        rows = now.scan(tables.clusters, columns=[tables.document])
        return sorted((row.key, row[tables.document]["epoch"]) for row in rows)


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with percola.open(tmp_path / "repo", schema=tables.SCHEMA, durability="relaxed") as opened:
        yield opened


@contextmanager
def exporter(repo: Repository, url: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", EXPORTER, repo.address, url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_nothing_is_lost_or_doubled_when_exporters_and_the_server_are_killed(
    server: OpenSearchServer,
    url: str,
    index: OpenSearchIndex,
    repo: Repository,
    wait_until: Callable[..., object],
) -> None:
    """Two exporters side by side; each kill comes while there is work, and is seen to hit."""
    fill(repo, (f"c{n:05}" for n in range(DOCUMENTS)))

    def left() -> int:
        with repo.snapshot() as now:
            return sum(1 for _ in now.scan(tables.outbox, columns=[tables.exports.entry]))

    def falls_below(number: int) -> None:
        wait_until(lambda: left() < number)
        assert left() > 0

    with exporter(repo, url) as first, exporter(repo, url) as second:
        falls_below(DOCUMENTS - 20)
        first.kill()
        falls_below(DOCUMENTS - 300)
        with exporter(repo, url) as third:
            second.kill()
            falls_below(DOCUMENTS - 600)
            server.kill()
            before = left()
            with pytest.raises(IndexUnavailableError, match="cannot be reached"):
                index.apply([put("a")])
            # A document that changes meanwhile, one that goes.
            fill(repo, ["c00000"])
            with repo.transaction() as t:
                t.delete(tables.document, "c00001")
                tables.exports.enter(t, "c00001", [])
            server.start()
            falls_below(before - 100)
            third.kill()
    with exporter(repo, url):
        wait_until(lambda: repo.is_idle() and left() == 0)
    assert repo.dead_lettered() == 0
    assert sorted(index.clusters()) == stored(repo)
    assert index.count() == index.search("word").total == DOCUMENTS - 1


def test_an_index_that_takes_no_writes_is_waited_for(
    index: OpenSearchIndex,
    repo: Repository,
    caplog: pytest.LogCaptureFixture,
    wait_until: Callable[..., object],
) -> None:
    def block(blocked: bool) -> None:
        body = {"index.blocks.read_only_allow_delete": blocked or None}
        index._client.indices.put_settings(index=index._name, body=body)

    block(True)
    fill(repo, ["a", "b"])
    worker = Worker(repo, [export_to(index)], threads=1, retention=None)
    with at_work(worker):
        wait_until(lambda: "make room" in caplog.text)
        assert index.count() == repo.dead_lettered() == 0
        block(False)
        worker.run_until_idle()
    assert sorted(index.clusters()) == stored(repo)


# --- The whole index --------------------------------------------------------------------------


def test_an_index_is_moved_while_a_worker_runs_and_verify_finds_nothing(
    url: str, tmp_path: Path, worked_off: Path, java_home: Path
) -> None:
    folder = tmp_path / "moved"
    shutil.copytree(worked_off, folder)

    def webindex(*words: str) -> Any:
        command = [sys.executable, "-m", "webindex", words[0], "--repo", str(folder), "--json"]
        done = subprocess.run([*command, *words[1:]], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def hits() -> list[tuple[str, int]]:
        found = webindex("search", "--limit", "1000", "server configuration")["hits"]
        return sorted((one["url"], one["inlinks"]) for one in found)

    before = hits()
    assert len(before) > 20
    with open_repository(str(folder)) as repo, open_index(repo) as opened:
        worker = Worker(repo, build_observers(opened), threads=1)
        with at_work(worker):
            assert webindex("reindex", "--index", url) == {"documents": 183, "index": url}
            [changed] = [one for one in sample() if one.url == CHANGED_URL]
            load_captures(repo, [gone(changed)], "recrawl")
            worker.run_until_idle()
        assert "test" in opened.place and opened.count() == 182
        assert CHANGED_URL not in {hit.url for hit in opened.search("the", limit=1000).hits}
    after = hits()
    assert {url for url, _ in before} - {url for url, _ in after} <= {CHANGED_URL}
    verdict = webindex("verify")
    assert verdict["holds"], verdict
    # And back, into the folder that it came from, which still has what was there then.
    assert webindex("reindex", "--index", str(folder / "serving"))["documents"] == 182
    webindex("work", "--processes", "1", "--until-idle")
    assert hits() == after


# --- Several sites ----------------------------------------------------------------------------


class Site(ServerProcess):
    """A `webindex serve`."""

    def __init__(self, folder: Path, said: Path) -> None:
        self._folder, self._said = folder, said
        super().__init__()

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "webindex", "serve", "--repo", str(self._folder)]
        with self._said.open("wb") as output:
            return subprocess.Popen(
                [*command, "--port", str(port), "--name", "search.example"],
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _printed(self) -> str:
        return self._said.read_text()


class Balancer:
    """Sends each request to another site than the last one; one that takes none is passed over."""

    def __init__(self, sites: list[Site]) -> None:
        self._sites = sites
        self._turns = itertools.cycle(sites)
        self.answered = dict.fromkeys(sites, 0)

    def get(self, target: str) -> Page:
        for site in itertools.islice(self._turns, len(self._sites)):
            try:
                answer = httpx.get(
                    f"http://{site.address}{target}",
                    headers={"Host": "search.example"},
                    timeout=300,
                    trust_env=False,
                )
            except httpx.ConnectError:
                continue
            assert (answer.status_code, "set-cookie" in answer.headers) == (200, False)
            self.answered[site] += 1
            return Page(re.sub(r"[0-9.]+ (?:ms|s|min)\b", "TIME", answer.text))
        raise AssertionError("no site answers")

    def browse(self) -> list[str]:
        """The URLs of the first hits of a search, from three pages of results, by their links."""
        found, target = [], "/?q=server"
        for _ in range(3):
            page = self.get(target)
            found += [one.attributes["href"] or "" for one in page.css(".hit a.story")]
            target = page.link(".paging [aria-current] ~ a")
        return found


@pytest.mark.parametrize("place", ["folder", "opensearch"])
def test_several_sites_behind_a_balancer_answer_as_one_also_after_one_is_killed(
    place: str, request: pytest.FixtureRequest, tmp_path: Path, worked_off: Path
) -> None:
    folder = tmp_path / "shared"
    shutil.copytree(worked_off, folder)
    if place == "opensearch":
        words = ["reindex", "--repo", str(folder), "--index", request.getfixturevalue("url")]
        done = CliRunner().invoke(cli, words)
        assert done.exit_code == 0, done.output
    with (
        Site(folder, tmp_path / "one") as one,
        Site(folder, tmp_path / "two") as two,
        open_repository(str(folder)) as repo,
        open_index(repo) as index,
    ):
        balancer = Balancer([one, two])
        hits = balancer.browse()
        assert balancer.answered == {one: 2, two: 1}
        assert len({*hits}) == len(hits) > 20
        assert balancer.browse() == hits, "each page of results by the other site"
        for target in ("/?q=server", "/?q=server&sort=date", hits[0], "/complete.json?q=serv"):
            assert balancer.get(target).html == balancer.get(target).html
        # What a worker exports, both show at once.
        page = made("https://example.org/fish", article("Coelacanth"))
        load_captures(repo, [page], "recrawl")
        Worker(repo, build_observers(index), threads=1).run_until_idle()
        for _ in range(2):
            assert len(balancer.get("/?q=coelacanth").css(".hit")) == 1
        hits = balancer.browse()
        one.kill()
        answered = balancer.answered[two]
        assert balancer.browse() == hits
        assert balancer.answered[two] == answered + 3
        one.start()
        before = balancer.answered[one]
        assert [balancer.browse(), balancer.browse()] == [hits, hits]
        assert balancer.answered[one] == before + 3
