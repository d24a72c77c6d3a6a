"""Encodes and parses the commit log of a spool, which records the committed bytes. It does not open files.

Each record is one line, with a CRC-32 in hex before the JSON. The first line is the header, and each commit
adds one line. A crash can cut the last line short. Its commit was never acknowledged, and is ignored. A
complete line that does not match its CRC was damaged later, which is an error: stopping there would lose
commits that were acknowledged.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gazette_spark.errors import BrokerRootError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.strict_json import parse_json

FORMAT_VERSION = 1

Registers = tuple[tuple[str, str], ...]
"""Names and values of a journal's registers, sorted."""


@dataclass(frozen=True, slots=True)
class SpoolHeader:
    """First offset of a spool, and the journal's registers at that time."""

    journal: str
    begin: int
    codec: int
    registers: Registers


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One committed append, up to ``end``."""

    end: int
    sum: bytes
    """SHA-1 of the spool's bytes up to ``end``."""
    at: float
    """Unix seconds."""
    registers: Registers | None = None
    """The registers after it; None if they have not changed."""


@dataclass(frozen=True, slots=True)
class ParsedLog:
    """The readable records of a commit log."""

    header: SpoolHeader | None
    records: tuple[tuple[CommitRecord, int], ...]
    """Each commit with the log's length up to its end."""


def encode_header(header: SpoolHeader) -> bytes:
    """Return the first line of a commit log."""
    return _line(
        {
            "format_version": FORMAT_VERSION,
            "journal": header.journal,
            "begin": header.begin,
            "codec": header.codec,
            "registers": [list(pair) for pair in header.registers],
        }
    )


def encode_commit(record: CommitRecord) -> bytes:
    """Return the line of one commit."""
    value: dict[str, Any] = {"end": record.end, "sum": record.sum.hex(), "at": record.at}
    # Most appends do not change the registers, so their records need not repeat them.
    if record.registers is not None:
        value["registers"] = [list(pair) for pair in record.registers]
    return _line(value)


def parse_log(data: bytes, path: str = "") -> ParsedLog:
    """Read a commit log up to its last complete line. ``path`` names it in errors.

    Raises:
        BrokerRootError: a later version of this code wrote it, or it is damaged.
    """
    header: SpoolHeader | None = None
    records: list[tuple[CommitRecord, int]] = []
    position = 0
    # The bytes after the last newline are a record that a crash cut short. It was never acknowledged.
    while (newline := data.find(b"\n", position)) >= 0:
        try:
            # Eight digits and a blank come before the JSON.
            checksum, line = data[position : position + 9], data[position + 9 : newline]
            if newline < position + 9 or checksum != b"%08x " % zlib.crc32(line):
                raise ValueError("a line does not have the checksum that it begins with")
            value = parse_json(line)
            if not isinstance(value, dict):
                raise TypeError("a line is not a JSON object")
            if header is None:
                header = _parse_header(value, path)
            else:
                records.append((_parse_commit(value), newline + 1))
        except (ValueError, KeyError, TypeError) as error:
            problem = f"the commit log is damaged at byte {position} ({error}); restore it from a copy"
            raise BrokerRootError(path, problem) from error
        position = newline + 1
    return ParsedLog(header, tuple(records))


def registers_of(labels: pb.LabelSet) -> Registers:
    """Return a label set as pairs."""
    return tuple((label.name, label.value) for label in labels.labels)


def label_set_of(registers: Registers) -> pb.LabelSet:
    """Return pairs as a label set."""
    return pb.LabelSet(labels=[pb.Label(name=name, value=value) for name, value in registers])


def _line(value: Mapping[str, Any]) -> bytes:
    # JSON escapes newlines, so a newline is always the end of a record.
    body = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _parse_header(value: dict[str, Any], path: str) -> SpoolHeader:
    # A later version may have records that this code would misread. Treating it as an empty log would lose
    # its bytes.
    if (version := value.get("format_version")) != FORMAT_VERSION:
        problem = f"the commit log has format_version {version}, this code reads {FORMAT_VERSION}"
        raise BrokerRootError(path, problem)
    match value:
        case {
            "journal": str(journal),
            "begin": int(begin),
            "codec": int(codec),
            "registers": list(registers),
        }:
            return SpoolHeader(journal, begin, codec, _pairs(registers))
    raise ValueError("its header lacks a field")


def _parse_commit(value: dict[str, Any]) -> CommitRecord:
    registers = value.get("registers")
    match value:
        case {"end": int(end), "sum": str(digest), "at": int() | float() as at}:
            return CommitRecord(
                end, bytes.fromhex(digest), at, None if registers is None else _pairs(registers)
            )
    raise ValueError("a commit lacks a field")


def _pairs(value: list[list[str]]) -> Registers:
    pairs = tuple((name, text) for name, text in value)
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        raise TypeError("registers are not texts")
    return pairs
