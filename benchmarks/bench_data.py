"""Creates the data of the end-to-end benchmark: two shapes of JSON lines, in fragment files of journals.

:data:`SHAPES` has both. ``flat`` is ideal for a benchmark: always the same seven fields. ``events`` is like
real data: nested structs and arrays, nulls, optional fields, escapes, and text beyond ASCII.

Each journal has its own files under ``{data}/{codec}/bench/{layout}/part-N/``, named as Gazette names
them. All readers use these same files: brokers list them in their store, ``spark.read`` takes the folder,
and Kafka is filled from them. They are made once, and kept between runs.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from harness import MEGABYTE

from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment

LINE_BYTES = 182
"""Length of a record in bytes, including its newline."""

FRAGMENT_LINES = (64 << 20) // LINE_BYTES
"""Number of records in a fragment. Each ends with a complete record, as in Gazette if appends do."""

GZIP_LEVEL = 6
"""The compression level of Gazette's brokers."""

SCHEMA = "id BIGINT, ts STRING, user STRING, action STRING, amount DOUBLE, ok BOOLEAN, note STRING"

ACTIONS = ("view", "click", "buy", "return")


def make_line(number: int) -> bytes:
    """Return a record of exactly ``LINE_BYTES`` bytes."""
    head = (
        f'{{"id": {number}, "ts": "2026-11-21T{number // 3600 % 24:02}:{number // 60 % 60:02}:'
        f'{number % 60:02}.000Z", "user": "user-{number * 7919 % 100_003}", '
        f'"action": "{ACTIONS[number % 4]}", "amount": {number % 10_000 / 100}, '
        f'"ok": {"true" if number % 3 else "false"}, "note": "'
    )
    note = f"{number * 2_654_435_761 % (1 << 64):016x}" * 6
    return f'{head}{note[: LINE_BYTES - 3 - len(head)]}"}}\n'.encode()


EVENT_BYTES = 448
"""Approximate mean length of an event in bytes, including its newline."""

EVENT_SCHEMA = (
    "id BIGINT, ts TIMESTAMP, type STRING, session STRING, "
    "user STRUCT<id: STRING, name: STRING, country: STRING, plan: STRING>, "
    "page STRUCT<url: STRING, referrer: STRING, title: STRING>, "
    "items ARRAY<STRUCT<sku: STRING, qty: INT, price: DOUBLE, tags: ARRAY<STRING>>>, "
    "amount DOUBLE, ok BOOLEAN, geo STRUCT<lat: DOUBLE, lon: DOUBLE>, note STRING"
)

NAMES = ("Zoë Ångström", "李小龙", 'O\'Brien "Bo"', "Ana", "Jörg Müller", "Иван", "Sam", "Fatima 🌍")
NOTES = ("", "line one\nline two", "a \\ b\tc", "“quoted”, fine", "plain words of a customer, " * 3, "ok")


