"""§2.4 A family as long rows: one Spark row for each of its cells.

    row     qualifier  value
    ------  ---------  -----
    page-1  nav        3
    page-1  text       1

Selected by the option `family=links`. A row with a million links becomes a million Spark rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import DataType, StringType, StructField, StructType

from percola import Family, SchemaError, UnknownColumnError, WrongTypeError
from percola.cells import Cell
from percola.spark.columns import cells_array, qualifiers, row_array
from percola.spark.types import reads, row_codec, row_type, type_of
from percola.spark.versions import arrow_schema

QUALIFIER: Final = "qualifier"
VALUE: Final = "value"


@dataclass(frozen=True, slots=True)
class LongRows:
    """A family's cells as rows, with some of the columns row, qualifier and value.

    Attributes:
        family: the family.
        schema: the columns, in their order.
        row_name: the name of the row key's column.
    """

    family: Family[Any, Any]
    schema: StructType
    row_name: str

    def batch(self, rows: pa.Array, names: pa.Array, raws: pa.Array) -> pa.RecordBatch:
        """Cells as an Arrow batch: the row, the column's name and the encoded value of each.

        Raises WrongTypeError, which names a cell whose value is not of the family's type.
        """
        table = self.family.table

        def cell(at: int) -> str:
            return table.shown(Cell(table.name, rows[at].as_py(), names[at].as_py()))

        schema = arrow_schema(self.schema)
        arrays = []
        for field, spark in zip(schema, self.schema, strict=True):
            if field.name == self.row_name:
                arrays.append(row_array(rows, field.type, row_codec(self.family.table)))
            elif field.name == QUALIFIER:
                arrays.append(qualifiers(names, self.family))
            else:
                codec = self.family.codec
                arrays.append(cells_array(codec, spark.dataType, raws, field.type, cell))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def long_fields(family: Family[Any, Any], row_name: str) -> StructType:
    """The columns of long rows; SchemaError if the row key's name collides with another."""
    return StructType([StructField(name, kind) for name, kind in _types(family, row_name).items()])


def _types(family: Family[Any, Any], row_name: str) -> dict[str, DataType]:
    if row_name in (QUALIFIER, VALUE):
        raise SchemaError(
            f"The row's key cannot be called {row_name!r} beside the family's {QUALIFIER} and "
            f"{VALUE}: choose another rowColumn."
        )
    return {
        row_name: row_type(family.table),
        QUALIFIER: StringType(),
        VALUE: type_of(family.codec),
    }


def long_rows(family: Family[Any, Any], schema: StructType, row_name: str) -> LongRows:
    """Check the requested columns; raises UnknownColumnError and WrongTypeError."""
    types = _types(family, row_name)
    for field in schema:
        usual = types.get(field.name)
        if usual is None:
            raise UnknownColumnError(
                f"The family {family!r} as rows has no column {field.name!r}; it has "
                f"{', '.join(types)}."
            )
        codec = row_codec(family.table) if field.name == row_name else None
        if field.name == VALUE:
            codec = family.codec
        right = reads(codec, field.dataType) if codec else type(field.dataType) is type(usual)
        if not right:
            raise WrongTypeError(
                f"The column {field.name!r} of the family {family!r} is {usual.simpleString()}; "
                f"it cannot be {field.dataType.simpleString()}."
            )
    return LongRows(family, schema, row_name)
