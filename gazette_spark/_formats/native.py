"""Converts JSON records to columns with a small library in Rust, the native decoder, if it was built.

The library (``native/`` in the repository) reads a block in one pass, directly into Arrow's memory. It
supports only the common forms of values. A record with any other form is a *suspect*: its row is null, and
the reference parser reads it again. If a type is not supported, or timestamps have a pattern, the parsers in
Python read the whole query.
"""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gazette_spark._formats.arrays import Positions
from gazette_spark._formats.framing import Block
from gazette_spark._formats.library import library
from gazette_spark._formats.timestamps import UTC
from gazette_spark._formats.values import JsonDialect, is_variant

_STRICT, _LOCAL_IS_UTC = 1, 2
_ARROW_ARRAY_WORDS = 10
"""Size of Arrow's ``struct ArrowArray``, in 64-bit words."""

_CODES = {
    pa.bool_(): b"b",
    pa.int8(): b"1",
    pa.int16(): b"2",
    pa.int32(): b"4",
    pa.int64(): b"8",
    pa.float32(): b"f",
    pa.float64(): b"d",
    pa.string(): b"s",
    pa.date32(): b"D",
}


class NativeDecoder:
    """Decodes blocks by one schema. For one thread."""

    def __init__(self, functions: ctypes.CDLL, decoder: int, schema: pa.Schema) -> None:
        """Make a decoder; see :meth:`of`."""
        self._decode = functions.gazette_json_decode
        self._decoder = decoder
        self._schema = schema
        # Columns that were decoded keep their own memory, so the decoder may be freed before them.
        weakref.finalize(self, functions.gazette_json_decoder_free, decoder)

    @classmethod
    def of(
        cls, fields: Sequence[pa.Field], *, extra_fields: bool, dialect: JsonDialect
    ) -> NativeDecoder | None:
        """Return a decoder; None without the library, or if it does not support a type or the dialect.

        Without ``extra_fields``, a record with a field that the schema lacks is a suspect.
        """
        functions = library().functions
        code = _struct_code(fields, dialect)
        if functions is None or code is None:
            return None
        flags = (0 if extra_fields else _STRICT) | (_LOCAL_IS_UTC if dialect.time_zone == UTC else 0)
        decoder = functions.gazette_json_decoder_new(code, len(code), flags)
        return cls(functions, decoder, pa.schema(fields)) if decoder else None

    def decode(self, block: Block) -> tuple[list[pa.Array], Positions] | None:
        """Return the columns of a block and the indices of its suspects, whose rows are null.

        The result is None if the library refuses the block, for example one of 2 GiB.
        """
        count = len(block)
        # The library gets bare addresses. The local variables keep the arrays alive until the call has
        # returned.
        starts = np.ascontiguousarray(block.starts, np.int64)
        ends = np.ascontiguousarray(block.ends, np.int64)
        suspects = np.empty(count, np.int64)
        array = (ctypes.c_int64 * _ARROW_ARRAY_WORDS)()
        suspect_count = self._decode(
            self._decoder,
            block.data,
            len(block.data),
            starts.ctypes.data,
            ends.ctypes.data,
            count,
            ctypes.addressof(array),
            suspects.ctypes.data,
        )
        if suspect_count < 0:
            return None
        # Arrow takes over the buffers that the library has filled, without a copy, and frees them through it.
        batch = pa.RecordBatch._import_from_c(ctypes.addressof(array), self._schema)
        return batch.columns, suspects[:suspect_count]


def _struct_code(fields: Sequence[pa.Field], dialect: JsonDialect) -> bytes | None:
    """Return the code of a struct, as ``native/src/schema.rs`` describes it; None if it is not supported."""
    code = [b"{", struct.pack("<I", len(fields))]
    for field in fields:
        inner = _code(field.type, dialect)
        if inner is None:
            return None
        name = field.name.encode()
        code += [struct.pack("<I", len(name)), name, inner]
    return b"".join(code)


def _code(kind: pa.DataType, dialect: JsonDialect) -> bytes | None:
    if pa.types.is_struct(kind) and not is_variant(kind):
        return _struct_code(list(kind), dialect)
    if pa.types.is_list(kind):
        inner = _code(kind.value_type, dialect)
        return None if inner is None else b"[" + inner
    if pa.types.is_decimal128(kind):
        return b"c" + bytes([kind.precision, kind.scale]) if kind.scale >= 0 else None
    if pa.types.is_temporal(kind) and dialect.usual_zone(kind) is None:
        return None  # The values have a pattern.
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return b"t" if kind.tz else b"n"
    return _CODES.get(kind)
