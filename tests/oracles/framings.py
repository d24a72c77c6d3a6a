"""Framings implemented byte by byte, as a reference for the fast ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from gazette_spark._formats.arrays import Positions
from gazette_spark._formats.csv import CSV
from gazette_spark._formats.fixed import FIXED
from gazette_spark._formats.framing import RecordFraming
from gazette_spark._formats.lines import LINES
from gazette_spark._formats.raw import ChunkFraming

CHUNK = 7
"""Bytes per chunk of ``none``; small, because the contents are small."""

FAST: dict[str, RecordFraming] = {"lines": LINES, "csv": CSV, "fixed": FIXED, "none": ChunkFraming(CHUNK)}


def line_spans(data: bytes) -> tuple[Positions, Positions]:
    cut = LINES.cut(data, 0)
    assert cut.size == len(data)
    return cut.starts, cut.ends


@dataclass
class Found:
    """What a framing finds in bytes that begin at the start of a record."""

    records: list[tuple[int, bytes, int]] = field(default_factory=list)
    """Offset of the frame's first byte, the value, and the end offset of the frame, for each record."""
    boundaries: list[int] = field(default_factory=list)
    """Offsets where a batch may end, including the offset of the first byte."""
    skipped: list[int] = field(default_factory=list)
    """Offsets of bytes that begin no record."""


def read(framing: str, content: bytes, base: int = 0) -> Found:
    found = Found(boundaries=[base])
    {"lines": _lines, "csv": _csv, "fixed": _fixed, "none": _none}[framing](content, base, found)
    return found


def _lines(content: bytes, base: int, found: Found) -> None:
    at = 0
    while (end := content.find(b"\n", at)) >= 0:
        found.records.append((base + at, content[at:end], base + end + 1))
        found.boundaries.append(base + end + 1)
        at = end + 1


def _csv(content: bytes, base: int, found: Found) -> None:
    state, begin = "start", 0
    for at, octet in enumerate(content):
        if octet == ord('"'):
            state = {"start": "quoted", "plain": "plain", "quoted": "closed", "closed": "quoted"}[state]
        elif state == "quoted":
            continue
        elif octet == ord(","):
            state = "start"
        elif octet != ord("\n"):
            state = "plain"
        else:
            record = content[begin:at]
            if record not in (b"", b"\r"):
                found.records.append((base + begin, record, base + at + 1))
            found.boundaries.append(base + at + 1)
            state, begin = "start", at + 1


def _fixed(content: bytes, base: int, found: Found) -> None:
    magic, at = b"\x66\x33\x93\x36", 0
    while at < len(content):
        if not magic.startswith(content[at : at + 4]):
            found.skipped.append(base + at)
            at += 1
            continue
        end = at + 8 + int.from_bytes(content[at + 4 : at + 8], "little")
        if len(content) < max(at + 8, end):
            return
        found.records.append((base + at, content[at + 8 : end], base + end))
        found.boundaries.append(base + end)
        at = end


def _none(content: bytes, base: int, found: Found) -> None:
    at = base
    found.boundaries += range(base + 1, base + len(content) + 1)
    while at < base + len(content):
        end = min(at - at % CHUNK + CHUNK, base + len(content))
        found.records.append((at, content[at - base : end - base], end))
        at = end
