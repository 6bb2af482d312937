"""Common to all commands: the repository, the output format, and error handling."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar

import click

import percola
from percola.cli.json_output import only_json, write_json
from percola.errors import NotARepositoryError, PercolaError, UsageError
from percola.gc.time_log import show_time
from percola.platform import start_up
from percola.platform.files import is_full, occupy_standard_streams
from percola.repository import Repository
from percola.schema import Table
from percola.transactions.snapshot import Snapshot

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])

SHOWN: Final = 100
"""How many rows, versions or dead letters a command lists unless it is told; with --json, all."""
_NEGATIVE: Final = re.compile(r"-(\.?\d|inf)", re.IGNORECASE)


@dataclass
class Session:
    """The options common to all commands."""

    address: str | None = None
    json: bool = False

    def where(self) -> str:
        """The repository's address; a usage error if none was given."""
        if not self.address:
            raise click.UsageError(
                "Say which repository: percola --repo PATH COMMAND, or set PERCOLA_REPO."
            )
        if self.address.startswith("memory:"):
            raise NotARepositoryError(
                "A memory repository lives and ends with the program that opened it; the command "
                "line needs one that is kept: use a folder."
            )
        return self.address

    @contextmanager
    def open(self, schema: Sequence[Table[Any]] = ()) -> Iterator[Repository]:
        """Open the repository, which must exist."""
        with percola.open(self.where(), schema, create=False) as repo:
            yield repo

    def user_code(self) -> AbstractContextManager[None]:
        """While a user's modules are imported and run: what they print is no part of the JSON."""
        return only_json() if self.json else nullcontext()

    def shown(self, limit: int | None) -> int | None:
        """How many a command with `limit_option` lists; None: all."""
        if limit is None and not self.json:
            return SHOWN
        return min(limit or 0, sys.maxsize - 1) or None

    def show(self, document: object, sentence: str) -> None:
        """Print a result as JSON or as a sentence."""
        if self.json:
            write_json(document)
        else:
            from percola.cli.display import say

            say(sentence)


class CommandLine(click.Group):
    """The root command: turns exceptions into error messages and exit codes.

    Args:
        later: commands whose modules are imported when they are used: `MODULE:NAME` below
            `percola.cli`, and the line about it in the overview.
    """

    def __init__(
        self, *args: Any, later: Mapping[str, tuple[str, str]] | None = None, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self._later = later or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *self._later})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in self._later:
            module, _, name = self._later[cmd_name][0].partition(":")
            found = getattr(import_module(f"percola.cli.{module}"), name)
            self.add_command(found, cmd_name)
        if cmd_name != "worker":  # Which releases it once it can say so.
            start_up.release_sigterm()
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, self._later[name][1])
                    if name in self._later
                    else (name, self.commands[name].get_short_help_str(limit=100))
                    for name in self.list_commands(ctx)
                ]
            )

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        session = Session()
        _never_go_without_output()
        _never_fail_to_encode()
        try:
            code = self._answer(session, args, prog_name, complete_var, **extra)
        except (click.Abort, KeyboardInterrupt):
            code = 130
        except OSError as error:
            # Other files have names, and mostly errors of Percola's.
            full = is_full(error) and error.filename is None
            if error.errno != errno.EPIPE and not full:
                raise
            # The reader of the output is gone, or its disk full. Python would report that once more
            # at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if full:
                from percola.cli.display import say_error

                say_error(f"The output cannot be written: {error.strerror}.")
            code = 1
        sys.exit(code if isinstance(code, int) else 0)

    def _answer(
        self,
        session: Session,
        args: Sequence[str] | None,
        prog_name: str | None,
        complete_var: str | None,
        **extra: Any,
    ) -> Any:
        """Run the command that `args` name, or say what is wrong; returns the exit code."""
        try:
            start_up.end()
            code = super().main(args, prog_name, complete_var, False, obj=session, **extra)
            sys.stdout.flush()
            return code
        except click.ClickException as error:
            error.show()
            kind, message, code = type(error).__name__, error.format_message(), error.exit_code
        except PercolaError as error:
            from percola.cli.display import say_error

            say_error(str(error))
            kind, message, code = type(error).__name__, str(error), 1
        # What is wrong may stand before --json.
        if session.json or "--json" in (sys.argv[1:] if args is None else args):
            write_json({"error": {"kind": kind, "message": message}})
        return code


