"""Makes the metadata columns, which describe a record's origin. A query has those that its schema names.

The column ``_labels`` has a journal's labels: a map of all of them, or a struct of those that its fields
name. A field of type ``string``, as in ``_labels struct<region: string>``, is for a label with a single
value. A field of type ``array<string>`` has all values, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gazette_spark._formats.arrays import int64_array
from gazette_spark._formats.framing import Block, gathered
from gazette_spark.errors import OptionError

Labels = tuple[tuple[str, tuple[str, ...]], ...]
"""Label names with their values, both sorted."""

LABELS_FORM = "map<string,array<string>>, or struct<…> whose fields, string or array<string>, name labels"

JOURNAL = "_journal"
OFFSET = "_offset"
"""Offset of the first byte of the record's frame: a query may start there."""
END_OFFSET = "_end_offset"
"""Offset just past the record's frame: a query may also start there."""
MOD_TIME = "_fragment_mod_time"
"""Time at which the fragment of the frame's first byte was stored, to the second; null while only brokers
have it. So this is the only column that may differ when the same offsets are read again."""
LABELS = "_labels"
"""The journal's labels when the batch was planned: all values of each name, in order."""
RECORD = "_record"
"""The record's bytes, without its frame."""

UUID = "_uuid"
"""Text of the message's UUID; null for a message that has none."""
PRODUCER = "_producer"
"""The message's producer, as twelve hexadecimal digits."""
CLOCK = "_clock"
"""The message's clock, as a signed number."""
FLAGS = "_flags"
ACK_OFFSET = "_ack_offset"
"""Offset of the message that committed this one. It is in the batch's range, whereas ``_offset`` may be
before it. Acknowledgements, and messages outside of transactions, have their own offset."""


@dataclass(frozen=True, slots=True)
class MetadataColumn:
    """A column that a schema may name."""

    ddl: str
    """The column's type in Spark's notation."""
    type: pa.DataType | None
    """The column's Arrow type; None for labels, which may have several types."""
    values: Callable[[Block], pa.Array] | None = None
    """Returns the values for a block's records; None for labels, and for columns that the scan adds."""


ORIGIN_COLUMNS = {
    JOURNAL: MetadataColumn("string", pa.string(), Block.journal_array),
    OFFSET: MetadataColumn("bigint", pa.int64(), Block.offset_array),
    END_OFFSET: MetadataColumn("bigint", pa.int64(), Block.end_offset_array),
    MOD_TIME: MetadataColumn("timestamp", pa.timestamp("us", "UTC"), Block.mod_time_array),
    LABELS: MetadataColumn(LABELS_FORM, None),
    RECORD: MetadataColumn("binary", pa.binary(), gathered),
}

MESSAGE_COLUMNS = {
    UUID: MetadataColumn("string", pa.string()),
    PRODUCER: MetadataColumn("string", pa.string()),
    CLOCK: MetadataColumn("bigint", pa.int64()),
    FLAGS: MetadataColumn("int", pa.int32()),
    ACK_OFFSET: MetadataColumn("bigint", pa.int64()),
}
"""Columns of queries of committed messages. In other queries these names are fields of the records."""

DDL = {name: column.ddl for name, column in ORIGIN_COLUMNS.items()}
MESSAGE_DDL = {name: column.ddl for name, column in MESSAGE_COLUMNS.items()}


def is_metadata(field: pa.Field, *, messages: bool = False) -> bool:
    """Return whether a field of a schema is one of these columns.

    Args:
        field: The field.
        messages: Whether columns of messages count as well.

    Raises:
        OptionError: the field has the name of such a column, but a different type.
    """
    columns = ORIGIN_COLUMNS | MESSAGE_COLUMNS if messages else ORIGIN_COLUMNS
    column = columns.get(field.name)
    if column is None:
        return False
    if not (is_labels_type(field.type) if column.type is None else field.type == column.type):
        raise OptionError("schema", f"{field.name} {field.type}", f"{field.name} {column.ddl}")
    return True


def metadata_column(block: Block, field: pa.Field, labels: Labels) -> pa.Array:
    """Return one of these columns for the records of a block."""
    # The scan of committed messages has read the UUIDs, and adds their columns to the block.
    if field.name in block.columns:
        return block.columns[field.name]
    values = ORIGIN_COLUMNS[field.name].values
    if values is not None:
        return values(block)
    # Make one row and repeat it, because building a map for each record would cost more than parsing it.
    row = labels_array(field.type, labels, block.journal)
    return row.take(int64_array(np.zeros(len(block), np.int64)))


def is_labels_type(kind: pa.DataType) -> bool:
    """Return whether a column of a type can take labels."""
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
        OptionError: a field has type string, but the label has several values.
    """
    if pa.types.is_map(kind):
        return pa.array([[(name, list(values)) for name, values in labels]], kind)
    by_name = dict(labels)
    row: dict[str, object] = {}
    for field in kind:
        values = by_name.get(field.name)
        if pa.types.is_list(field.type):
            row[field.name] = None if values is None else list(values)
            continue
        if values and len(values) > 1:
            got = f"_labels.{field.name} string, but journal {journal!r} has the values {', '.join(values)}"
            raise OptionError("schema", got, f"a field {field.name} array<string>")
        row[field.name] = values[0] if values else None
    return pa.array([row], kind)
