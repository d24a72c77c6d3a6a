"""Makes Arrow arrays from numpy arrays and bytes, without Arrow's own conversions.

``pa.array()``, ``pa.scalar()`` and ``pa.repeat()`` import pandas if it is installed, which costs every new
Spark worker half a second. Arrays made from buffers cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    import numpy.typing as npt

Positions: TypeAlias = "npt.NDArray[np.int64]"
"""Byte positions, one per record."""
Mask: TypeAlias = "npt.NDArray[np.bool_]"


def int64_array(values: Positions) -> pa.Int64Array:
    """Return numbers as an Arrow array, without a copy."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)], null_count=0)


def bool_array(values: Mask) -> pa.BooleanArray:
    """Return flags as an Arrow array."""
    bits = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.BooleanArray.from_buffers(pa.bool_(), len(values), [None, bits], null_count=0)


def unpacked(bits: pa.Buffer, offset: int, count: int) -> Mask:
    """Return ``count`` flags of an Arrow bitmap, from a bit offset on."""
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=offset + count, bitorder="little")
    return flags[offset:].astype(np.bool_)


def valid(values: pa.Array) -> Mask:
    """Return a mask of an array's items that are not null."""
    bits = values.buffers()[0]
    return np.ones(len(values), np.bool_) if bits is None else unpacked(bits, values.offset, len(values))


def null_rows(values: pa.Array) -> Positions:
    """Return the indices of an array's nulls."""
    return np.flatnonzero(~valid(values)) if values.null_count else np.empty(0, np.int64)


def text_array(texts: Sequence[str | None]) -> pa.StringArray:
    """Return texts as an Arrow array."""
    data = [(text or "").encode() for text in texts]
    bounds = pa.py_buffer(np.cumsum([0, *map(len, data)], dtype=np.int32))
    filled = bool_array(np.array([text is not None for text in texts], np.bool_)).buffers()[1]
    return pa.StringArray.from_buffers(len(texts), bounds, pa.py_buffer(b"".join(data)), filled)


def valid_texts(texts: pa.StringArray) -> pa.StringArray:
    """Return texts with bytes that are not UTF-8 replaced by U+FFFD, as Java's decoder does.

    Texts of Spark may have such bytes, for example those of ``CAST(X'FF' AS STRING)``.
    """
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        data = texts.view(pa.binary()).to_pylist()
        return text_array([None if text is None else text.decode("utf-8", "replace") for text in data])
    return texts


def string_array(texts: Sequence[str]) -> pa.StringArray:
    """Return texts as an Arrow array. Half a surrogate pair, which has no UTF-8, becomes ``?`` as in Java."""
    sizes: Iterable[int] = map(len, texts)
    joined = "".join(texts)
    data = joined.encode("utf-8", "replace")
    # ASCII has as many bytes as characters, and needs no second pass over the texts.
    if len(data) != len(joined):
        sizes = [len(text.encode("utf-8", "replace")) for text in texts]
    bounds = np.fromiter(accumulate(sizes, initial=0), np.int32, len(texts) + 1)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(texts), buffers, null_count=0)


def number_array(values: Sequence[float | None], kind: pa.DataType) -> pa.Array:
    """Return numbers as an Arrow array of a fixed-width type, such as integers, doubles and timestamps."""
    dtype = f"{'f' if pa.types.is_floating(kind) else 'i'}{kind.bit_width // 8}"
    data = pa.py_buffer(np.array([0 if value is None else value for value in values], dtype))
    filled = bool_array(np.array([value is not None for value in values], np.bool_)).buffers()[1]
    return pa.Array.from_buffers(kind, len(values), [filled, data])


def text_scalar(text: str | None) -> pa.StringScalar:
    """Return a text as an Arrow scalar."""
    return text_array([text])[0]


def binary_array(values: Sequence[bytes]) -> pa.BinaryArray:
    """Return byte strings as an Arrow array."""
    bounds = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return packed_binary(len(values), bounds, b"".join(values))


def binary_scalar(value: bytes) -> pa.BinaryScalar:
    """Return a byte string as an Arrow scalar."""
    return binary_array([value])[0]


def packed_binary(count: int, bounds: npt.NDArray[np.int32], data: bytes | np.ndarray) -> pa.BinaryArray:
    """Return an array of contiguous values in data; there are ``count + 1`` bounds."""
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), count, buffers, null_count=0)


def value_bounds(values: pa.Array) -> Positions:
    """Return the bounds of the values of a binary or string array in its data: ``(n + 1,)``."""
    if not len(values):
        return np.zeros(1, np.int64)
    large = pa.types.is_large_binary(values.type) or pa.types.is_large_string(values.type)
    bounds = np.frombuffer(values.buffers()[1], np.int64 if large else np.int32)
    return bounds[values.offset : values.offset + len(values) + 1].astype(np.int64)


def value_octets(values: pa.Array) -> np.ndarray:
    """Return all data of a binary or string array, to which :func:`value_bounds` refers."""
    data = values.buffers()[2] if len(values) else None
    return np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)


def value_bytes(values: pa.Array) -> bytes:
    """Return the values of a binary or string array, one after the other."""
    bounds = value_bounds(values)
    return value_octets(values)[bounds[0] : bounds[-1]].tobytes()


def between(
    data: bytes, begins: npt.NDArray[np.signedinteger], ends: npt.NDArray[np.signedinteger]
) -> pa.BinaryArray:
    """Return slices of bytes, in ascending order, as one array without the bytes between them.

    The slices and the bytes between them are treated as the values of one array. Arrow then copies every
    second value, at memory speed.
    """
    count = len(begins)
    if not count:
        return packed_binary(0, np.zeros(1, np.int32), data)
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2], bounds[1::2] = begins, ends
    return packed_binary(2 * count - 1, bounds, data).take(int64_array(np.arange(0, 2 * count, 2)))


def slices(
    data: bytes, begins: npt.NDArray[np.signedinteger], ends: npt.NDArray[np.signedinteger]
) -> pa.StringArray:
    """Return ascending slices of valid UTF-8 as one packed array."""
    packed = between(data, begins, ends)
    return pa.Array.from_buffers(pa.string(), len(packed), packed.buffers(), null_count=0)


def invalid_utf8_at(data: bytes) -> int:
    """Return the index of the first byte that is not UTF-8; -1 if all are."""
    if data.isascii():
        return -1
    # Arrow only examines bytes, whereas decode() makes wide characters, which takes 20 times as long.
    bounds = pa.py_buffer(np.array([0, len(data)], np.int64))
    try:
        pa.LargeStringArray.from_buffers(1, bounds, pa.py_buffer(data), None, 0).validate(full=True)
    except pa.ArrowInvalid:
        try:
            # This is slow, but it runs only for a block that is known to be invalid, and it finds the place.
            data.decode()
        except UnicodeDecodeError as error:
            return error.start
    return -1
