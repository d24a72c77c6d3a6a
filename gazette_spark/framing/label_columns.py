"""The column ``_labels``: a journal's labels as a map of all of them, or as a struct of those that are named.

A field of such a struct, as in ``_labels struct<region: string>``, takes the value of a label that has one. A
field of type ``array<string>`` takes all values, in order.
"""

from __future__ import annotations

import pyarrow as pa

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
