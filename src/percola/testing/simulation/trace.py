"""The trace of a run: numbered lines in the paper's terms, and cells in the form of figure 4.

    17  0.0142  client 2   prewrites accounts['Bob'].bal @7, the primary: '93'
    18  0.0155  client 2   ✗ the reply is lost

Only reads that returned are shown, with their results; scans that find nothing are omitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from percola.cells import MAX_TS, Cell, Kind, Op, decode_lock, decode_write
from percola.store.base import OneStepConflict, Put, RowMutation, Store
from percola.store.remote.feed_index import FEED_TABLE, PENDING, described
from percola.testing.simulation.faults import Fault, FaultKind
from percola.testing.simulation.run import Result
from percola.testing.simulation.world import ANY_BYTES, Event

_WORDS: Final[dict[FaultKind, str]] = {
    FaultKind.DIES: "dies",
    FaultKind.REPLY_LOST: "will not hear the reply to its next mutation",
    FaultKind.CALL_LOST: "loses its next mutation on the way",
    FaultKind.LATE: "gives its next mutation up, which arrives all the same, later",
    FaultKind.DUPLICATED: "has its next mutation delivered twice",
    FaultKind.SLOW: "waits long for its next call",
    FaultKind.PAUSED: "stands still",
    FaultKind.UNREACHABLE: "cannot reach the store for a while",
    FaultKind.ORACLE_RESTARTED: "meets the oracle restarting: timestamps jump",
    FaultKind.TOKEN_LOST: "loses its liveness token and lives on",
    FaultKind.CLOCK_JUMP: "has its clocks jump",
    FaultKind.TABLET_SPLIT: "sees a table cut into other tablets",
    FaultKind.WAKE_UP_LOST: "sends a wake-up, which is lost",
    FaultKind.SERVER_DIED: "sees servers of the store die",
}


def tell(result: Result, *, most: int = 400) -> str:
    """The trace of a run as text, whether it failed or not.

    Args:
        most: the most lines; the beginning of a longer trace is left out.
    """
    sizes = ", ".join(f"{name} {number}" for name, number in result.sizes.items())
    lines = [f"{result.workload}, seed {result.seed}: {result.mode.value} commits, {sizes}."]
    told: list[tuple[Event, str]] = []
    found: dict[str, str] = {}
    for event in result.trace:
        if event.what in ("mutates", "sends", "arrives late") and _is_hidden(event.details[0]):
            continue
        words = _words(event)
        if event.what == "finds":
            # A scanner that finds what it found before tells nothing new.
            if found.get(event.who) == words:
                continue
            found[event.who] = words
        if words:
            told.append((event, words))
    width = max((len(event.who) for event, _ in told), default=0)
    numbered = [
        f"{number:>4}  {event.at:8.4f}  {event.who:<{width}}  {words}"
        for number, (event, words) in enumerate(told, start=1)
    ]
    if len(numbered) > most:
        lines.append(f"      … {len(numbered) - most} lines before this …")
    lines += numbered[-most:]
    if result.violated is not None:
        lines += ["", f"VIOLATED: {result.violated.claim}"]
        cells = [
            Cell(table, row.encode(errors=ANY_BYTES), column.encode(errors=ANY_BYTES))
            for table, row, column in result.violated.cells
        ]
        if cells and result.world is not None:
            lines += ["", draw(result.world.store, cells)]
    else:
        lines += ["", "Every claim holds."]
    return "\n".join(lines)


def _words(event: Event) -> str:
    details: tuple[Any, ...] = event.details
    match event.what:
        case "fault":
            fault: Fault = details[0]
            return f"✗ {_WORDS[fault.kind]}  [{fault}]"
        case "mutates":
            return _mutation(details[0]) + ("" if details[1] else " → refused")
        case "sends":
            return f"(on its way: {_mutation(details[0])})"
        case "arrives late":
            outcome = "takes effect" if details[1] else "is refused"
            return f"✗ arriving late: {_mutation(details[0])} → {outcome}"
        case "loses":
            return f"✗ what was not durable in {', '.join(details[0])} is lost"
        case "commits in one step":
            return _one_step(*details)
        case "timestamp":
            return f"draws timestamp {details[0]}"
        case "read timestamp":
            return f"reads at {details[0]}"
        case "reads":
            cell, ts, (lock, commit_ts, value) = details
            if lock is not None:
                return f"reads {cell} @{ts} → locked by {lock[0]}"
            return f"reads {cell} @{ts} → {_value(value)}" + (f" of {commit_ts}" * bool(commit_ts))
        case "scans":
            table, start, end, ts, states = details
            seen = ", ".join(
                f"{cell.row.decode(errors='replace')}.{cell.column.decode(errors='replace')}="
                + (f"locked by {lock[0]}" if lock is not None else _value(value))
                for cell, (lock, _, value) in states
            )
            return f"scans {table} [{_text(start)}, {_text(end)}) @{ts} → {seen or 'nothing'}"
        case "looks":
            cell, kind, found = details
            if cell.table.startswith("@"):
                return ""
            stands = ", ".join(_entry(kind, ts, raw) for ts, raw in found) or "none"
            return f"looks for {kind.name.lower()} entries of {cell} → {stands}"
        case "finds":
            kind, table, found = details
            stands = ", ".join(f"{cell}@{ts}" for cell, ts, _ in found)
            return f"finds {kind.name.lower()} entries: {stands}"
        case "sees dead":
            return f"sees that {details[0]} is dead"
        case "committed":
            start_ts, commit_ts = details
            if start_ts == commit_ts:
                return f"has ended its transaction of {start_ts}, which wrote nothing"
            return f"has committed its transaction of {start_ts} at {commit_ts}"
        case "conflicted" | "failed" | "unknown":
            return f"{event.what}: {details[1]}"
        case "phase":
            return f"--- {details[0]}"
        case _:
            return f"{event.what} {' '.join(map(str, details))}"


def _is_hidden(mutation: RowMutation) -> bool:
    """Whether it is of Percola's own, and not of the index of feeds."""
    return mutation.table.startswith("@") and mutation.table != FEED_TABLE


