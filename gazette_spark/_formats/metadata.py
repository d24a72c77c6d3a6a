"""Columns of a record's origin. A query gets those that its schema names.

The column ``_labels`` has a journal's labels: a map of all of them, or a struct of those that its fields
name. A field of such a struct, as in ``_labels struct<region: string>``, takes the value of a label that has
one. A field of type ``array<string>`` takes all values, in order.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gazette_spark._formats.arrays import int64_array
from gazette_spark._formats.framing import Block, gathered
from gazette_spark.errors import OptionError

Labels = tuple[tuple[str, tuple[str, ...]], ...]
"""Label names with their values, both in order."""

LABELS_FORM = "map<string,array<string>>, or struct<…> whose fields, string or array<string>, name labels"


def is_labels_type(kind: pa.DataType) -> bool:
    """Tell whether a column of a type can take labels."""
    if pa.types.is_map(kind):
        return bool(pa.types.is_string(kind.key_type)) and _is_texts(kind.item_type)
    if not pa.types.is_struct(kind) or not kind.num_fields:
        return False
    return all(field.nullable and (pa.types.is_string(field.type) or _is_texts(field.type)) for field in kind)


def _is_texts(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) and pa.types.is_string(kind.value_type))


def labels_array(kind: pa.DataType, labels: Labels, journal: str) -> pa.Array:
    """Return the labels of a journal as an array of one row.

    Raises:
        OptionError: a field takes one value and the label has several.
    """
    if pa.types.is_map(kind):
        return pa.array([[(name, list(values)) for name, values in labels]], kind)
    found = dict(labels)
    row: dict[str, object] = {}
    for field in kind:
        if pa.types.is_list(field.type):
            row[field.name] = list(found[field.name]) if field.name in found else None
        else:
            row[field.name] = label_value(labels, field.name, journal)
    return pa.array([row], kind)


def label_value(labels: Labels, name: str, journal: str) -> str | None:
    """Return the value of a label, None if the journal does not have it.

    Raises:
        OptionError: it has several.
    """
    values = dict(labels).get(name, ())
    if len(values) > 1:
        got = f"_labels.{name} string, and journal {journal!r} has the values {', '.join(values)}"
        raise OptionError("schema", got, f"a field {name} array<string>")
    return values[0] if values else None


JOURNAL = "_journal"
OFFSET = "_offset"
"""Offset of the first byte of the record's frame: a query may start there."""
END_OFFSET = "_end_offset"
"""Offset just past the record's frame: a query may start there, too."""
MOD_TIME = "_fragment_mod_time"
"""Time at which the fragment of the frame's first byte was stored, to the second; null while
only brokers have it. So it is the one column that may differ when the same offsets are read again."""
LABELS = "_labels"
"""The journal's labels, as they were when the batch was planned: all values of each name, in order."""
RECORD = "_record"
"""The record's bytes, without its frame, whatever the values of other columns."""

DDL = {
    JOURNAL: "string",
    OFFSET: "bigint",
    END_OFFSET: "bigint",
    MOD_TIME: "timestamp",
    LABELS: LABELS_FORM,
    RECORD: "binary",
}
"""Names and types of the columns, as Spark writes types."""

UUID = "_uuid"
"""Text of the message's UUID; null for a message that has none."""
PRODUCER = "_producer"
"""The message's producer, as twelve hexadecimal digits."""
CLOCK = "_clock"
"""The message's clock, as a signed number."""
FLAGS = "_flags"
ACK_OFFSET = "_ack_offset"
"""Where the message begins that committed this one. It lies in the bytes that the batch reads; ``_offset``
may lie before these. Acknowledgements, and messages outside of transactions, have their own offset."""

MESSAGE_DDL = {UUID: "string", PRODUCER: "string", CLOCK: "bigint", FLAGS: "int", ACK_OFFSET: "bigint"}
"""Columns of queries of committed messages; the same names are fields of the records in other queries."""

_TYPES = {
    JOURNAL: pa.string(),
    OFFSET: pa.int64(),
    END_OFFSET: pa.int64(),
    MOD_TIME: pa.timestamp("us", "UTC"),
    RECORD: pa.binary(),
    UUID: pa.string(),
    PRODUCER: pa.string(),
    CLOCK: pa.int64(),
    FLAGS: pa.int32(),
    ACK_OFFSET: pa.int64(),
}


def is_metadata(column: pa.Field, *, messages: bool = False) -> bool:
    """Tell whether a column is one of these; those of messages count only if wanted.

    Raises:
        OptionError: by its name it is, but not by its type.
    """
    kind, forms = column.type, DDL | MESSAGE_DDL if messages else DDL
    if column.name not in forms:
        return False
    if column.name == LABELS:
        right = is_labels_type(kind)
    else:
        right = kind == _TYPES[column.name]
    if not right:
        raise OptionError("schema", f"{column.name} {kind}", f"{column.name} {forms[column.name]}")
    return True


def metadata_column(block: Block, column: pa.Field, labels: Labels) -> pa.Array:
    """Return one of these columns for the records of a block."""
    known = block.columns.get(column.name)
    return _origin_column(block, column, labels) if known is None else known


def _origin_column(block: Block, column: pa.Field, labels: Labels) -> pa.Array:
    match column.name:
        case "_journal":
            return block.journal_array()
        case "_offset":
            return block.offset_array()
        case "_end_offset":
            return block.end_offset_array()
        case "_fragment_mod_time":
            return block.mod_time_array()
        case "_record":
            return gathered(block)
    one = labels_array(column.type, labels, block.journal)
    return one.take(int64_array(np.zeros(len(block), np.int64)))
