"""A repository on servers, as a user has it: a store, two oracles, ZooKeeper, commands.

The store is Bigtable's emulator, the oracles are processes of `percola oracle`, and everything
else knows of them by the repository's address alone.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import pytest
from children import Child, hear, say
from commands import run
from emulator import Emulator
from oracle_clients import await_progress, run_client
from oracle_schedules import broken_promises
from servers import Oracle, Relay
from zookeeper import ZooKeeper

import percola
from percola import (
    ConflictingOptionsError,
    NotARepositoryError,
    Repository,
    StoreError,
    Table,
    Transaction,
    UsageError,
    Worker,
    observer,
)
from percola.connect.address import network_address, portable
from percola.connect.cluster import open_store
from percola.oracle.record import newest

WaitUntil = Callable[..., Any]

ACCOUNTS: Final = 6
EACH: Final = 100

accounts = Table("accounts")
balance = accounts.column("balance", int)
words = Table("words")
word = words.column("word", str, observed=True)
length = words.column("length", int)


@observer(word)
def measure(t: Transaction, row: str) -> None:
    """How long the word is."""
    t.set(length, row, len(t.get(word, row) or ""))


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with pytest.MonkeyPatch.context() as patch, Emulator() as running:
        patch.setenv("BIGTABLE_EMULATOR_HOST", running.address)
        yield running


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory, java_home: Path) -> Iterator[ZooKeeper]:
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper"), java_home) as running:
        yield running


@pytest.fixture
def store(emulator: Emulator, request: pytest.FixtureRequest) -> str:
    """The address of an instance that no other test has, without anything that runs."""
    name = "i" + "".join(filter(str.isalnum, request.node.name))[-25:].lower()
    return f"bigtable://project/{name}"


def start(stack: ExitStack, store: str, listen: str = "127.0.0.1:0", *options: str) -> Oracle:
    """Start an oracle that ends with the test."""
    return stack.enter_context(Oracle(store, listen, *options))


def address_of(store: str, zookeeper: ZooKeeper, *oracles: Oracle) -> str:
    listed = ",".join(one.address for one in oracles)
    return f"{store}?oracle={listed}&zookeeper={zookeeper.address}"


# --- What works -------------------------------------------------------------------------


def test_commands_and_programs_share_a_repository_by_its_address(
    stack: ExitStack, store: str, zookeeper: ZooKeeper
) -> None:
    address = address_of(store, zookeeper, start(stack, store), start(stack, store))
    made = run(
        "--repo",
        address,
        "init",
        "--column",
        "words.word:str:observed",
        "--column",
        "words.length:int",
    )
    assert (made.code, made.err) == (0, "")
    assert made.out == f"Created a repository in {address}, with the table words.\n"
    assert run("--repo", address, "set", "a", "word", "oracle").code == 0
    with percola.open(address, [words], create=False) as repo:
        assert repo.snapshot().get(word, "a") == "oracle"
        Worker(repo, [measure], threads=1).run_until_idle()
    assert run("--repo", address, "get", "a", "length").out == "6\n"
    status = run("--repo", address, "--json", "status")
    assert status.code == 0
    assert [table["name"] for table in status.json["tables"]] == ["words"]
    checked = run("--repo", address, "check")
    assert checked.code == 0, checked.out + checked.err


def transfer(repo: Repository, rng: random.Random) -> None:
    def move(t: Transaction) -> None:
        one, other = rng.sample(range(ACCOUNTS), 2)
        amount = rng.randrange(1, 10)
        t.set(balance, f"{one}", (t.get(balance, f"{one}") or 0) - amount)
        t.set(balance, f"{other}", (t.get(balance, f"{other}") or 0) + amount)

    repo.run(move, attempts=100)


def transfers(pipe: Any, address: str, seed: int) -> int:
    """In a process of its own: transfers until told to end; how many."""
    rng = random.Random(seed)
    done = 0
    with percola.open(address, [accounts], create=False) as repo:
        transfer(repo, rng)
        say(pipe, "begun")
        ended = threading.Event()
        threading.Thread(target=lambda: (hear(pipe), ended.set()), daemon=True).start()
        # Who goes on while leases run out leaves the cores to whom that is a test of.
        while not ended.wait(0.02):
            transfer(repo, rng)
            done += 1
            if done % 5 == 0:
                assert sum_of(repo) == ACCOUNTS * EACH
    return done


def sum_of(repo: Repository) -> int:
    now = repo.snapshot()
    return sum(now.get(balance, f"{one}") or 0 for one in range(ACCOUNTS))


@pytest.mark.long
def test_money_is_neither_made_nor_lost_while_oracles_and_programs_are_killed(
    stack: ExitStack, store: str, zookeeper: ZooKeeper, wait_until: WaitUntil
) -> None:
    first, second = start(stack, store), start(stack, store)
    address = address_of(store, zookeeper, first, second)
    with percola.open(address, [accounts]) as repo:
        repo.run(lambda t: [t.set(balance, f"{one}", EACH) for one in range(ACCOUNTS)])
        children = [stack.enter_context(Child(transfers, address, seed)) for seed in range(3)]
        for child in children:
            assert child.hear() == "begun"
        for killed in (first, second):
            before = repo.snapshot().start_ts
            killed.end()
            again = start(stack, store, killed.address)
            assert again.address == killed.address
            # Nobody knows which of the two handed out: whichever it was, they go up and on.
            after = wait_until(lambda: repo.context.oracle.timestamp(), seconds=60)
            assert after > before
            transfer(repo, random.Random(after))
            assert sum_of(repo) == ACCOUNTS * EACH
        children[0].kill()
        for child in children[1:]:
            child.tell("end")
            assert child.hear() > 0
        # Whatever the killed one has left is settled by whoever meets it.
        assert sum_of(repo) == ACCOUNTS * EACH
        # Liveness tokens: of the killed program's none is left once its session has ended.
        wait_until(lambda: len(repo.context.coordination.processes()) == 1, seconds=60)


def test_a_process_opens_a_repository_once_however_often_it_is_opened(
    stack: ExitStack, store: str, zookeeper: ZooKeeper
) -> None:
    address = address_of(store, zookeeper, start(stack, store))
    with percola.open(address, [accounts]) as one:
        with percola.open(address, [accounts]) as other:
            assert one.context.coordination.token == other.context.coordination.token
            assert len(one.context.coordination.processes()) == 1
        one.run(lambda t: t.set(balance, "a", 1))
        assert one.snapshot().get(balance, "a") == 1


def test_an_oracle_steps_down_when_it_is_told_to_end_and_says_what_it_did(
    stack: ExitStack, store: str, zookeeper: ZooKeeper
) -> None:
    only = start(stack, store)
    with percola.open(address_of(store, zookeeper, only), [accounts]) as repo:
        drawn = [repo.context.oracle.timestamp() for _ in range(5)]
    assert drawn == sorted(set(drawn))
    told = json.loads(only.end(signal.SIGTERM))
    assert told["event"] == "stopped" and told["timestamps"] >= 5
    assert only.process.returncode == 0
    place = network_address(store)
    assert place is not None
    with closing(open_store(place)) as opened:
        record = newest(opened)
    assert record is not None and record.holder == "", "another one may take over at once"


def test_a_token_in_a_file_is_asked_for_and_shown(
    stack: ExitStack,
    store: str,
    zookeeper: ZooKeeper,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = tmp_path / "token"
    secret.write_text("sesame\n")
    only = start(stack, store, "127.0.0.1:0", "--token-file", str(secret))
    address = address_of(store, zookeeper, only)
    assert run("--repo", address, "init", "--column", "a.b:str").code == 0
    refused = run("--repo", address, "set", "row", "b", "x")
    assert refused.code == 1 and "refuses this client" in refused.err
    monkeypatch.setenv("PERCOLA_ORACLE_TOKEN_FILE", str(secret))
    assert run("--repo", address, "set", "row", "b", "x").code == 0


@pytest.mark.long
def test_a_repository_moves_from_a_folder_to_servers_and_back(
    stack: ExitStack, store: str, zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    first, last = tmp_path / "first", tmp_path / "last"
    with percola.open(first, [words]) as repo:
        for number in range(300):
            repo.run(lambda t, n=number: t.set(word, f"row {n:03}", "x" * n))  # type: ignore[misc]
        Worker(repo, [measure], threads=1).run_until_idle()
        repo.run(lambda t: t.set(word, "row 000", "pending"))
        drawn = repo.snapshot().start_ts
    address = address_of(store, zookeeper, start(stack, store))
    answer = run("--repo", first, "copy", address)
    assert (answer.code, answer.err) == (0, "")
    with percola.open(address, [words], create=False) as moved:
        assert moved.pending() == {"words.word": 1}
        assert moved.snapshot().start_ts >= drawn
        Worker(moved, [measure], threads=1).run_until_idle()
        assert moved.snapshot().get(length, "row 000") == len("pending")
        moved.run(lambda t: t.set(word, "new", "row"))
    assert run("--repo", address, "copy", last, "--durability", "relaxed").code == 0
    with percola.open(last, [words], create=False) as back:
        assert back.pending() == {"words.word": 1}
        found = {row.key: row[word] for row in back.snapshot().scan(words, columns=[word])}
    assert found == {f"row {n:03}": "x" * n for n in range(1, 300)} | {
        "row 000": "pending",
        "new": "row",
    }
    assert run("--repo", last, "check").code == 0


# --- A relay ----------------------------------------------------------------------------


@pytest.mark.long
def test_the_processes_of_a_machine_draw_by_a_relay_and_go_on_when_it_is_killed(
    stack: ExitStack,
    store: str,
    zookeeper: ZooKeeper,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only = start(stack, store)
    address = address_of(store, zookeeper, only)
    relay = stack.enter_context(Relay(address))
    monkeypatch.setenv("PERCOLA_ORACLE_RELAY", relay.address)
    assert run("--repo", address, "init", "--column", "words.word:str").code == 0
    assert run("--repo", address, "set", "a", "word", "relayed").code == 0
    said = json.loads(relay.end(signal.SIGTERM))
    assert said["event"] == "stopped" and said["timestamps"] >= 2
    # It is not there now.
    assert run("--repo", address, "get", "a", "word").out == "relayed\n"
    assert run("--repo", address, "set", "a", "word", "direct").code == 0
    with percola.open(address, [words], create=False) as repo:
        assert repo.snapshot().get(word, "a") == "direct"
    monkeypatch.setenv("PERCOLA_ORACLE_RELAY", "localhost")
    answer = run("--repo", address, "get", "a", "word")
    assert answer.code == 1 and "PERCOLA_ORACLE_RELAY is 'localhost'" in answer.err
    assert "Traceback" not in answer.err


def test_p1_holds_among_processes_with_a_relay_that_is_killed_and_without(
    stack: ExitStack, store: str
) -> None:
    only = start(stack, store)
    relay = stack.enter_context(Relay(f"{store}?oracle={only.address}"))
    clients = [
        stack.enter_context(Child(run_client, [only.address], 2, relay=by))
        for by in (relay.address, relay.address, "")
    ]

    await_progress(clients, 100)
    relay.end(signal.SIGKILL)
    await_progress(clients, 100)
    stack.enter_context(Relay(f"{store}?oracle={only.address}", relay.address))
    await_progress(clients, 100)
    for client in clients:
        client.tell("stop")
    events = [event for client in clients for event in client.hear()]
    assert len(events) > 900
    assert not broken_promises(events)


# --- What is refused --------------------------------------------------------------------


def test_an_address_that_lacks_a_part_says_which(
    stack: ExitStack, store: str, zookeeper: ZooKeeper
) -> None:
    only = start(stack, store)
    with pytest.raises(UsageError, match=r"does not say where its oracle is\. Start one with"):
        percola.open(f"{store}?zookeeper={zookeeper.address}", [accounts])
    with pytest.raises(UsageError, match="does not say where ZooKeeper is"):
        percola.open(f"{store}?oracle={only.address}", [accounts])


def test_a_place_where_nothing_was_made_is_no_repository(
    stack: ExitStack, store: str, zookeeper: ZooKeeper
) -> None:
    text = f"{store}?oracle=127.0.0.1:9&zookeeper={zookeeper.address}"
    with pytest.raises(NotARepositoryError, match="No oracle has handed out timestamps"):
        percola.open(text, [accounts])
    address = address_of(store, zookeeper, start(stack, store))
    with pytest.raises(NotARepositoryError, match="There is no repository at"):
        percola.open(address, create=False)
    with pytest.raises(NotARepositoryError, match="There is no repository at"):
        percola.open(address)
    with pytest.raises(ConflictingOptionsError, match="durability"):
        percola.open(address, [accounts], durability="full")
    percola.create(address)
    with percola.open(address, create=False) as repo:
        assert not list(repo.schema)


def test_the_oracle_of_another_repository_is_not_believed(
    stack: ExitStack, store: str, zookeeper: ZooKeeper
) -> None:
    own, foreign = start(stack, store), start(stack, store + "2")
    with percola.open(address_of(store, zookeeper, own), [accounts]) as repo:
        repo.run(lambda t: t.set(balance, "a", 1))
    with pytest.raises(StoreError, match="is not the one of this repository"):
        percola.open(address_of(store, zookeeper, foreign), [accounts]).snapshot()


TLS_UNSET = ("--tls-cert", "", "--tls-key", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--repo", "./folder", "oracle", "--listen", ":1"], "needs no oracle"),
        (["--repo", "bigtable://p/i", "oracle"], "Missing option '--listen'"),
        (["--repo", "bigtable://p/i", "relay", "--listen", "h:1"], "names no oracle to draw"),
        (["--repo", "./folder", "relay", "--listen", "h:1"], "names no oracle to draw"),
        (
            ["--repo", "bigtable://p/i?oracle=a:1", "relay", "--listen", "0.0.0.0:7071"],
            "let it listen at 127.0.0.1:7071",
        ),
        (["--repo", "bigtable://p/i", "oracle", "--listen", "here"], "listens at HOST:PORT"),
        (
            ["--repo", "bigtable://p/i", "oracle", "--listen", "0.0.0.0:0"],
            "make one with (umask 077; openssl rand -hex 32 > FILE)",
        ),
        (
            ["--repo", "bigtable://p/i", "oracle", "--listen", "h:1", "--tls-key", "x"],
            "--tls-cert and --tls-key go together",
        ),
        (
            ["--repo", "bigtable://p/i", "oracle", "--listen", "h:1", "--token-file", "/none"],
            "--token-file names /none, which cannot be read: No such file or directory",
        ),
        # As of variables that are not set: it does not serve without what was asked for.
        (
            [*("--repo", "bigtable://p/i", "oracle", "--listen", "h:1"), *TLS_UNSET],
            "--tls-cert names no file",
        ),
        (
            ["--repo", "bigtable://p/i", "oracle", "--listen", "h:1", "--tls-client-ca", ""],
            "--tls-client-ca with both",
        ),
        (
            ["--repo", "bigtable://p/i", "oracle", "--listen", "h:1", "--token-file", ""],
            "--token-file names no file",
        ),
        (
            ["--repo", "bigtable://p/i", "oracle", "--listen", "127.0.0.1:0", "--lease", "0"],
            "0.0 is not in the range 0.05<=x<=3600",
        ),
    ],
)
def test_a_command_line_that_cannot_work_is_told_in_a_sentence(
    arguments: list[str], said: str
) -> None:
    answer = run(*arguments)
    assert answer.code in (1, 2)
    assert said in " ".join(answer.err.split())
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?oracle=a", "is not HOST:PORT"),
        ("?oracle=a:1,", "is not HOST:PORT"),
        ("?oracle=a:70000", "is not HOST:PORT"),
        ("?oracle=a:1&oracle=b:1", "names oracle= twice"),
        ("?zookeeper=x y:1", "is not HOST:PORT"),
    ],
)
def test_lists_of_servers_that_do_not_read_so_are_refused(query: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        network_address("bigtable://project/instance" + query)


def test_an_address_is_taken_apart_and_means_the_same_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "bigtable://p/i?app_profile=one&oracle=a:1,[::1]:2&zookeeper=c:3"
    found = network_address(text)
    assert found is not None
    assert (found.store, found.oracles, found.zookeeper) == (
        "bigtable://p/i?app_profile=one",
        ["a:1", "[::1]:2"],
        ["c:3"],
    )
    assert portable(text) == text
    assert network_address("lmdb:x") is None
    hbase = network_address("hbase://c,d:2182/shop?oracle=a:1")
    assert hbase is not None
    assert (hbase.store, hbase.zookeeper) == ("hbase://c,d:2182/shop", ["c:2181", "d:2182"])
    other = network_address("hbase://c/shop?oracle=a:1&zookeeper=z:9")
    assert other is not None and other.zookeeper == ["z:9"]
    monkeypatch.chdir(tmp_path)
    assert portable("x") == portable("lmdb:x") == os.path.join(tmp_path, "x")
    with pytest.raises(NotARepositoryError):
        portable("memory:")
    unknown = network_address("bigtable://p/i?colour=red")
    assert unknown is not None
    with pytest.raises(UsageError, match="unknown option 'colour'"):
        open_store(unknown)
