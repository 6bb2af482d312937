"""§2.4 The options of `format("percola")`: names, values, and the roles that accept them.

Batch and stream readers and writers all parse their options here, so an option means the same
everywhere, and one that is misspelt, invalid or for another role is refused before any job runs.
Names are case-insensitive, as everywhere in Spark.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import percola
from percola import ConflictingOptionsError, Repository, Table
from percola.connect.address import is_memory, portable
from percola.debezium import DECIMALS
from percola.spark.chunks import CHUNK_BYTES, CHUNK_ROWS
from percola.spark.columns import ROW
from percola.spark.versions import check_read_limits

READ: Final = "spark.read"
WRITE: Final = "df.write"
READ_STREAM: Final = "spark.readStream"
WRITE_STREAM: Final = "df.writeStream"
_ALL: Final = (READ, WRITE, READ_STREAM, WRITE_STREAM)
_READS: Final = (READ, READ_STREAM)
_WRITES: Final = (WRITE, WRITE_STREAM)

# What Spark itself adds to the options of a source.
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        name: as spelled in the documentation.
        parse: from the text to the value; ValueError, whose message ends a sentence, if invalid.
        default: the value if the option is not given.
        roles: the readers and writers that accept it.
    """

    name: str
    parse: Callable[[str], Any]
    default: Any
    roles: tuple[str, ...]


def _text(text: str) -> str:
    return text


def _name(text: str) -> str:
    if not text:
        raise ValueError("is empty")
    return text


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("is neither 'true' nor 'false'")
    return text.lower() == "true"


