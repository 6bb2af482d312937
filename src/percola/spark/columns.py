"""§2.4 Mapping a table to Spark: column types, and cells as Arrow batches.

    Percola                 Spark, by default                     or, if the schema has it
    ----------------------  ------------------------------------  -----------------------------
    the row's key           `row` string, or the type of `rows=`
    column of bytes         binary
    column of str           string
    column of int           bigint                                int, smallint, tinyint, decimal,
                                                                  double
    column of float         double                                float
    column of bool          boolean
    column of JSON          string: the JSON text                 struct, array, map, any primitive
    decimal, date, array …  the type of that name                 a wider one: `percola.spark.types`
    column of another codec binary: its bytes
    family `links` of T     `links` map<string, T>                one column of it: `links:name`
    weak column             does not appear

The same rules apply to reading, writing and the change feed. Missing cells are null, and so is a
family without cells.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, MapType, NullType, StringType, StructField, StructType

from percola.cells import Cell
from percola.codecs import Codec
from percola.errors import SchemaError, UnknownColumnError, WrongTypeError
from percola.schema import Column, Family, Table, WeakColumn
from percola.spark.arrow_values import decoded, for_arrow, is_fixed, is_nested
from percola.spark.json_values import JsonShapeError, json_converter, json_decoder, within_float32
from percola.spark.types import (
    is_typed,
    other_types,
    reads,
    row_codec,
    row_type,
    type_of,
    writes,
)
from percola.spark.versions import arrow_schema
from percola.store.base import CellScan
from percola.store.capabilities import cell_scan

ROW: Final = "row"
"""The default name of the Spark column with the row's key; the option rowColumn changes it."""

NEVER_NULL: Final = pa.field("", pa.bool_(), nullable=False)
"""For `check_nulls`: no value of the array is null, whatever is in the values."""

Rows: TypeAlias = Sequence[tuple[bytes, Mapping[bytes, bytes]]]
"""Rows as a snapshot reads them: the encoded key, and the encoded values by column."""

Raws: TypeAlias = "Sequence[bytes | None] | pa.Array"
"""Encoded values: bytes, or an Arrow array of bytes."""

Members: TypeAlias = "Mapping[str, Column[Any, Any] | Family[Any, Any] | WeakColumn[Any]]"
"""The columns and families of a table by name."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A Spark column and the Percola column or family behind it.

    Attributes:
        field: the Spark column.
        member: the Percola column, or the family that is a map in Spark; None is the row's key.
        row_codec: the codec of the row's key; None if it is text or bytes, and for other columns.
    """

    field: StructField
    member: Column[Any, Any] | Family[Any, Any] | None
    row_codec: Codec[Any] | None = None

    @property
    def name(self) -> str:
        """The column's name in Spark."""
        return self.field.name

    @property
    def value_type(self) -> DataType:
        """The type of one cell's value: the column's own, or that of the map's values."""
        if isinstance(self.member, Family):
            assert isinstance(self.field.dataType, MapType)
            return self.field.dataType.valueType
        return self.field.dataType

    @property
    def wanted(self) -> tuple[bytes, bool] | None:
        """The argument for `Store.scan`: (name, is_prefix); None for the row's key."""
        if self.member is None:
            return None
        if isinstance(self.member, Family):
            return self.member.prefix, True
        return self.member.key, False


# --- The Spark schema of a table -----------------------------------------------------------


def fields_of(table: Table[Any], row_name: str = ROW) -> StructType:
    """The table's Spark schema: the row's key, then columns and families in declaration order.

    Raises SchemaError if a column of the table has the name of the row's key.
    """
    fields = [StructField(row_name, row_type(table))]
    for member in table.members:
        if isinstance(member, WeakColumn):
            continue
        _check_row_name(table, member.name, row_name)
        fields.append(StructField(member.name, _default_type(member)))
    return StructType(fields)


def _default_type(member: Column[Any, Any] | Family[Any, Any]) -> DataType:
    plain = type_of(member.codec)
    return MapType(StringType(), plain) if isinstance(member, Family) else plain


def _check_row_name(table: Table[Any], name: str, row_name: str) -> None:
    # Spark's names are case-insensitive.
    if name.casefold() == row_name.casefold():
        raise SchemaError(
            f"The table {table.name!r} has a column named {name!r}, which is what the row's key is "
            "called in Spark. Give the key another name with the option rowColumn."
        )