def make_event(number: int) -> bytes:
    """Return an event whose content depends only on its number."""
    mixed = number * 2_654_435_761 % (1 << 64)
    event: dict[str, object] = {
        "id": number,
        "ts": f"2026-11-21T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}."
        f"{mixed % 1000:03}Z",
        "type": ACTIONS[mixed % 4],
        "session": f"{mixed:016x}",
        "user": {
            "id": f"user-{mixed % 100_003}",
            "name": NAMES[mixed % 8],
            "country": ("DE", "US", "JP", None)[mixed % 4],
            **({"plan": "pro"} if number % 5 == 0 else {}),
        },
        "page": {
            "url": f"https://shop.example/p/{mixed % 9973}?q=a%20b&ref={mixed % 97}",
            "referrer": None if number % 3 else 'https://search.example/?q="boots"',
            "title": ("Boots & more", "Größe wählen", "カート", "Sale")[number % 4],
        },
        "items": [
            {
                "sku": f"sku-{(mixed + at) % 5003}",
                "qty": 1 + at,
                "price": (mixed + at) % 10_000 / 100,
                "tags": ["new", None, "sale"][: (mixed + at) % 4],
            }
            for at in range(number % 4)
        ],
        "amount": None if number % 11 == 0 else number % 10_000 / 100,
        "ok": number % 3 != 0,
        "note": NOTES[number % 6],
    }
    if number % 2:
        event["geo"] = {"lat": mixed % 180_000 / 1000 - 90, "lon": mixed % 360_000 / 1000 - 180}
    if number % 7 == 0:
        event[f"experiment_{number % 3}"] = {"arm": "b", "since": number}
    return json.dumps(event, ensure_ascii=number % 4 == 0, separators=(",", ":")).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of records."""

    line: Callable[[int], bytes]
    """Function that makes the record of a number."""
    schema: str
    mean_bytes: int
    about: str


SHAPES = {
    "flat": Shape(make_line, SCHEMA, LINE_BYTES, f"flat lines of {LINE_BYTES} bytes"),
    "events": Shape(make_event, EVENT_SCHEMA, EVENT_BYTES, "nested events of 448 bytes on average"),
}


@dataclass(frozen=True, slots=True)
class DataSet:
    """The lines ``0 .. rows-1`` in some journals."""

    folder: Path
    """File root of a store with the journals."""
    journals: int
    rows: int
    codec: int
    distinct: int = 0
    """Number of distinct lines ``0 .. distinct-1``, which are repeated; 0 if all lines differ."""
    shape: str = "flat"
    stored_bytes: int = 0
    """Number of bytes of all records, if their lengths differ."""

    @property
    def prefix(self) -> str:
        """Prefix of the journals' names."""
        kind = "repeated" if self.distinct else "gzip" if self.codec == pb.GZIP else "plain"
        kind = kind if self.shape == "flat" else f"{self.shape}-{kind}"
        return f"bench/{kind}/{self.rows}-{self.journals}/"

    @property
    def schema(self) -> str:
        """Columns of the records."""
        return SHAPES[self.shape].schema

    @property
    def names(self) -> list[str]:
        """The journals."""
        return [f"{self.prefix}part-{part}" for part in range(self.journals)]

    @property
    def path(self) -> Path:
        """Folder of all fragment files."""
        return self.folder / self.prefix.rstrip("/")

    @property
    def size_bytes(self) -> int:
        """Number of uncompressed bytes of all records."""
        return self.stored_bytes or self.rows * LINE_BYTES

    @property
    def id_sum(self) -> int:
        """Sum of the records' ids."""
        each = min(self.rows, self.distinct or self.rows)
        return each * (each - 1) // 2 * (self.rows // each)

    @property
    def label(self) -> str:
        """Readable size of the records and number of journals."""
        journals = "one journal" if self.journals == 1 else f"{self.journals} journals"
        return f"{self.size_bytes / MEGABYTE:,.0f} MB in {journals}; {SHAPES[self.shape].about}"


def make(folder: Path, size_bytes: int, journals: int, codec: int = pb.NONE, shape: str = "flat") -> DataSet:
    """Return a data set of about this size. It is made if it does not exist yet."""
    kind = SHAPES[shape]
    found = DataSet(folder, journals, size_bytes // kind.mean_bytes, codec, shape=shape)
    done = found.path / "done"
    if not done.exists():
        heads = dict.fromkeys(found.names, 0)
        lines = min((64 << 20) // kind.mean_bytes, -(-found.rows // journals))
        for turn, content in enumerate(_contents(found.rows, lines, kind.line)):
            journal = found.names[turn % journals]
            _store(folder, journal, heads[journal], content, codec)
            heads[journal] += len(content)
        done.write_text(str(sum(heads.values())))
    return found if shape == "flat" else replace(found, stored_bytes=int(done.read_text()))


def make_repeated(folder: Path, size_bytes: int) -> DataSet:
    """Return a large journal whose fragments are all the same file, because only memory is measured."""
    fragments = -(-size_bytes // (FRAGMENT_LINES * LINE_BYTES))
    found = DataSet(folder, 1, fragments * FRAGMENT_LINES, pb.NONE, FRAGMENT_LINES)
    (journal,) = found.names
    if not (found.path / "done").exists():
        content = next(_contents(FRAGMENT_LINES, FRAGMENT_LINES))
        first = _store(folder, journal, 0, content, pb.NONE)
        digest = _sum(content)
        for begin in range(len(content), fragments * len(content), len(content)):
            fragment = Fragment(journal, begin, begin + len(content), digest, pb.NONE)
            path = folder / fragment.content_path
            path.unlink(missing_ok=True)
            os.link(first, path)
        (found.path / "done").touch()
    return found


def link_store(sets: list[DataSet], root: Path) -> None:
    """Link the fragments of data sets into a broker's root, so that files it adds there are not kept."""
    for each in sets:
        for source in each.path.rglob("*-*"):
            if source.is_file():
                target = root / source.relative_to(each.folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(source, target)


def _contents(rows: int, step: int, line: Callable[[int], bytes] = make_line) -> Iterator[bytes]:
    for first in range(0, rows, step):
        yield b"".join(map(line, range(first, min(first + step, rows))))


def _sum(content: bytes) -> bytes:
    return hashlib.sha1(content, usedforsecurity=False).digest()


def _store(folder: Path, journal: str, begin: int, content: bytes, codec: int) -> Path:
    fragment = Fragment(journal, begin, begin + len(content), _sum(content), codec)
    path = folder / fragment.content_path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, GZIP_LEVEL) if codec == pb.GZIP else content)
    return path
