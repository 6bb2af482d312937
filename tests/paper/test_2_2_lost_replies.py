"""§2.2 behind a network: calls that are repeated, and replies that are lost (P6, P7)."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from figure4 import history
from stores import Ground, ScriptedClock, SeamStore, cell_of, phase, put

from percola import (
    CommitUnknownError,
    ConflictError,
    OutcomeUnknownError,
    PercolaError,
    Repository,
    RepositoryClosedError,
    StoreError,
    StoreFullError,
    Table,
    TransientError,
    UnknownTableError,
    ValueTooLargeError,
)
from percola.cells import Kind
from percola.store.base import RowMutation

bank = Table("bank")
bal = bank.column("bal", int)
log = bank.column("log", str, observed=True)
TABLES = [bank]
ROWS = ["a", "b", "c"]


def behind_a_seam(ground: Ground) -> tuple[SeamStore, Repository]:
    """A repository whose mutations a hook may lose; time passes only while it waits."""
    store = SeamStore(ground.store)
    return store, ground.repo(TABLES, store=store, clock=ScriptedClock())


def transfer(repo: Repository, amount: int) -> int:
    """A transaction of three rows in two phases; its commit timestamp."""
    t = repo.transaction(two_phase=True)
    for row in ROWS:
        t.set(bal, row, amount)
        t.set(log, row, f"to {amount}")
    return t.commit()


class Losing:
    """A hook that loses the reply of mutations of one phase and row."""

    def __init__(self, where: str, row: str, *, applied: bool, times: int = 1) -> None:
        self._where, self._row, self._applied = where, row.encode(), applied
        self.left = times
        self.lost = 0

    def __call__(self, mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        if phase(mutation) == self._where and mutation.row == self._row and self.left:
            self.left -= 1
            self.lost += 1
            if self._applied:
                apply()
            raise OutcomeUnknownError("The reply was lost.")
        return apply()


def check_whole(ground: Ground, commit_ts: int, amount: int) -> None:
    """The transaction is there once and whole, and has left nothing behind."""
    # Reading every cell rolls forward what was left locked, each cell with its notify entry.
    rows = list(ground.repo(TABLES).snapshot().scan(bank))
    assert [(row.key, row[bal], row[log]) for row in rows] == [
        (row, amount, f"to {amount}") for row in ROWS
    ]
    for row in ROWS:
        writes = [ts for ts, _ in ground.entries(bal, row, Kind.WRITE)]
        assert writes == [commit_ts], history(ground, bal, ROWS)
        assert [ts for ts, _ in ground.entries(log, row, Kind.NOTIFY)] == [commit_ts]
    assert ground.left_over(bank, Kind.LOCK) == []


# --- P6: everything twice ---------------------------------------------------------------


def test_p6_a_commit_whose_every_call_arrives_twice_is_the_same_commit(ground: Ground) -> None:
    """The store's client repeats each call, and only the second reply gets through."""
    repeated: list[str] = []

    def twice(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        apply()
        repeated.append(phase(mutation))
        return apply()

    store = SeamStore(ground.store)
    repo = ground.repo(TABLES, store=store)
    store.hook = twice
    check_whole(ground, transfer(repo, 5), 5)
    # What may be lost with a server is put again, durably.
    again = {"refresh"} if ground.store.has_volatile_writes else set()
    assert set(repeated) - {"notify"} == {"prewrite", "commit"} | again
    assert ("notify" in repeated) is ground.store.has_notify_table


def test_p6_a_rollback_that_arrives_twice_is_the_same_rollback(ground: Ground) -> None:
    store = SeamStore(ground.store)
    repo = ground.repo(TABLES, store=store)
    loser = repo.transaction(two_phase=True)
    put(repo, bal, "c", 1)

    def twice(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        apply()
        return apply()

    store.hook = twice
    for row in ROWS:
        loser.set(bal, row, 9)
    with pytest.raises(ConflictError):
        loser.commit()
    assert ground.left_over(bank, Kind.LOCK) == []
    assert repo.snapshot().get_many([(bal, row) for row in ROWS]) == [None, None, 1]


@pytest.mark.parametrize(
    ("applied", "again"),
    [(None, []), (True, [("refresh", True)]), (False, [("prewrite", True)])],
    ids=["no reply lost", "applied", "not applied"],
)
def test_p6_only_the_first_prewrite_of_the_primarys_row_is_volatile(
    ground: Ground, applied: bool | None, again: list[tuple[str, bool]]
) -> None:
    """One that arrives late would lock cells again whose locks were lost with a server."""
    store = SeamStore(ground.store)
    store.has_volatile_writes = True
    repo = ground.repo(TABLES, store=store, clock=ScriptedClock())
    losing = Losing("prewrite", "a", applied=bool(applied), times=applied is not None)
    sent: dict[bytes, list[tuple[str, bool]]] = {row.encode(): [] for row in ROWS}

    def note(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        if (does := phase(mutation)) in ("prewrite", "refresh", "commit"):
            sent[mutation.row].append((does, mutation.durable))
        return losing(mutation, apply)

    store.hook = note
    check_whole(ground, transfer(repo, 5), 5)
    assert sent.pop(b"a") == [("prewrite", False), *again, ("commit", True)]
    assert all(one == [("prewrite", True), ("commit", True)] for one in sent.values())


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("where", ["prewrite", "commit"])
def test_p6_p7_one_lost_reply_anywhere_does_not_change_the_outcome(
    ground: Ground, where: str, row: str, applied: bool
) -> None:
    store, repo = behind_a_seam(ground)
    store.hook = losing = Losing(where, row, applied=applied)
    commit_ts = transfer(repo, 5)
    assert losing.lost == 1
    # A secondary whose commit got lost is rolled forward by whoever reads it.
    check_whole(ground, commit_ts, 5)


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
def test_p6_a_lost_reply_to_a_roll_forward_or_rollback_reaches_the_caller_and_harms_nothing(
    ground: Ground, applied: bool
) -> None:
    store, repo = behind_a_seam(ground)
    store.hook = Losing("commit", "b", applied=False)
    commit_ts = transfer(repo, 5)
    store.hook = losing = Losing("commit", "b", applied=applied)
    with pytest.raises(OutcomeUnknownError):
        repo.snapshot().get(bal, "b")
    assert losing.lost == 1
    check_whole(ground, commit_ts, 5)


def test_p6_a_prewrite_whose_replies_stay_lost_aborts_and_leaves_nothing(ground: Ground) -> None:
    for row in ROWS:
        for applied in (True, False):
            store, repo = behind_a_seam(ground)
            store.hook = losing = Losing("prewrite", row, applied=applied, times=1000)
            if applied:
                transfer(repo, 5)  # It finds its own lock.
                continue
            # Nobody else has written or locked anything: it is no conflict, and says why.
            with pytest.raises(StoreError, match=r"has not committed.*The reply was lost\."):
                transfer(repo, 6)
            assert losing.lost > 1
            assert ground.left_over(bank, Kind.LOCK) == []
            assert {row[bal] for row in ground.repo(TABLES).snapshot().scan(bank)} == {5}


# --- P7: the commit point ---------------------------------------------------------------


class Gone:
    """A hook after which the store cannot be reached at the commit point, until it is back."""

    def __init__(self, store: SeamStore, *, applied: bool) -> None:
        self._store, self._applied = store, applied
        self.gone = False
        entries = store.inner.entries

        def unreachable(*args: object, **kwargs: object) -> object:
            if self.gone:
                raise StoreError("The store cannot be reached.")
            return entries(*args, **kwargs)  # type: ignore[arg-type]

        store.entries = unreachable  # type: ignore[method-assign, assignment]

    def __call__(self, mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        if self.gone:
            raise OutcomeUnknownError("The store does not answer.")
        if phase(mutation) == "commit":
            self.gone = True
            if self._applied:
                apply()
            raise OutcomeUnknownError("The reply was lost, and the store with it.")
        return apply()


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
def test_p7_an_outcome_that_cannot_be_read_back_is_unknown_and_can_be_settled_later(
    ground: Ground, applied: bool
) -> None:
    store, repo = behind_a_seam(ground)
    store.hook = gone = Gone(store, applied=applied)
    with pytest.raises(CommitUnknownError) as caught:
        transfer(repo, 5)
    error = caught.value
    assert not isinstance(error, TransientError), "it must not be taken for an abort"
    assert error.primary == cell_of(bal, "a")
    assert ground.left_over(bank, Kind.LOCK), "nothing may be cleaned up on a guess"
    gone.gone = False
    store.hook = None
    later = pickle.loads(pickle.dumps(error))
    assert repo.resolve(later) is applied
    if applied:
        check_whole(ground, error.commit_ts, 5)
    else:
        assert list(repo.snapshot().scan(bank)) == []
        assert ground.left_over(bank, Kind.LOCK) == []
    assert repo.resolve(later) is applied, "the answer never changes"


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
@pytest.mark.parametrize("where", ["prewrite", "commit"])
def test_p7_a_store_that_answers_no_write_until_it_answers_a_read_is_waited_for(
    ground: Ground, where: str, applied: bool
) -> None:
    """As where a part of the table moves: reads are tried again until they are answered."""
    store, repo = behind_a_seam(ground)
    away: list[bool] = []
    entries, entries_of = store.inner.entries, store.inner.entries_of

    def lose(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        if phase(mutation) == where and mutation.row == b"a" and not away:
            away.append(True)
            if applied:
                apply()
        if away == [True]:
            raise OutcomeUnknownError("It is not served at the moment.")
        return apply()

    def back(read: Callable[..., object]) -> Callable[..., object]:
        def reading(*args: object, **kwargs: object) -> object:
            away[:] = [False] * len(away)
            return read(*args, **kwargs)

        return reading

    store.entries = back(entries)  # type: ignore[method-assign, assignment]
    store.entries_of = back(entries_of)  # type: ignore[method-assign, assignment]
    store.hook = lose
    check_whole(ground, transfer(repo, 5), 5)
    assert away == [False]


@pytest.mark.parametrize("where", ["prewrite", "notify", "commit"])
def test_p7_a_store_that_answers_no_write_for_some_seconds_is_asked_again(
    ground: Ground, where: str
) -> None:
    store, repo = behind_a_seam(ground)
    # On a store with a table of them, notify entries are put by calls of their own.
    store.has_notify_table |= where == "notify"
    clock = repo.context.clock
    back_at = clock.monotonic() + 3

    def lose(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        if phase(mutation) == where and clock.monotonic() < back_at:
            raise OutcomeUnknownError("It is not served at the moment.")
        return apply()

    store.hook = lose
    check_whole(ground, transfer(repo, 5), 5)
    assert clock.monotonic() >= back_at


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "written"])
def test_p7_a_table_that_is_gone_after_a_lost_reply_leaves_the_outcome_unknown(
    ground: Ground, is_read: bool
) -> None:
    store, repo = behind_a_seam(ground)
    sent: list[bool] = []

    def lose(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        if phase(mutation) != "commit":
            return apply()
        if sent:
            raise UnknownTableError("The store has no table 'bank'.")
        sent.append(apply())
        raise OutcomeUnknownError("The reply was lost.")

    def gone(*_: object) -> object:
        raise UnknownTableError("The store has no table 'bank'.")

    store.hook = lose
    if is_read:
        store.entries = gone  # type: ignore[method-assign, assignment]
    else:
        store.entries = lambda *_: []  # type: ignore[method-assign, assignment]
    with pytest.raises(CommitUnknownError):
        transfer(repo, 5)
    assert sent == [True]


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
def test_p7_a_repository_that_is_closed_at_the_commit_point_leaves_the_outcome_unknown(
    ground: Ground, applied: bool
) -> None:
    store, repo = behind_a_seam(ground)

    def close(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        if phase(mutation) == "commit" and applied:
            apply()
        if phase(mutation) == "commit":
            raise RepositoryClosedError("This repository has been closed; open it again.")
        return apply()

    store.hook = close
    with pytest.raises(CommitUnknownError) as caught:
        transfer(repo, 5)
    assert ground.repo(TABLES).resolve(caught.value) is applied


def test_p7_a_commit_declared_dead_by_resolve_cannot_arrive_later(ground: Ground) -> None:
    late: list[Callable[[], bool]] = []

    def hold(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        if phase(mutation) == "commit":
            late.append(apply)
            raise OutcomeUnknownError("It is still under way.")
        return apply()

    store, repo = behind_a_seam(ground)
    store.hook = hold
    with pytest.raises(CommitUnknownError) as caught:
        transfer(repo, 5)
    assert len(late) > 1, "it is sent again before the outcome is called unknown"
    assert {ts for _, ts in ground.left_over(bank, Kind.LOCK)} == {caught.value.start_ts}
    assert len(ground.left_over(bank, Kind.LOCK)) == 6, "nothing may be cleaned up on a guess"
    store.hook = None
    assert repo.resolve(caught.value) is False
    assert [apply() for apply in late] == [False] * len(late)
    assert repo.snapshot().get(bal, "a") is None


def test_p7_run_does_not_repeat_a_transaction_whose_outcome_is_unknown(ground: Ground) -> None:
    store = SeamStore(ground.store)
    repo = ground.repo(TABLES, store=store, clock=ScriptedClock(), one_step=False)
    store.hook = Gone(store, applied=True)
    runs = []
    with pytest.raises(CommitUnknownError):
        repo.run(lambda t: (runs.append(t), t.set(bal, "a", 1)))
    assert len(runs) == 1


@pytest.mark.parametrize("failure", [StoreError, UnknownTableError, RepositoryClosedError])
def test_p7_a_store_that_fails_after_the_commit_point_does_not_unsay_the_commit(
    ground: Ground, failure: type[PercolaError]
) -> None:
    """Somebody else rolls half a row forward, and the rest cannot be reached."""
    store = SeamStore(ground.store)
    repo, other = ground.repo(TABLES, store=store), ground.repo(TABLES)
    commits_of_b: list[bool] = []

    def fail(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        if phase(mutation) != "commit" or mutation.row != b"b":
            return apply()
        if commits_of_b:
            raise failure("It is gone.")
        assert other.snapshot().get(bal, "b") == 5
        commits_of_b.append(apply())
        return commits_of_b[0]

    store.hook = fail
    t = repo.transaction(two_phase=True)
    for row in ROWS:
        t.set(bal, row, 5)
        t.set(log, row, "to 5")
    commit_ts = t.commit()
    assert commits_of_b == [False]
    assert isinstance(t.unfinished, StoreError) and "It is gone." in str(t.unfinished)
    store.hook = None
    check_whole(ground, commit_ts, 5)


@pytest.mark.parametrize("refusal", [StoreFullError, ValueTooLargeError])
def test_p7_a_store_that_refuses_the_commit_point_leaves_nothing_and_says_so(
    ground: Ground, refusal: type[PercolaError]
) -> None:
    """A full store, or one that takes no such row, has written nothing: a failure, not unknown."""
    store, repo = behind_a_seam(ground)

    def refuse(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        if phase(mutation) == "commit" and mutation.row == b"a":
            raise refusal("There is no room left.")
        return apply()

    store.hook = refuse
    with pytest.raises(refusal):
        transfer(repo, 5)
    store.hook = None
    assert ground.left_over(bank, Kind.LOCK) == [], "a reader would wait for them"
    assert list(repo.snapshot().scan(bank)) == []


def test_a_transaction_that_is_interrupted_while_it_locks_its_primary_leaves_no_lock(
    ground: Ground,
) -> None:
    """Others would wait for as long as its process lives, up to the lock's time to live."""
    store, repo = behind_a_seam(ground)

    def interrupt(mutation: RowMutation, apply: Callable[[], bool]) -> bool:
        applied = apply()
        if phase(mutation) == "prewrite" and mutation.row == b"a":
            raise KeyboardInterrupt
        return applied

    store.hook = interrupt
    with pytest.raises(KeyboardInterrupt):
        transfer(repo, 5)
    store.hook = None
    assert ground.left_over(bank, Kind.LOCK) == []
    assert list(repo.snapshot().scan(bank)) == []
