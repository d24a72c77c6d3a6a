"""Records of JSON to the user's columns: one row from each record, from that record alone.

The fast half (``framing.json_fast``) gives a whole block to ``pyarrow.json``. Blocks it refuses go through
the exact half (``framing.json_exact``), record by record; see ``framing.rows``. A record that only the fast
half accepts is given to it alone: a row never depends on its neighbours.

With a column for rescued data, a field that does not fit its column, or has no column, does not make a record
malformed. The column has the text of such fields as one JSON object, with the record's journal and offset. A
record that is no JSON object is there as text under ``_record``. A record that is no JSON object is malformed
all the same.

Rows are those of Spark's ``from_json``; ``docs/formats.md`` has where they differ on purpose, and why.
"""

from __future__ import annotations

from dataclasses import dataclass

from gazette_spark.errors import OptionError
from gazette_spark.framing.json_exact import ExactReader, readable
from gazette_spark.framing.json_fast import MAX_TRIM, FastReader
from gazette_spark.framing.json_values import SPARKS, JsonDialect
from gazette_spark.framing.rows import Row, RowFormat, RowParser


@dataclass(frozen=True, slots=True)
class JsonFormat(RowFormat):
    """Format of JSON records and the wanted columns. Can be pickled."""

    dialect: JsonDialect = SPARKS

    def __post_init__(self) -> None:
        RowFormat.__post_init__(self)
        for field in self.data_fields:
            if not readable(field.type):
                raise OptionError("schema", f"{field.name} {field.type}", _TYPES)


class JsonParser(RowParser):
    """Parses blocks of JSON records. For one thread.

    ``fast=False`` leaves out the fast half: for tests and for measuring.
    """

    def __init__(self, wanted: JsonFormat, *, fast: bool = True) -> None:
        fields, rescue = wanted.data_fields, wanted.rescues
        dialect = wanted.dialect
        reader = FastReader(fields, extra_fields=not rescue, dialect=dialect) if fast else None
        super().__init__(wanted, ExactReader(fields, rescue=rescue, dialect=dialect), reader)

    def may_be_fast(self, row: Row, record: bytes) -> bool:
        """Tell whether it looks like an object, which the exact half did not take for one."""
        return row.values is None and b"{" in record[: MAX_TRIM + 1]


_TYPES = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal, string, binary, date, timestamp, "
    "timestamp_ntz, variant, and arrays, structs and maps from strings of these"
)