class NegativeNumbers(click.Command):
    """A command whose arguments may be negative numbers, not only after `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" not in args:
            given = [one for one in self.params if isinstance(one, click.Option)]
            taking = {name for one in given if not one.is_flag for name in one.opts}
            options: list[str] = []
            others: list[str] = []
            for text in args:
                is_value = bool(options) and options[-1] in taking
                is_option = text[:1] == "-" and text != "-" and not _NEGATIVE.match(text)
                (options if is_value or is_option else others).append(text)
            args = [*options, "--", *others]
        return super().parse_args(ctx, args)


class ListByDefault(click.Group):
    """A group that runs its command `list` if none is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = self._first_word(args)
        is_named = first in self.commands or first in ctx.help_option_names
        # If a shell completes the first word, that may become the name of a command.
        if not is_named and (first is not None or not ctx.resilient_parsing):
            args.insert(0, "list")
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = super().shell_complete(ctx, incomplete)
        known = {one.value for one in found}
        listing = self.commands["list"].shell_complete(ctx, incomplete)
        return found + [one for one in listing if one.value not in known]

    def _first_word(self, args: Sequence[str]) -> str | None:
        """The first word after the group's own options, if there is one."""
        own = [one for one in self.params if isinstance(one, click.Option)]
        flags = {name for one in own if one.is_flag for name in one.opts}
        taking = {name for one in own if not one.is_flag for name in one.opts}
        words = iter(args)
        for text in words:
            if text in taking:
                next(words, None)
            elif text not in flags and text.partition("=")[0] not in taking:
                return text
        return None


def _never_go_without_output() -> None:
    """If standard output or error was closed, as by `>&-`, discard what is written there."""
    occupy_standard_streams()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


def standard_input() -> BinaryIO:
    """Standard input, as bytes. Raises UsageError if it was closed, as by `<&-`."""
    if sys.stdin is None:
        raise UsageError("Standard input is closed, so there is nothing to read: name a file.")
    return sys.stdin.buffer


class InputFile(click.File):
    """A file to read, or - for standard input."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return standard_input() if value == "-" else super().convert(value, param, ctx)


def standard_output() -> BinaryIO:
    """Standard output, as bytes, for what must not be lost. Raises UsageError if it was closed."""
    if sys.stdout.name == os.devnull:  # By `_never_go_without_output`.
        raise UsageError("Standard output is closed, so all would be lost: name a file.")
    return sys.stdout.buffer


def _never_fail_to_encode() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _keep_repo(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:  # An empty one, as of a variable that is not set, names no repository.
        context.ensure_object(Session).address = value


def _keep_json(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(Session).json = True


json_option = click.option(
    "--json", is_flag=True, expose_value=False, callback=_keep_json, help="Print JSON."
)


def common(command: F) -> F:
    """Add `--repo` and `--json`, which are accepted before and after a command's name."""
    repo = click.option(
        "--repo",
        metavar="PATH_OR_URL",
        expose_value=False,
        callback=_keep_repo,
        shell_complete=completes("dir"),
        help="The repository: a folder, or a URL such as bigtable://…  [env: PERCOLA_REPO]",
    )
    return repo(json_option(command))


table_option = click.option(
    "-t", "--table", metavar="TABLE", help="The table, where the column does not tell."
)


def limit_option(what: str) -> Callable[[F], F]:
    """Add `--limit` to a command that lists things; `shown` says how many that is."""
    return click.option(
        "--limit",
        type=click.IntRange(min=0),
        metavar="N",
        help=f"{what}; 0: all.  [default: {SHOWN}; with --json: all]",
    )


def completes(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Have a shell complete a parameter by the names of files (`file`) or folders (`dir`)."""

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type=kind)]

    return complete


if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # Releases of click before 8.4 refuse the types.


class _At(_ParamType):
    """A timestamp, or a time in ISO 8601."""

    name = "at"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> int | datetime:
        if isinstance(value, int | datetime):
            return value
        with suppress(ValueError):
            return int(value)
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is neither a timestamp nor a time such as 2026-11-23T10:00.",
                parameter,
                context,
            )


at_option = click.option(
    "--at",
    type=_At(),
    metavar="TS|TIME",
    help="As it was at this timestamp or time (2026-11-23T10:00, local unless it has a zone).",
)


def snapshot_at(repo: Repository, at: int | datetime | None) -> Snapshot:
    """The snapshot that `--at` selects; of a time, says on stderr how exact it is."""
    if isinstance(at, datetime):
        ts, time = repo.timestamp_at(at)
        snapshot = repo.snapshot(ts)
        missing = (at.astimezone(time.tzinfo) - time).total_seconds()
        from percola.cli.display import say_note

        say_note(
            f"Read at timestamp {ts}, which was logged at {show_time(time)}: commits of the "
            f"{missing:,.1f} s until then are missing."
        )
        return snapshot
    return repo.snapshot(at)
