"""Figure 10's load: a bank, whose clients are processes of their own that may be killed.

    python -m benchmarks.fig10_bank set-up ADDRESS FOLDER REGIONS
    python -m benchmarks.fig10_bank client ADDRESS FOLDER NAME THREADS PAUSE [TIMEOUT]
    python -m benchmarks.fig10_bank close ADDRESS FOLDER
    python -m benchmarks.fig10_bank places ADDRESS

A client moves money between two accounts, and now and then adds all accounts up, which must come to
the same sum at every timestamp. Each transaction of each thread is recorded in a file of the
folder before its commit is tried. What a balance holds is unique, so that the checker of histories
knows whose it is: "93 c1.2-17" is 93, written by the 17th transfer of that thread.

`set-up` makes the accounts in as many regions as it is told; on LMDB or Bigtable there is nothing
to make. Each command prints one line of JSON when it is ready.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner

import percola
from percola import Repository, StoreError, Table
from percola.cli.root import cli
from percola.connect import cluster as network
from percola.errors import CommitUnknownError, RetriesExhaustedError, TransientError
from percola.testing.histories.recorder import RecordedTransaction, Recorder

ACCOUNTS: Final = 60
EACH: Final = 100
_ADD_UP_EVERY: Final = 10
_PAUSE: Final = 0.1
_FAILED: Final = 3

EXPECTED: Final = (StoreError, TransientError, CommitUnknownError, RetriesExhaustedError)
"""What may happen to a client while servers are down; anything else ends it."""

accounts = Table("accounts")
balance = accounts.column("balance", str)


def row_of(number: int) -> str:
    """The row of an account."""
    return f"a{number:03}"


def amount_of(value: str | None) -> int:
    """The amount in a balance."""
    return int((value or "0").partition(" ")[0])


# --- Clients ------------------------------------------------------------------------------


def client(address: str, folder: Path, name: str, threads: int, pause: float) -> None:
    """Transfers in some threads until standard input ends; if one fails, so does the process.

    After each transaction a thread rests for `pause` seconds.
    """
    ended = threading.Event()
    with percola.open(address, [accounts], create=False) as repo:
        working = [
            threading.Thread(target=_work, args=(repo, folder, f"{name}.{one}", pause, ended))
            for one in range(1, threads + 1)
        ]
        for thread in working:
            thread.start()
        _say({"event": "begun"})
        sys.stdin.read()
        ended.set()
        for thread in working:
            thread.join()
    _say({"event": "ended"})


def _be_impatient(seconds: float) -> None:
    """Shorten the retries that otherwise last half a minute, to observe their failure."""

    def store(address: Any) -> Any:
        return open_store(address, request_seconds=seconds / 4, timeout_seconds=seconds)

    def oracle(*arguments: Any, **options: Any) -> Any:
        made = open_oracle(*arguments, **options)
        made.request_seconds, made.timeout_seconds = seconds / 4, seconds
        return made

    open_store, open_oracle = network.open_store, network._oracle
    vars(network).update(open_store=store, _oracle=oracle)


def _work(repo: Repository, folder: Path, name: str, pause: float, ended: threading.Event) -> None:
    rng = random.Random(name)
    with (
        Recorder(name, path=folder / f"{name}.jsonl") as recorder,
        open(folder / f"{name}.errors", "a") as errors,
    ):
        number = 0
        while not ended.is_set():
            number += 1
            began = time.monotonic_ns()
            try:
                if number % _ADD_UP_EVERY:
                    recorder.run(repo, _transfer(rng, f"{name}-{number}"), attempts=50)
                else:
                    found = recorder.run(repo, add_up)
                    if found != ACCOUNTS * EACH:
                        raise AssertionError(f"{name}: all accounts come to {found}")
            except EXPECTED as error:
                # What is shown to whoever uses the bank: how long it took, and what it said.
                note = {
                    "began": began,
                    "ended": time.monotonic_ns(),
                    "error": type(error).__name__,
                    "says": str(error),
                }
                errors.write(json.dumps(note) + "\n")
                errors.flush()
                ended.wait(_PAUSE)
            except BaseException:
                # The whole client ends, and whoever started it sees that at once.
                traceback.print_exc()
                os._exit(_FAILED)
            ended.wait(pause)


def _transfer(rng: random.Random, mark: str) -> Callable[[RecordedTransaction], None]:
    def transfer(t: RecordedTransaction) -> None:
        giver, taker = (row_of(one) for one in rng.sample(range(ACCOUNTS), 2))
        amount = rng.randint(1, 5)
        has, gets = t.get_many([(balance, giver), (balance, taker)])
        t.set(balance, giver, f"{amount_of(has) - amount} {mark}")
        t.set(balance, taker, f"{amount_of(gets) + amount} {mark}")

    return transfer


def add_up(t: RecordedTransaction) -> int:
    """The sum of all accounts."""
    return sum(amount_of(row[balance]) for row in t.scan(accounts, columns=[balance]))


# --- Before and after ---------------------------------------------------------------------


def set_up(address: str, folder: Path, regions: int) -> None:
    """Make the accounts, on HBase in so many regions; all balances in one transaction."""
    percola.open(address, [accounts]).close()
    if address.startswith("hbase:"):
        at = [row_of(ACCOUNTS * one // regions).encode() for one in range(1, regions)]
        cut(address, accounts.name, at)
    with (
        percola.open(address, [accounts]) as repo,
        Recorder("set-up", path=folder / "set-up.jsonl") as recorder,
        recorder.transaction(repo) as t,
    ):
        for number in range(ACCOUNTS):
            t.set(balance, row_of(number), f"{EACH} set-up-{number}")
    _say({"event": "set up"})


def close(address: str, folder: Path) -> None:
    """Read all accounts, which resolves the locks of dead clients; print their sum.

    And what `percola locks` lists before and after, and `percola check` at the end: from here, for
    each process that opens HBase starts a JVM.
    """
    left = len(_percola(address, "locks")["locks"])
    with (
        percola.open(address, [accounts], create=False) as repo,
        Recorder("last", path=folder / "last.jsonl") as recorder,
    ):
        total = recorder.run(repo, add_up)
    locks = len(_percola(address, "locks")["locks"])
    checked = _percola(address, "check")
    found = {"sum": total, "locks_left": left, "locks": locks, "checked": checked}
    _say({"event": "closed", **found})


def _percola(address: str, word: str) -> Any:
    """The output of a `percola` command."""
    done = CliRunner().invoke(cli, ["--repo", address, "--json", word])
    if not done.stdout:
        raise RuntimeError(f"'percola {word}': {done.stderr} {done.exception!r}")
    return json.loads(done.stdout)


def _calls(address: str) -> Any:
    from percola.store.hbase.client import Calls
    from percola.store.hbase.store import place_of
    from percola.store.remote.client import REQUEST_SECONDS, TIMEOUT_SECONDS

    return Calls(
        place_of(address), request_seconds=REQUEST_SECONDS, timeout_seconds=TIMEOUT_SECONDS
    )


def cut(address: str, table: str, rows: list[bytes]) -> None:
    """Recreate an HBase table, pre-split at these rows; HBase distributes the regions."""
    import jpype

    calls = _calls(address)
    admin = calls.client().connection.getAdmin()
    name = calls.name(table)
    described = admin.getDescriptor(name)
    admin.disableTable(name)
    admin.deleteTable(name)
    admin.createTable(described, jpype.JArray(jpype.JArray(jpype.JByte))(rows))
    admin.close()
    calls.close()


def places(address: str) -> dict[str, list[str]]:
    """Which region servers serve which tables: {"HOST,PORT,STARTED": ["accounts", …], …}.

    Those of the repository, Percola's own, and HBase's `hbase:meta`.
    """
    calls = _calls(address)
    client = calls.client()
    meta = client.table_name.valueOf("hbase:meta")
    admin = client.connection.getAdmin()
    names = {"hbase:meta": meta}
    for name in admin.listTableNamesByNamespace(calls.place.namespace):
        short = str(name.getQualifierAsString())
        names["@" + short[2:] if short.startswith("0-") else short] = name
    found: dict[str, list[str]] = {}
    for table, name in names.items():
        for one in client.connection.getRegionLocator(name).getAllRegionLocations():
            found.setdefault(str(one.getServerName()), []).append(table)
    admin.close()
    calls.close()
    return found


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def main(arguments: list[str]) -> int:
    """Run one of the commands; its exit code."""
    match arguments:
        case ["set-up", address, folder, regions]:
            set_up(address, Path(folder), int(regions))
        case ["client", address, folder, name, threads, pause, *timeout]:
            if timeout:
                _be_impatient(float(timeout[0]))
            client(address, Path(folder), name, int(threads), float(pause))
        case ["close", address, folder]:
            close(address, Path(folder))
        case ["places", address]:
            _say({"event": "places", "servers": places(address)})
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