def chosen(
    table: Table[Any],
    schema: StructType | None = None,
    names: str | None = None,
    row_name: str = ROW,
    *,
    writing: bool = False,
) -> list[Chosen]:
    """Resolve the requested Spark columns, in order.

    Args:
        table: the table from the repository's schema.
        schema: the Spark columns to read (or write), with their types.
        names: without a schema, names separated by commas, or a JSON list of them; the row's key
            is first unless it is named. Without either, all of `fields_of`.
        row_name: the name of the row's key in Spark.
        writing: whether values of these types are written, rather than read.

    Raises UnknownColumnError for unknown columns, WrongTypeError for a type that a column cannot
    have, SchemaError for names that collide and for an empty list of names.
    """
    members = {member.name: member for member in table.members}
    if schema is None:
        whole = fields_of(table, row_name)
        if names is None:
            return [_chosen_field(table, members, field, row_name) for field in whole]
        listed = _listed(names)
        if row_name not in listed:
            listed.insert(0, row_name)
        return [_chosen_name(table, members, name, row_name) for name in listed]
    found = [_chosen_field(table, members, field, row_name, writing) for field in schema]
    seen: set[str] = set()
    for one in found:
        if one.name in seen:
            raise SchemaError(f"The schema names the column {one.name!r} twice.")
        seen.add(one.name)
    if not found:
        raise SchemaError("The schema names no column: leave it out to read all of them.")
    return found


def _listed(names: str) -> list[str]:
    """The names in the option `columns`."""
    if names.lstrip().startswith("["):
        try:
            listed = json.loads(names)
        except ValueError:
            listed = None
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise SchemaError(f"The columns {names!r} are not a JSON list of names.")
    else:
        listed = [name.strip() for name in names.split(",") if name.strip()]
    if not listed:
        raise SchemaError("The option columns names no column: leave it out to read all of them.")
    return list(dict.fromkeys(listed))


def _member(
    table: Table[Any], by_name: Members, name: str, row_name: str
) -> Column[Any, Any] | Family[Any, Any] | None:
    """The column or family that a Spark column's name refers to; None is the row's key."""
    if name == row_name:
        for member in by_name.values():
            if not isinstance(member, WeakColumn):
                _check_row_name(table, member.name, row_name)
        return None
    found = by_name.get(name)
    if found is None:
        family, colon, qualifier = name.partition(":")
        owner = by_name.get(family)
        if colon and isinstance(owner, Family):
            return owner[qualifier]
    if isinstance(found, WeakColumn):
        raise UnknownColumnError(
            f"The column {found!r} is weak: it can only be notified, and has no values in Spark."
        )
    if found is None:
        known = [row_name, *(n for n, m in by_name.items() if not isinstance(m, WeakColumn))]
        folded = {one.casefold(): one for one in known}
        near = difflib.get_close_matches(name.casefold(), folded, 1)
        hint = f" Did you mean {folded[near[0]]!r}?" if near else ""
        raise UnknownColumnError(
            f"The table {table.name!r} has no column {name!r}. In Spark it has: "
            f"{', '.join(known)}.{hint}"
        )
    return found


def _chosen_name(table: Table[Any], members: Members, name: str, row_name: str) -> Chosen:
    member = _member(table, members, name, row_name)
    kind = row_type(table) if member is None else _default_type(member)
    return Chosen(StructField(name, kind), member, row_codec(table) if member is None else None)