def _index_entry(mutation: RowMutation) -> str:
    which, table, (ts, row) = described(mutation.row)
    state = "pending" if which == PENDING else "committed"
    verb = "lists" if isinstance(mutation.changes[0], Put) else "no longer lists"
    return f"{verb} {table}[{_text(row)!r}] as {state} @{ts}"


def _mutation(mutation: RowMutation) -> str:
    """A row mutation as the protocol means it."""
    if mutation.table == FEED_TABLE:
        return _index_entry(mutation)
    puts = [one for one in mutation.changes if isinstance(one, Put)]
    row = _text(mutation.row)

    def cell(column: bytes) -> str:
        return f"{mutation.table}[{row!r}].{_text(column)}"

    parts = []
    for put in puts:
        if put.kind is Kind.LOCK:
            lock = decode_lock(put.value)
            here = lock.primary == Cell(mutation.table, mutation.row, put.column)
            where = "the primary" if here else f"primary {lock.primary}"
            refreshes = mutation.conditions and mutation.conditions[0].present
            verb = "refreshes its lock on" if refreshes else "prewrites"
            parts.append(
                f"{verb} {cell(put.column)} @{put.ts}, {where}: {lock.op.name.lower()} "
                f"{_value(lock.value)}"
            )
        elif put.kind is Kind.WRITE:
            record = decode_write(put.value)
            if record.op is Op.ROLLBACK:
                parts.append(f"rolls back the transaction of {put.ts} on {cell(put.column)}")
            else:
                parts.append(f"commits {cell(put.column)} @{put.ts} → {record.start_ts}")
        elif put.kind is Kind.NOTIFY and not any(one.kind is Kind.WRITE for one in puts):
            verb = "records failed attempts at" if put.value else "notifies"
            parts.append(f"{verb} {cell(put.column)} @{put.ts}")
        elif put.kind is Kind.FAILED:
            parts.append(f"dead-letters {cell(put.column)}")
    if not parts:
        parts = [
            f"removes {one.kind.name.lower()} {cell(one.column)} @{one.ts}"
            for one in mutation.changes
        ]
    return "; ".join(parts) or f"changes nothing in {row!r}"


def _one_step(start_ts: int, writes: Iterable[Any], outcome: int | OneStepConflict) -> str:
    what = ", ".join(f"{cell}={_value(value)}" for cell, _, value, _ in writes) or "no cells"
    if isinstance(outcome, OneStepConflict):
        why = f"locked by {outcome.lock[0]}" if outcome.lock else f"written at {outcome.commit_ts}"
        return f"would commit {what} @{start_ts} in one step → refused: {outcome.cell} is {why}"
    return f"commits {what} in one step: {start_ts} → {outcome}"


# --- Figure 4's way to show a column ----------------------------------------------------


def draw(store: Store, cells: Sequence[Cell]) -> str:
    """The data, lock, write and notify entries of some cells, as figure 4 prints them."""
    lines = [("cell", "data", "lock", "write", "notify")]
    for cell in cells:
        columns: list[dict[int, str]] = [{}, {}, {}, {}]
        data, locks, writes, notify = columns
        for ts, raw in store.entries(cell, Kind.DATA, 0, MAX_TS):
            data[ts] = _value(raw)
        for ts, raw in store.entries(cell, Kind.LOCK, 0, MAX_TS):
            lock = decode_lock(raw)
            locks[ts] = "I am primary" if lock.primary == cell else f"primary @ {lock.primary}"
            if lock.value is not None:
                data[ts] = _value(lock.value)
        for ts, raw in store.entries(cell, Kind.WRITE, 0, MAX_TS):
            record = decode_write(raw)
            writes[ts] = f"data @ {record.start_ts}"
            if record.op is not Op.PUT:
                writes[ts] = f"{record.op.name.lower()} of {record.start_ts}"
            if record.value is not None:
                data[record.start_ts] = _value(record.value)
        for ts, _ in store.entries(cell, Kind.NOTIFY, 0, MAX_TS):
            notify[ts] = "dirty"
        name = str(cell)
        for ts in sorted({ts for column in columns for ts in column}, reverse=True) or [0]:
            texts = [f"{ts}: {column[ts]}" if ts in column else "" for column in columns]
            lines.append((name, texts[0], texts[1], texts[2], texts[3]))
            name = ""
    widths = [max(len(line[i]) for line in lines) + 2 for i in range(5)]
    return "\n".join(
        "".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _entry(kind: Kind, ts: int, raw: bytes) -> str:
    if kind is Kind.WRITE:
        record = decode_write(raw)
        return f"{record.op.name.lower()} {ts} → {record.start_ts}"
    return f"{ts}" if kind is not Kind.LOCK else f"lock of {ts}"


def _value(raw: bytes | None) -> str:
    if raw is None:
        return "nothing"
    text = repr(raw.decode("utf-8", "backslashreplace"))
    return text if len(text) <= 40 else f"{text[:30]}…({len(raw)} bytes)"


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")
