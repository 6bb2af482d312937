"""§2.4 `UPDATE`, `DELETE` and `MERGE` in SQL: changes to rows that the statement has read.

The catalog's tasks write rows as Spark has computed them, with a column `CHANGE` that says what
happens to each. A row is compared with what the statement read, at its timestamp:

    update   cells that differ are put, or deleted where the new value is null; a map replaces the
             whole family
    delete   all of the row's cells are deleted
    insert   the cells are put; UsageError if the row was there, or there are none

Nothing of the row may have changed since the statement read it. So cells that stay as they are, and
columns without a value, are locked until the commit as well, and every lock is on the condition
that the cell has not been written after that timestamp (`read_at` of `JointTransaction`). A change
by somebody else fails the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import DataType, MapType, StringType, StructType

from percola.cells import Cell
from percola.errors import UsageError
from percola.repository import Repository
from percola.schema import Column, Family, check_deletable
from percola.spark.encoding import Encoder
from percola.spark.options import Options
from percola.spark.read.scan import RangeReader
from percola.transactions.jobs import RowWrites

if TYPE_CHECKING:
    import pyarrow as pa

CHANGE: Final = "_percola_change"
"""The last column of the rows: "insert", "update" or "delete". The catalog's Java has it too."""

_ROWS: Final = 1000
"""How many rows are asked for at once; large ones come a few at a time."""


class ChangeEncoder:
    """Encodes batches of changed rows into writes; created in every process.

    Raises the errors of `Encoder`.
    """

    def __init__(self, repo: Repository, options: Options, schema: StructType) -> None:
        self._table = table = repo.table(options.table_name)
        self._reader = RangeReader(repo.context, table.name, options["changesAt"])
        written = StructType([field for field in schema if field.name != CHANGE])
        self._encoder = Encoder(
            table, written, options.row_column, limits=repo.context.store.limits
        )
        members = self._encoder.members
        names = written.fieldNames()
        self._texts = [
            (names.index(one.name), one)
            for one in members
            if one.codec.name == "json" and _is_text(written[one.name].dataType)
        ]
        self._columns = {one.key for one in members if isinstance(one, Column)}
        self._prefixes = tuple(one.prefix for one in members if isinstance(one, Family))

    def encode(self, batch: pa.RecordBatch) -> Iterator[RowWrites]:
        """The writes of a batch, row by row. All that the rows were is never in memory at once.

        Raises UsageError for an inserted row that was there or has no value, and for a deleted one
        that has contributed to a recipe's table, LockTimeoutError,
        SnapshotTooOldError, and the errors of `Encoder.encode`.
        """
        rows = self._encoder.encode(batch)
        kinds = batch.column(batch.num_columns - 1).to_pylist()
        left = list(range(len(rows)))
        while left:
            stored = self._reader.some_rows([rows[at].row for at in left[:_ROWS]])
            found = [at for at in left[:_ROWS] if rows[at].row in stored]
            left = [at for at in left[:_ROWS] if rows[at].row not in stored] + left[_ROWS:]
            before = [stored[rows[at].row] for at in found]
            same = self._same_texts(batch, found, before)
            for at, was, kept in zip(found, before, same, strict=True):
                one = rows[at]
                yield self._changes(kinds[at], one.row, was, {**one.cells, **kept})

    def _same_texts(
        self, batch: pa.RecordBatch, places: list[int], before: Sequence[Mapping[bytes, bytes]]
    ) -> list[dict[bytes, bytes]]:
        """The JSON whose text is what the row had: if it is encoded again, digits may be lost.

        `places` are the rows in the batch, and `before` is what they were.
        """
        found: list[dict[bytes, bytes]] = [{} for _ in before]
        for at, member in self._texts:
            values = batch.column(at).take(places).to_pylist()
            for kept, was, value in zip(found, before, values, strict=True):
                if isinstance(member, Family):
                    texts = {member[name].key: text for name, text in value or ()}
                else:
                    texts = {member.key: value}
                for column, text in texts.items():
                    if text is not None and was.get(column) == text.encode():
                        kept[column] = was[column]
        return found

    def _changes(
        self,
        kind: str,
        row: bytes,
        before: Mapping[bytes, bytes],
        after: Mapping[bytes, bytes | None],
    ) -> RowWrites:
        if kind == "insert" and before:
            raise UsageError(
                f"The row {self._table.shown_row(row)} of {self._table.name!r} is there already, "
                "so it cannot be inserted by MERGE, or by an UPDATE that changes row keys. Match "
                "rows by their key, or remove the row first."
            )
        if kind == "insert" and all(value is None for value in after.values()):
            raise UsageError(
                f"The row {self._table.shown_row(row)} of {self._table.name!r} would have no "
                "value, and a row without one does not exist: set another column than the row's, "
                "or leave such rows out with a condition (WHEN NOT MATCHED AND …)."
            )
        if kind == "delete":
            name = self._table.name
            check_deletable((Cell(name, row, column) for column in before), self._table.shown)
        cells: dict[bytes, bytes | None] = {}
        for column in before:
            if column not in after and (kind == "delete" or self._is_written(column)):
                cells[column] = None
        for column, value in after.items():
            if before.get(column) != value:
                cells[column] = value
        locks = (before.keys() | self._columns) - cells.keys()
        return RowWrites(self._table.name, row, cells, locks=locks)

    def _is_written(self, column: bytes) -> bool:
        """Whether the rows have a Spark column for it."""
        return column in self._columns or column.startswith(self._prefixes)


def _is_text(kind: DataType) -> bool:
    return isinstance(kind.valueType if isinstance(kind, MapType) else kind, StringType)
