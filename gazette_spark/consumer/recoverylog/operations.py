"""Encodes recorded operations: authors, the checksum chain, and frames. Pure.

An operation is a ``recoverylog.RecordedOp`` in a frame of the framing ``fixed``. The bytes of a write follow
its frame. Each operation contains the checksum of the chain before it, so it fits in only one place.
"""

from __future__ import annotations

import posixpath
import secrets

from gazette_spark._formats.fixed import frame
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import recoverylog_pb2 as pr
from gazette_spark.protocol.labels import label_set

AUTHOR_REGISTER = "author"
"""Register of a log that names the author who may append operations."""

# Gazette writes authors in base 32, as Go's strconv does. The register must have the same text for members in
# both languages.
_DIGITS = "0123456789abcdefghijklmnopqrstuv"


def _table() -> tuple[int, ...]:
    table = []
    for octet in range(256):
        crc = octet
        for _ in range(8):
            # This is the reversed polynomial of CRC-32C (Castagnoli). zlib's crc32 has another polynomial,
            # and the standard library has no function for this one.
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_CRC_TABLE = _table()


def crc32c(data: bytes, checksum: int = 0) -> int:
    """Return the CRC-32C of bytes that follow those of ``checksum``.

    This takes one step of Python for each byte. An operation has about 25 bytes; the bytes of a write are not
    included.
    """
    table = _CRC_TABLE
    crc = checksum ^ 0xFFFFFFFF
    for octet in data:
        crc = table[(crc ^ octet) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def new_author() -> int:
    """Return the id of a new recorder, a random number from 1 to 2³²-1."""
    # Two recorders with the same author could both append. Among 10,000 random authors, two are equal with a
    # probability of about 1 %, and only authors of one log that run at the same time matter. 0 means no
    # author.
    return secrets.randbelow((1 << 32) - 1) + 1


def fence_of(author: int) -> pb.LabelSet:
    """Return the register that allows only one author to append."""
    digits = ""
    while author:
        author, digit = divmod(author, 32)
        digits = _DIGITS[digit] + digits
    return label_set({AUTHOR_REGISTER: digits})


def encode(op: pr.RecordedOp) -> tuple[bytes, bytes]:
    """Return an operation's frame and the payload in it, of which the checksum is computed."""
    # The checksum of the chain is computed from these bytes. A player takes them from the log, because
    # another language may encode the same operation differently.
    payload = op.SerializeToString()
    return frame(payload), payload


def recorded_path(path: str) -> str:
    """Return a path relative to the recorded directory in the form of logs: clean, with a leading slash.

    Raises:
        ValueError: the path is the directory itself.
    """
    # A leading ".." stops at the root, so no path leaves the directory.
    clean = posixpath.normpath("/" + path.lstrip("/"))
    if clean == "/":
        raise ValueError(f"expected the path of a file below the recorded directory, got {path!r}")
    return clean
