"""Records of JSON to the user's columns: one row from each record, from that record alone.

The fast half (``framing.json_fast``) gives a whole block to ``pyarrow.json``. What it does not take goes
through the exact half (``framing.json_exact``), record by record; ``framing.rows`` has how. A record that
only the fast half accepts is given to it alone: a row never depends on its neighbours.

Where a column for rescued data is asked for, what does not fit its column (or has none) makes a record
malformed no longer: the fields' own text comes as one JSON object in that column, with the record's
journal and offset, and a record that is no JSON object as text under ``_record``. A record that is no JSON
object is malformed all the same.

Where this differs from Spark's own JSON reader, on purpose:

- An empty record is malformed (Spark skips empty lines of a file), so rows and records count the same.
- A record is one object. An array at the top is malformed (Spark: several rows), so is anything after
  the object's end (Spark ignores it).
- Timestamps without a zone are UTC (Spark: the session's zone). Zone names are not read. Years have
  four digits. A zone in a value for TIMESTAMP_NTZ is applied, not refused.
- Invalid UTF-8 is malformed; ``columnNameOfCorruptRecord`` then shows it with U+FFFD.
- A value that does not fit becomes null where it stands, in arrays, maps and structs too, and the rest
  of the row is kept (Spark: mostly so).
- Of a repeated name in an object the last counts, in maps too.
- Nesting below a field is limited to 500 levels, unless no column reads it; Spark's parser limits the
  length of numbers and strings too.
- ``_journal``, ``_offset`` and other such columns never come from the record's own fields.
"""

from __future__ import annotations

from gazette_spark.errors import OptionError
from gazette_spark.framing.json_exact import ExactReader, readable
from gazette_spark.framing.json_fast import MAX_TRIM, FastReader
from gazette_spark.framing.rows import Row, RowFormat, RowParser


class JsonFormat(RowFormat):
    """What is wanted from JSON records. Can be pickled."""

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
        reader = FastReader(fields, strangers=not rescue) if fast else None
        super().__init__(wanted, ExactReader(fields, rescue=rescue), reader)

    def may_be_fast(self, row: Row, record: bytes) -> bool:
        """Tell whether it looks like an object, which the exact half did not take for one."""
        return row.values is None and b"{" in record[: MAX_TRIM + 1]


_TYPES = (
    "boolean, tinyint, smallint, int, bigint, float, double, decimal, string, binary, date, timestamp, "
    "timestamp_ntz, and arrays, structs and maps from strings of these"
)