def _one_of(*known: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in known:
            raise ValueError(f"is none of {', '.join(known)}")
        return text.lower()

    return parse


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError("is not a whole number from 1 up")
    return number


def _timestamp(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ValueError("is not a timestamp of Percola")
    return int(text)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e9:
        raise ValueError("is not a number of seconds from 0 up")
    return number


def _moment(*words: str) -> Callable[[str], str | int]:
    def parse(text: str) -> str | int:
        if text.lower() in words:
            return text.lower()
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise ValueError(f"is neither a timestamp of Percola nor {' or '.join(words)}")
        return int(text)

    return parse


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("is not a time such as 2026-11-23T10:00") from None


OPTIONS: Final = (
    Option("path", _name, None, _ALL),
    Option("table", _name, None, _ALL),
    Option("rowColumn", _name, ROW, _ALL),
    Option("columns", _name, None, _READS),
    Option("snapshot", _moment("latest"), "latest", (READ,)),
    Option("timestampAsOf", _time, None, (READ,)),
    # The catalog's queries to the source: `percola.spark.catalog.describe`.
    Option("describe", _one_of("repository", "table"), None, (READ,)),
    Option("allRows", _flag, False, (READ,)),
    Option("startRow", _text, "", (READ,)),
    Option("endRow", _text, "", (READ,)),
    Option("prefix", _text, "", (READ,)),
    Option("onLock", _one_of("wait", "fail", "avoid"), "wait", (READ,)),
    Option("lockWaitSeconds", _seconds, 60.0, _ALL),
    Option("family", _name, None, (READ,)),
    Option("partitions", _count, None, _READS),
    Option("pushFilters", _flag, False, (READ,)),
    Option("holdSeconds", _seconds, None, _READS),
    # Spark does not tell a data source's schema() whether it is for a table or for its feed.
    Option("feedColumns", _flag, False, (READ_STREAM,)),
    Option("beforeImages", _flag, False, (READ_STREAM,)),
    Option("envelope", _one_of("debezium"), None, (READ_STREAM,)),
    Option("envelopeName", _name, "percola", (READ_STREAM,)),
    Option("envelopeSchemas", _flag, False, (READ_STREAM,)),
    Option("envelopeDecimals", _one_of(*DECIMALS), DECIMALS[0], (READ_STREAM,)),
    Option("startingTimestamp", _moment("latest", "earliest"), None, (READ_STREAM,)),
    Option("maxRowsPerTrigger", _count, None, (READ_STREAM,)),
    Option("maxBytesPerTrigger", _count, None, (READ_STREAM,)),
    Option("atomicity", _one_of("row", "chunk", "job"), "row", (WRITE,)),
    Option("chunkRows", _count, CHUNK_ROWS, (WRITE,)),
    Option("chunkBytes", _count, CHUNK_BYTES, (WRITE,)),
    Option("nulls", _one_of("ignore", "delete"), "ignore", _WRITES),
    Option("deleteColumn", _name, None, _WRITES),
    # The catalog's UPDATE, DELETE and MERGE: `percola.spark.write.changes`.
    Option("changesAt", _timestamp, None, (WRITE,)),
    Option("notify", _flag, True, _WRITES),
    Option("ttlSeconds", _seconds, 120.0, _WRITES),
)
OF_STREAMS: Final = tuple(one.name for one in OPTIONS if one.roles == (READ_STREAM,))
"""The options that only a stream from a table has."""
OF_FEED_SCHEMAS: Final = ("feedColumns", "beforeImages", "envelope")
"""The options that give a stream another schema than the table's."""

_BY_NAME: Final = {option.name.lower(): option for option in OPTIONS}

_CATALOG: Final = (
    "SQL finds the tables of a repository in a catalog of Percola: after "
    "percola.spark.configure(spark, catalogs={'web': './repo'}) they are web.TABLE."
)


class Options:
    """The validated options of a user, with defaults for the others.

    Args:
        given: by name, in any case, as Spark passes them.

    Raises ConflictingOptionsError, NotARepositoryError for an address of another kind,
    SparkTooOldError for an option that the installed PySpark cannot follow.

    Attributes:
        address: where the repository is, the same in every process of this machine.
        table_name: the table's name.
        row_column: what the row's key is called in Spark.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._values: dict[str, Any] = {}
        for name, text in given.items():
            option = _BY_NAME.get(name.lower())
            if option is None:
                if name.lower() in _SPARKS_OWN:
                    continue
                raise ConflictingOptionsError(_unknown(name))
            try:
                self._values[option.name] = option.parse(str(text))
            except ValueError as error:
                raise ConflictingOptionsError(
                    f"The option {option.name} {error}: {text!r}."
                ) from None
        limits = [name for name in ("maxRowsPerTrigger", "maxBytesPerTrigger") if name in self]
        if len(limits) > 1:
            raise ConflictingOptionsError(
                f"{' and '.join(limits)} both limit a micro-batch: leave one of the two out."
            )
        for name in limits:
            check_read_limits(
                f"The option {name}",
                "leave it out, and each micro-batch takes all changes that there are; with a "
                "shorter trigger(processingTime=…) these are fewer.",
            )
        path = self["path"]
        if path is None:
            raise ConflictingOptionsError(
                f"No repository is named: say where it is, as in load('./repo'). {_CATALOG}"
            )
        if is_memory(path):
            raise ConflictingOptionsError(
                "A memory repository lives in one process, and Spark has many: use a folder."
            )
        if self["table"] is None and self["describe"] != "repository":
            raise ConflictingOptionsError("No table is named: add option('table', NAME).")
        self.address = portable(path)
        self.table_name: str = self["table"] or ""
        self.row_column: str = self["rowColumn"]

    def check_envelope(self) -> None:
        """Raise ConflictingOptionsError for options that a stream of events, or of rows, lacks."""
        if "envelope" in self:
            for name in ("feedColumns", "beforeImages"):
                if self.flag(name):
                    raise ConflictingOptionsError(
                        f"With an envelope a stream has the columns key and value: leave {name} "
                        "out. What it asks for is in the value."
                    )
            return
        for name in self._values:
            if name.startswith("envelope"):
                raise ConflictingOptionsError(
                    f"The option {name} is for events: add option('envelope', 'debezium')."
                )

    def __getitem__(self, name: str) -> Any:
        """The value of an option, by its documented name."""
        return self._values.get(name, _BY_NAME[name.lower()].default)

    def __contains__(self, name: str) -> bool:
        """Whether the user has given it."""
        return name in self._values

    def text(self, name: str) -> str | None:
        """The value of an option that is text."""
        value = self[name]
        assert value is None or isinstance(value, str)
        return value

    def count(self, name: str) -> int | None:
        """The value of an option that is a whole number."""
        value = self[name]
        assert value is None or isinstance(value, int)
        return value

    def flag(self, name: str) -> bool:
        """The value of an option that is true or false."""
        return bool(self[name])

    def seconds(self, name: str, default: float | None = None) -> float:
        """The value of an option in seconds; `default` stands in where there is none of its own."""
        value = self[name]
        return float(default if value is None and default is not None else value)

    def check_role(self, role: str) -> None:
        """Raise ConflictingOptionsError if one of the options given is not for `role`."""
        for name in self._values:
            roles = _BY_NAME[name.lower()].roles
            if role not in roles:
                raise ConflictingOptionsError(
                    f"The option {name} is for {_listed(roles)}; {role} does not know it."
                )

    def open(self) -> Repository:
        """Open the repository; NotARepositoryError if there is none."""
        return percola.open(
            self.address, create=False, lock_wait_seconds=self.seconds("lockWaitSeconds")
        )

    def table(self, repository: Repository) -> Table[Any]:
        """The table; UnknownTableError if the repository has none of that name."""
        return repository.table(self.table_name)


def _unknown(name: str) -> str:
    # What Spark's own catalog adds to the options of a table that it is to keep.
    if name.lower() == "owner" or name.lower().startswith("option."):
        return (
            f"CREATE TABLE … USING percola would enter the table in Spark's own catalog. {_CATALOG}"
        )
    if name.lower() == "paths":  # Spark's, for a list in load.
        return "A frame reads one repository: load each path by itself, and put frames together."
    near = difflib.get_close_matches(name.lower(), _BY_NAME, 1)
    if name.lower() == "versionasof":  # As other sources call it.
        near = ["snapshot"]
    hint = f" Did you mean {_BY_NAME[near[0]].name}?" if near else ""
    known = ", ".join(option.name for option in OPTIONS)
    return f"The option {name!r} is not known.{hint} Known are: {known}."


def _listed(names: Iterable[str]) -> str:
    return " and ".join(names)