def _chosen_field(
    table: Table[Any],
    members: Members,
    field: StructField,
    row_name: str,
    writing: bool = False,
) -> Chosen:
    member = _member(table, members, field.name, row_name)
    kind = field.dataType
    if member is None:
        codec = row_codec(table)
        if codec is None:
            right = type(kind) is type(row_type(table))
        else:
            right = writes(codec, kind) if writing else reads(codec, kind)
        if not right:
            raise WrongTypeError(
                f"Rows of the table {table.name!r} are {table.rows_name}, so {field.name!r} is "
                f"{row_type(table).simpleString()} in Spark, not {kind.simpleString()}."
            )
        return Chosen(field, None, codec)
    if isinstance(member, Family):
        if not isinstance(kind, MapType) or not isinstance(kind.keyType, StringType):
            raise WrongTypeError(
                f"{member!r} is a family, so {field.name!r} is "
                f"{_default_type(member).simpleString()} in Spark, not {kind.simpleString()}. "
                f"One column of it is called '{member.name}:NAME'."
            )
        kind = kind.valueType
    if not (writes if writing else reads)(member.codec, kind):
        usual = type_of(member.codec).simpleString()
        casts = writing and (is_typed(member.codec) or isinstance(kind, NullType))
        cast = f": cast it to {usual}" if casts else ""
        raise WrongTypeError(
            f"The column {member!r} holds {member.codec.name}, which is {usual} in Spark"
            f"{other_types(member.codec)}; it cannot be {kind.simpleString()}{cast}."
        )
    return Chosen(field, member)


# --- Cells to Arrow ------------------------------------------------------------------------


def schema_of(columns: Iterable[Chosen]) -> pa.Schema:
    """The Arrow schema of the columns, exactly as Spark expects it of a reader's batches."""
    return arrow_schema(StructType([one.field for one in columns]))


def to_batch(columns: Sequence[Chosen], rows: Rows) -> pa.RecordBatch:
    """Rows as an Arrow batch, one column for each of `columns`.

    Raises WrongTypeError, naming the cell, for a value that is not of its column's type.
    """
    schema = schema_of(columns)
    return pa.RecordBatch.from_arrays(arrays_of(columns, cells_of(rows), schema), schema=schema)


def cells_of(rows: Rows) -> CellScan:
    """Rows cell after cell, as `arrays_of` takes them."""
    return cell_scan((key, values.items()) for key, values in rows)


def arrays_of(columns: Sequence[Chosen], cells: CellScan, schema: pa.Schema) -> list[pa.Array]:
    """Rows, none of whose cells is blocked: for each of `columns` an Arrow array.

    Its type is that of the field of `schema`, as `schema_of` gives it. Raises WrongTypeError,
    naming the cell, for a value that is not of its column's type.
    """
    arrays = []
    row_of = rows_of(cells)
    places = _places(cells, {one.member.key for one in columns if isinstance(one.member, Column)})
    for one, field in zip(columns, schema, strict=True):
        member = one.member
        if member is None:
            arrays.append(row_array(cells.rows, field.type, one.row_codec))
        elif isinstance(member, Family):
            arrays.append(_family_array(one, member, cells, row_of, field.type))
        else:
            mine = places[member.key]
            at = np.full(len(cells.rows), -1)
            at[row_of[mine]] = mine
            raws = cells.values.take(pa.array(at, mask=at < 0))
            arrays.append(value_array(one, raws, cells.rows, field.type))
    return arrays


def _places(cells: CellScan, names: Collection[bytes]) -> dict[bytes, Any]:
    """Where the cells of each of these columns are: by one look at all cells."""
    if not names:
        return {}
    listed = list(names)
    column_of = pc.index_in(cells.columns, pa.array(listed, cells.columns.type)).fill_null(-1)
    numbers = column_of.to_numpy(zero_copy_only=False)
    order = np.argsort(numbers, kind="stable")
    bounds = np.searchsorted(numbers[order], np.arange(len(listed) + 1))
    return {name: order[bounds[at] : bounds[at + 1]] for at, name in enumerate(listed)}


def rows_of(cells: CellScan) -> Any:
    """The number of each cell's row, as a NumPy array."""
    return np.repeat(np.arange(len(cells.rows)), np.diff(cells.offsets.to_numpy()))


def _where(mask: pa.Array) -> Any:
    return np.flatnonzero(mask.to_numpy(zero_copy_only=False))


def _binary(raws: Raws) -> pa.Array:
    return raws if isinstance(raws, pa.Array) else pa.array(raws, pa.binary())


def row_array(keys: Raws, kind: pa.DataType, codec: Codec[Any] | None = None) -> pa.Array:
    """Row keys as an Arrow array of `kind`: text, bytes or, with a codec, what it decodes.

    Raises WrongTypeError for a key that is not of that type.
    """
    raw = _binary(keys)
    try:
        return raw.cast(kind) if codec is None else decoded(codec, raw, kind)
    except pa.ArrowInvalid as error:
        for key in raw.to_pylist():
            try:
                value = codec.decode(key) if codec else key.decode()
            except ValueError:
                what = f"{codec.name}, but it is not" if codec else "text, but it is not UTF-8"
                raise WrongTypeError(f"The row {key!r} should be {what}.") from None
            try:
                pa.scalar(value, kind)
            except _UNFIT:
                raise WrongTypeError(f"The row {value!r} cannot be read as {kind}.") from error
        raise


