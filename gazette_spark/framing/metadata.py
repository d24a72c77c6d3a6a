"""Columns of a record's origin. A query gets those that its schema names."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gazette_spark.errors import OptionError
from gazette_spark.framing import label_columns
from gazette_spark.framing.base import Block, gathered, int64_array
from gazette_spark.framing.label_columns import LABELS_FORM, is_labels_type, labels_array

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

Labels = label_columns.Labels


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
