"""Output of the command line for people: sentences, rows, and compact tables."""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from rich import box, filesize
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from percola.cells import Cell, LockRecord, Op, WriteRecord
from percola.cli.json_output import as_json, decoded, members
from percola.gc.retention_holds import RetentionHold
from percola.gc.time_log import CommitTimes
from percola.inspection import (
    Failure,
    HeldLock,
    Notification,
    Process,
    Status,
    Version,
    decoded_row,
)
from percola.observers.causes import Change
from percola.platform.text import count as count
from percola.platform.text import printable as printable
from percola.schema import Column, Schema, WeakColumn
from percola.transactions.row import Row

if TYPE_CHECKING:
    from rich.tree import Tree

_EVERY: Final = 10.0
"""Seconds between lines of progress where standard error is not a terminal."""

_NARROWEST: Final = 40
"""The fewest columns of a terminal: in fewer, rich leaves out columns of tables, and more."""

_CHANGES: Final = 5
"""How many changes of a dirty cell are listed, the oldest: beside a paused observer it may have
millions."""

_OPS: Final = {Op.DELETE: "delete", Op.LOCK: "lock only"}


def console(*, stderr: bool = False) -> Console:
    """A console for a terminal or a pipe, without markup: data is never interpreted."""
    out = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if out.width < _NARROWEST:
        out.width = _NARROWEST
    return out


def say(text: str) -> None:
    """Print a sentence, wrapped to the terminal's width; in a pipe, on one line."""
    out = console()
    out.print(text, soft_wrap=not out.is_terminal)


def say_note(text: str) -> None:
    """Print a remark to stderr; in a pipe, on one line."""
    out = console(stderr=True)
    out.print(text, style="dim", soft_wrap=not out.is_terminal)


def say_error(text: str) -> None:
    """Print `Error: …` to stderr; in a pipe, on one line."""
    line = Text("Error:", style="bold red")
    line.append(f" {' '.join(text.split())}", style="not bold default")
    out = console(stderr=True)
    out.print(line, soft_wrap=not out.is_terminal)


@contextmanager
def progress_line(first: str) -> Iterator[Callable[[str], None]]:
    """Shows a line on stderr while a command runs; yields a function that replaces its text."""
    # Loaded here: few commands take long.
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    out = console(stderr=True)
    spoke = time.monotonic()

    def show(text: str) -> None:
        nonlocal spoke
        bar.update(task, description=text)
        if not out.is_terminal and time.monotonic() - spoke >= _EVERY:
            spoke = time.monotonic()
            out.print(text, soft_wrap=True)

    shown = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*shown, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task(first, total=None)
        yield show


def preview(value: Any, width: int) -> str:
    """A value on one line of about `width` characters; if truncated, with its size in bytes."""
    raw = value if isinstance(value, bytes) else as_text(value).encode()
    head = raw[: 4 * width]  # At least `width` characters, if it has that many.
    shown = printable(head.decode("utf-8", "backslashreplace"))
    if len(head) == len(raw) and len(shown) <= width:
        return shown
    ending = f"… ({len(raw):,} bytes)"
    return shown[: max(8, width - len(ending))] + ending