def value_array(one: Chosen, raws: Raws, keys: Raws, kind: pa.DataType) -> pa.Array:
    """The encoded values of a column as an Arrow array of `kind`; None is null.

    `keys` are the rows of the values, for errors: WrongTypeError names the cell.
    """
    member = one.member
    assert isinstance(member, Column)
    table, column = member.table, member.key
    return cells_array(
        member.codec,
        one.value_type,
        raws,
        kind,
        lambda at: table.shown(Cell(table.name, _binary(keys)[at].as_py(), column)),
        nullable=one.field.nullable,
    )


def cells_array(
    codec: Codec[Any],
    spark: DataType,
    raws: Raws,
    kind: pa.DataType,
    cell: Callable[[int], str],
    *,
    nullable: bool = True,
) -> pa.Array:
    """Encoded values as an Arrow array of `kind`, the Arrow type of Spark's type `spark`.

    `cell` names the cell of a value: WrongTypeError has that of the first not of the type, or that
    is null, or has a null in it, where the type or `nullable` has none.
    """
    found = _cells_array(codec, spark, raws, kind, cell)
    check_nulls(found, pa.field("", kind, nullable), cell)
    return found


def check_nulls(array: pa.Array, field: pa.Field, cell: Callable[[int], str]) -> None:
    """Raise WrongTypeError for a null where a field has none: Spark does not look for it."""
    if not _forbids_nulls(field) or not _has_null(array, field):
        return
    at = next(at for at in range(len(array)) if _has_null(array[at : at + 1], field))
    what = "has a null inside of its value" if array[at].is_valid else "has no value"
    raise WrongTypeError(
        f"{cell(at)} {what}, and the frame's schema says that there is none: any row may lack a "
        "cell. Let the schema have nulls there (nullable=True, or without NOT NULL)."
    )


def _forbids_nulls(field: pa.Field) -> bool:
    """Whether no value of a field is null, or nothing at some place inside of one."""
    return not field.nullable or any(map(_forbids_nulls, _inside(field.type)))


def _has_null(array: pa.Array, field: pa.Field) -> bool:
    if not field.nullable and array.null_count:
        return True
    inside = [one for one in _inside(field.type) if _forbids_nulls(one)]
    if not inside:
        return False
    there = array.take(pa.array(_where(pc.is_valid(array))))  # A copy: a slice's items are all.
    if pa.types.is_struct(field.type):
        return any(_has_null(pc.struct_field(there, one.name), one) for one in inside)
    values = there.items if pa.types.is_map(field.type) else there.flatten()
    return _has_null(values, inside[0])


def _inside(kind: pa.DataType) -> list[pa.Field]:
    """The fields of a type whose values contain others; of a map that of its values."""
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.item_field]
    return [kind.value_field] if pa.types.is_list(kind) else []


def _cells_array(
    codec: Codec[Any],
    spark: DataType,
    raws: Raws,
    kind: pa.DataType,
    cell: Callable[[int], str],
) -> pa.Array:
    as_text = codec.name == "json" and isinstance(spark, StringType)
    if is_fixed(codec):
        try:
            return decoded(codec, _binary(raws), kind)
        except pa.ArrowInvalid:
            pass  # Decode value by value, to find the invalid one.
    elif as_text or not (codec.name == "json" or is_nested(codec)):
        array = _binary(raws)
        try:
            return array if pa.types.is_binary(kind) else _parsed(codec, array, kind)
        except pa.ArrowInvalid:
            pass  # Decode value by value: Arrow cannot parse it, or to find the invalid one.
    decode: Callable[[bytes], Any] = bytes.decode if as_text else codec.decode
    convert: Callable[[Any], Any] | None = None
    if codec.name == "json" and not as_text:
        convert = json_converter(spark)
        decode = json_decoder(spark)
    elif is_nested(codec):
        convert = for_arrow(codec)
    elif pa.types.is_float32(kind):
        convert = within_float32
    values: list[Any] = []
    encoded = raws.to_pylist() if isinstance(raws, pa.Array) else raws
    for at, raw in enumerate(encoded):
        try:
            value = None if raw is None else decode(raw)
            values.append(convert(value) if convert and raw is not None else value)
        except (ValueError, RecursionError) as error:
            raise _unreadable(codec, spark, cell(at), raw, error) from error
    try:
        return pa.array(values, kind)
    except _UNFIT as error:
        for at, value in enumerate(values):
            try:
                pa.array([value], kind)
            except _UNFIT as wrong:
                raise _unreadable(codec, spark, cell(at), encoded[at], wrong) from wrong
        raise _unreadable(codec, spark, cell(0), encoded[0], error) from error