def as_text(value: Any) -> str:
    """A value or a row's key as text: the text itself, or JSON without quotes around the whole."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else json.dumps(value)
    form = as_json(value)
    return form if isinstance(form, str) else json.dumps(form, ensure_ascii=False)


def cell_name(column: Column[Any, Any] | WeakColumn[Any], row: Any) -> str:
    """A cell's address with its row's key decoded: `days['2010-10-04'].sales`."""
    return _address(column.table_name, row, column.name)


def _stored_name(schema: Schema, cell: Cell) -> str:
    """`cell_name` of a stored cell, of which the schema may lack the column, on one line."""
    column = cell.column.decode("utf-8", "backslashreplace")
    return printable(_address(cell.table, decoded_row(schema, cell), column))


def _address(table: str, row: Any, column: str) -> str:
    return f"{table}[{as_text(row)!r}].{column}"


def print_rows(rows: Iterable[Row[Any]]) -> int:
    """Print rows: the key of each, and below it a line for each column. Returns how many."""
    found = 0
    out = console()
    width, is_terminal = out.width, out.is_terminal
    for row in rows:
        found += 1
        values = list(row._all_items())
        names = [printable(column.name) for column, _ in values]
        indent = min(max(map(len, names), default=0), 24)
        lines = [
            (f"  {name:<{indent}}", preview(value, max(20, width - max(indent, len(name)) - 4)))
            for name, (_, value) in zip(names, values, strict=True)
        ]
        if not is_terminal:  # As `_printer` does.
            out.file.write("\n".join([_key(row.key), *map("  ".join, lines), ""]))
            continue
        out.print(Text(_key(row.key), style="bold"), soft_wrap=True)
        for name, value in lines:
            out.print(Text(name, style="cyan").append(f"  {value}", "none"), soft_wrap=True)
    return found


def _printer(out: Console) -> Callable[[Text | str], object]:
    """What prints a line of what may be millions: rich takes up to half a millisecond for each."""
    if out.is_terminal:
        return functools.partial(out.print, soft_wrap=True)
    write = out.file.write
    return lambda text: write(f"{text}\n")


def print_history(
    cell: Cell,
    row: Any,
    column: Column[Any, Any] | WeakColumn[Any],
    versions: Sequence[Version],
    failures: Sequence[Failure],
    times: CommitTimes,
) -> None:
    """Print a cell's versions in the form of figure 4, newest first; `row` is its row's key."""
    out = console()
    out.print(Text(printable(cell_name(column, row)), style="bold"), soft_wrap=True)
    shows_notify = any(one.notify for one in versions)
    shows_acks = any(one.acknowledged for one in versions)
    committed = [times.of(one.ts) if one.write is not None else (None, None) for one in versions]
    shows_times = any(after is not None or by is not None for after, by in committed)
    headings = ["timestamp", "data", "lock", "write"]
    headings += ["committed"] * shows_times
    headings += ["notify"] * shows_notify + ["ack"] * shows_acks
    grid = _grid(*headings)
    grid.columns[0].justify = "right"
    grid.columns[0].no_wrap = grid.columns[3].no_wrap = True
    locks = [_describe_lock(one.lock, cell) for one in versions]
    widest = min(30, max((len(lock) for lock in locks), default=0))
    taken = 9 + max(4, widest) + 12 + 9 * shows_notify + 12 * shows_acks + 9 + 24 * shows_times
    for one, lock, (after, by) in zip(versions, locks, committed, strict=True):
        data = "" if one.data is None else decoded(column, one.data)
        line: list[str | Text] = [
            f"{one.ts}:",
            preview(data, max(16, out.width - taken)),
            lock,
            Text(_describe_write(one.write), style="green" if _is_visible(one) else "none"),
        ]
        if shows_times:
            line.append(_show_commit_time(after, by))
        if shows_notify:
            line.append("dirty" if one.notify else "")
        if shows_acks:
            line.append(", ".join(one.acknowledged))
        grid.add_row(*line)
    out.print(grid)
    for failure in failures:
        line_ = Text(f"dead-lettered for {failure.observer} {_ago(failure.at_ms)}: ", "red")
        out.print(line_.append(printable(failure.error), "none"), soft_wrap=True)


def _show_commit_time(after: datetime | None, by: datetime | None) -> str:
    """By when it had committed, or else after when, as the log of times has it, to the second."""
    if by is not None:
        return f"≤ {by.astimezone():%Y-%m-%d %H:%M:%S}"
    return f"> {after.astimezone():%Y-%m-%d %H:%M:%S}" if after is not None else ""


def _is_visible(version: Version) -> bool:
    return version.write is not None and version.write.op in (Op.PUT, Op.DELETE)


def _describe_lock(lock: LockRecord | None, cell: Cell) -> Text:
    if lock is None:
        return Text("")
    what = "I am primary" if lock.primary == cell else f"primary @ {_near(lock.primary, cell)}"
    op = f" ({_OPS[lock.op]})" if lock.op in _OPS else ""
    return Text(what + op, style="yellow")


def _near(primary: Cell, cell: Cell) -> str:
    if primary.table != cell.table:
        return printable(str(primary))
    row = primary.row.decode("utf-8", "backslashreplace")
    return printable(f"{row}.{primary.column.decode('utf-8', 'backslashreplace')}")


def _describe_write(write: WriteRecord | None) -> str:
    if write is None:
        return ""
    if write.op is Op.ROLLBACK:
        return "rolled back"
    what = {Op.PUT: "data", Op.DELETE: "delete", Op.LOCK: "lock only"}[write.op]
    return f"{what} @ {write.start_ts}"


def print_trail(change: Change, times: CommitTimes, schema: Schema, *, forward: bool) -> None:
    """Print what caused a change, or what it has caused, as a tree."""
    from rich.tree import Tree

    tree = Tree(_describe_change(change, times, schema), guide_style="dim")
    _grow(tree, change, times, schema, "→" if forward else "by")
    out = console()
    if not out.is_terminal:
        out.width = 100_000  # One line each.
    out.print(tree)


def _grow(tree: Tree, change: Change, times: CommitTimes, schema: Schema, arrow: str) -> None:
    for run in change.runs:
        row = printable(as_text(decoded_row(schema, Cell(run.table, run.row, b""))))
        text = Text(f"{arrow} {run.observer}", style="bold cyan")
        text.append(f"  for {run.table}[{row!r}], saw {run.start_ts}", "not bold default")
        if run.batch > 1:
            text.append(f", in a batch of {run.batch} rows", "not bold default")
        if run.at_ms is not None:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.at_ms / 1000))
            text.append(f", at {at} by {run.process}", "not bold default")
        branch = tree.add(text)
        for one in run.changes:
            _grow(branch.add(_describe_change(one, times, schema)), one, times, schema, arrow)
        if run.more:
            branch.add(Text(f"… and {count(run.more, 'more change')}", style="dim"))
        if run.end:
            branch.add(Text(run.end, style="yellow"))
    if change.end:
        tree.add(Text(change.end, style="yellow"))


def _describe_change(change: Change, times: CommitTimes, schema: Schema) -> Text:
    text = Text(_stored_name(schema, change.cell), style="bold")
    word = {"put": "written", "delete": "deleted", "write": "written", "notify": "notified"}[
        change.op
    ]
    text.append(f"  {word} at {change.commit_ts}", "not bold")
    if committed := _show_commit_time(*times.of(change.commit_ts)):
        text.append(f" ({committed})", "not bold dim")
    return text


def print_locks(
    locks: Sequence[HeldLock],
    schema: Schema,
    *,
    shown: int | None = None,
    hosts: Mapping[str, str] | None = None,
) -> None:
    """Print the locks by transaction, and how those of dead owners will be resolved.

    Of each transaction the first `shown`, its primary among them; None: all. `hosts` has the
    machines of live processes by their tokens.
    """
    out = console()
    print_line = _printer(out)
    if not locks:
        say("No cell is locked.")
        return
    by_transaction: dict[int, list[HeldLock]] = {}
    for lock in locks:
        by_transaction.setdefault(lock.start_ts, []).append(lock)
    for start_ts, group in sorted(by_transaction.items()):
        first = min(group, key=lambda lock: not lock.is_primary)
        head = Text(f"Transaction {start_ts}", style="bold")
        head.append(f" of {_owner(first, hosts or {})}, ", "not bold")
        # Of a joint transaction the primary alone is refreshed, and it lives by that.
        is_silent = not first.record.owner and first.age_seconds * 1000 > first.record.ttl_ms
        if is_silent and first.is_primary:
            head.append(
                "which is silent: the next client that meets its locks undoes it", "not bold red"
            )
        elif first.owner_alive:
            head.append("which is alive", "not bold green")
        else:
            head.append("which has ended", "not bold red")
        head.append(f"; refreshed {duration(first.age_seconds)} ago", "not bold")
        print_line(head)
        for lock in sorted(group, key=lambda lock: not lock.is_primary)[:shown]:
            notes = ["primary"] if lock.is_primary else []
            notes += [_OPS[lock.record.op]] if lock.record.op in _OPS else []
            note = f"  ({', '.join(notes)})" if notes else ""
            line = Text(f"  {_stored_name(schema, lock.cell)}").append(note, "yellow")
            print_line(line)
        if shown is not None and len(group) > shown:
            out.print(f"  … and {len(group) - shown:,} more (--limit 0 shows all)")
        if not first.is_primary:
            primary = _stored_name(schema, first.record.primary)
            out.print(f"  its primary, {primary}, is decided already", soft_wrap=True)
    if not all(lock.owner_alive for lock in locks):
        say(
            "Nothing is wrong with a lock whose process has ended: whoever reads or writes the "
            "cell next finishes its transaction or undoes it."
        )


def _owner(lock: HeldLock, hosts: Mapping[str, str]) -> str:
    """Who owns a lock: a process, by its token, or a job of Spark, whose locks have none."""
    token = lock.record.owner
    if not token:
        return f"the job {printable(lock.record.primary.row.decode('utf-8', 'backslashreplace'))!r}"
    pid, _, rest = token.partition("-")
    if not (pid.isdigit() and rest):
        return printable(token)
    return f"process {_named(pid, hosts.get(token, ''))}"


def print_notifications(
    summary: Sequence[Mapping[str, Any]],
    cells: Sequence[Notification],
    total: int,
    schema: Schema,
) -> None:
    """Print the number of dirty cells in each column, and some of the cells."""
    if not summary:
        say("No cell is dirty: every change was answered, or dead-lettered (percola failed).")
        return
    grid = _grid("column", "dirty cells", "oldest at", "observers at work")
    for index in (1, 2):
        grid.columns[index].justify = "right"
    for one in summary:
        grid.add_row(
            f"{one['table']}.{one['column']}",
            f"{one['cells']:,}",
            str(one["oldest_ts"]),
            ", ".join(one["observers"]) or Text("none: start a worker", style="yellow"),
        )
    out = console()
    out.print(grid)
    print_line = _printer(out)
    for cell in cells:
        oldest, more = cell.timestamps[:_CHANGES], cell.timestamps[_CHANGES:]
        at = ", ".join(map(str, oldest)) + (f", … and {len(more):,} more" if more else "")
        print_line(f"  {_stored_name(schema, cell.cell)}  at {at}")
    if cells and total > len(cells):
        out.print(f"  … and {total - len(cells):,} more")


def print_holds(holds: Sequence[RetentionHold]) -> None:
    """Print the retention holds with the time until each expires."""
    if not holds:
        say("There are no retention holds.")
        return
    grid = _grid("hold", "timestamp", "expires in")
    for index in (1, 2):
        grid.columns[index].justify = "right"
    for one in holds:
        left = duration(max(0.0, one.until_ms / 1000 - time.time()))
        grid.add_row(printable(one.name), str(one.ts), left)
    console().print(grid)


def print_observers(observers: Sequence[Mapping[str, Any]]) -> None:
    """Print observers, the processes that run them, and whether they are paused."""
    if not observers:
        say("No live worker runs an observer, and none is paused.")
        return
    grid = _grid("observer", "columns", "dirty cells", "processes", "state")
    grid.columns[2].justify = "right"
    for one in observers:
        running = ", ".join(_named(live["pid"], live["host"]) for live in one["processes"])
        state = Text("runs" if running else "")
        if one["paused"]:
            state = Text("paused", style="yellow")
            reason = one["paused"]["reason"]
            state.append(f" {_ago(one['paused']['since_ms'])}", "none")
            state.append(f": {printable(reason)}" if reason else "", "none")
        grid.add_row(
            one["name"],
            ", ".join(one["columns"]),
            f"{one['dirty']:,}",
            running or "no live worker",
            state,
        )
    console().print(grid)


def print_failures(
    failures: Iterable[Failure],
    schema: Schema,
    *,
    traceback: bool,
    observer: str | None = None,
    shown: int | None = None,
) -> None:
    """Print which changes were dead-lettered for which observers, and why.

    `observer` is the name of the only one whose failures these are; None: of all. After `shown` the
    others are only counted.
    """
    print_line = _printer(console())
    found = 0
    for one in failures:
        found += 1
        if shown is not None and found > shown:
            continue
        head = Text(one.observer, style="bold red")
        head.append(" on ", "not bold default").append(
            _stored_name(schema, one.cell), "bold default"
        )
        print_line(head)
        print_line(f"  {count(one.attempts, 'attempt')}, dead-lettered {_ago(one.at_ms)}")
        if traceback:
            for line in one.traceback.rstrip().splitlines():
                print_line(f"  {printable(line)}")
        else:
            print_line(f"  {printable(one.error)}")
    if not found:
        of = "" if observer is None else f" for an observer named {observer!r}"
        say(f"No change is dead-lettered{of}.")
    else:
        listed = ""
        if shown is not None and found > shown:
            listed = f", of which these are the first {shown:,} (--limit 0 lists all)"
        once = "Once the cause is fixed: percola failed retry --all"
        say(f"{count(found, 'failure')}{listed}. {once}")


def print_status(status: Status) -> None:
    """Print a summary of the repository."""
    out = console()
    facts = Grid.grid(padding=(0, 2))
    facts.add_column(style="cyan", no_wrap=True)
    facts.add_column(overflow="fold")
    durable = f", durability {status.durability}" if status.durability else ""
    statistics = dict(status.statistics)
    size = statistics.pop("bytes", None)
    entries = ", ".join(f"{name} {number:,}" for name, number in statistics.items())
    facts.add_row("repository", status.address)
    facts.add_row("format", f"{status.format}{durable}")
    facts.add_row("last timestamp", f"{status.last_ts:,}")
    if status.safe_point:
        facts.add_row("readable from", f"{status.safe_point:,}")
    if size is not None:
        facts.add_row("size", f"{filesize.decimal(size)} on disk")
    if entries:
        facts.add_row("entries", entries)
    dead = f", {status.dead_locks:,} of them of ended processes" if status.dead_locks else ""
    facts.add_row("locks", f"{status.locks:,}{dead}")
    facts.add_row("dirty cells", f"{sum(status.notifications.values()):,}")
    dead_lettered = Text(f"{status.failures:,}", style="red" if status.failures else "none")
    if status.failures:
        dead_lettered.append("  (percola failed)", "none")
    facts.add_row("dead-lettered", dead_lettered)
    if status.paused:
        paused = Text(", ".join(one.name for one in status.paused), style="yellow")
        facts.add_row("paused", paused.append("  (percola observers)", "none"))
    facts.add_row("processes", _describe_processes(status.processes))
    out.print(facts)
    out.print()
    if not status.tables:
        say("It has no tables yet: percola init --column …, --schema …, or a program's schema.")
        return
    grid = _grid("table", "column", "type", "dirty", "observed by")
    grid.columns[3].justify = "right"
    for table in status.tables:
        label = table.name if table.rows is str else f"{table.name} (rows of {table.rows_name})"
        for name, kind, observed in members(table):
            full = f"{table.name}.{name}"
            dirty = status.notifications.get(full, 0)
            at_work = observers_at_work(status.processes, full)
            grid.add_row(
                Text(label, style="bold"),
                name,
                kind,
                f"{dirty:,}" if observed else "",
                (", ".join(at_work) or "no live worker") if observed else "",
            )
            label = ""
        if label:
            grid.add_row(Text(label, style="bold"), "(no columns)", "", "", "")
    out.print(grid)


def observers_at_work(processes: Iterable[Process], column: str) -> list[str]:
    """The names of the observers that live processes run on a column (`table.column`)."""
    return sorted({name for one in processes for name in one.observers.get(column, ())})


def _describe_processes(processes: Sequence[Process]) -> str:
    if not processes:
        return "none that write or observe"
    return "; ".join(
        f"{_named(one.pid, one.host)} ({', '.join(sorted(one.observers)) or 'observes nothing'})"
        for one in processes
    )


def _named(pid: int | str, host: str) -> str:
    """A process, with its machine: in containers all have the number 1."""
    return f"{pid} on {printable(host)}" if host else str(pid)


# --- Words and numbers ------------------------------------------------------------------


def _grid(*headings: str) -> Grid:
    grid = Grid(
        box=box.SIMPLE_HEAD,
        header_style="cyan",
        show_edge=False,
        pad_edge=False,
    )
    for heading in headings:
        grid.add_column(heading, overflow="fold")
    return grid


def _key(key: Any) -> str:
    return printable(as_text(key))


def duration(seconds: float) -> str:
    """An approximate duration, in the largest unit that fits."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def _ago(at_ms: int) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000))
    return f"{at} ({duration(max(0.0, time.time() - at_ms / 1000))} ago)"