_UNFIT: Final = (ValueError, OverflowError, TypeError, pa.ArrowException)


def _parsed(codec: Codec[Any], raw: pa.Array, kind: pa.DataType) -> pa.Array:
    text = raw.cast(pa.string())
    if pa.types.is_string(kind):
        return text
    if codec.name == "int" and pa.types.is_floating(kind):
        text = text.cast(pa.int64())  # From text, a number of any size would be rounded.
    found = text.cast(kind)
    if pa.types.is_float32(kind) and pc.any(pc.is_inf(found)).as_py():
        raise pa.ArrowInvalid("one may be beyond the range of 32 bits")
    return found


def _unreadable(
    codec: Codec[Any], spark: DataType, cell: str, raw: bytes | None, error: Exception
) -> WrongTypeError:
    reason = f" ({error})" if isinstance(error, JsonShapeError) else ""
    hint = " A schema may give it decimal(38,0)." if codec.name == "int" else ""
    return WrongTypeError(
        f"{cell} holds {(raw or b'')[:40]!r}, which cannot be read as {spark.simpleString()}"
        f"{reason}.{hint}"
    )


def _family_array(
    one: Chosen, family: Family[Any, Any], cells: CellScan, row_of: Any, kind: pa.DataType
) -> pa.Array:
    mine = _where(pc.starts_with(cells.columns, family.prefix))
    names, raws, row_of = cells.columns.take(mine), cells.values.take(mine), row_of[mine]

    def cell(at: int) -> str:
        row, column = cells.rows[row_of[at]].as_py(), names[at].as_py()
        return family.table.shown(Cell(family.table.name, row, column))

    items = cells_array(family.codec, one.value_type, raws, kind.item_type, cell)
    counts = np.bincount(row_of, minlength=len(cells.rows))
    offsets = np.append(0, np.cumsum(counts)).astype(np.int32)
    # A map without entries is null.
    nullable = pa.array(offsets, mask=np.append(counts == 0, False))
    maps = pa.MapArray.from_arrays(nullable, qualifiers(names, family), items, type=kind)
    if not one.field.nullable:
        name, table = family.name.encode(), family.table
        check_nulls(
            maps,
            NEVER_NULL,  # What is in the maps has been checked.
            lambda at: table.shown(Cell(table.name, cells.rows[at].as_py(), name)),
        )
    return maps


def qualifiers(names: pa.Array, family: Family[Any, Any]) -> pa.Array:
    """The names of a family's columns without what they all begin with, as text.

    Raises WrongTypeError for one that is not UTF-8.
    """
    count, skip = len(names), len(family.prefix)
    if not count:
        return pa.array([], pa.string())
    _, ends, raw = names.buffers()
    offsets = np.frombuffer(ends, np.int32, count + 1, 4 * names.offset)
    lengths = np.diff(offsets) - skip
    kept = np.append(0, np.cumsum(lengths)).astype(np.int32)
    taken = np.arange(kept[-1]) + np.repeat(offsets[:-1] + skip - kept[:-1], lengths)
    buffers = [None, pa.py_buffer(kept), pa.py_buffer(np.frombuffer(raw, np.uint8)[taken])]
    found = pa.Array.from_buffers(pa.binary(), count, buffers)
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid as error:
        for name in names.to_pylist():
            try:
                name.decode()
            except ValueError:
                raise WrongTypeError(
                    f"The table {family.table.name!r} has a column {name!r}, which should be text, "
                    f"as all names of the family {family.name!r} are, but is not UTF-8."
                ) from error
        raise
