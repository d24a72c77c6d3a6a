"""Fragment stores built by hand, in memory or in a directory, and queries over them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from gazette_spark._formats.registry import framing_named
from gazette_spark._options.source import SourceOptions, parse_options
from gazette_spark._planning.cutter import PieceScan, raw_record_batches
from gazette_spark._planning.pieces import Piece
from gazette_spark._planning.plan import Planner
from gazette_spark._planning.store_layout import StoredFragment, StoreFile
from gazette_spark._planning.stores import (
    StoreFiles,
    StoreJournals,
    reach_of,
    store_selection,
    with_fragments,
)
from gazette_spark.broker.storage.encoders import encode
from gazette_spark.client import FragmentReader
from gazette_spark.errors import DirectReadError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment

MOD_TIME = 1_700_000_000
SCHEMA = pa.schema([("journal", pa.string()), ("offset", pa.int64()), ("value", pa.binary())])
Row = tuple[str, int, bytes]


def fragment_of(
    journal: str, begin: int, content: bytes, codec: int = pb.NONE, postfix: str = ""
) -> Fragment:
    digest = hashlib.sha1(content, usedforsecurity=False).digest()
    return Fragment(journal, begin, begin + len(content), digest, codec, path_postfix=postfix)


def encoded(content: bytes, codec: int) -> bytes:
    return b"".join(encode([content] if content else [], codec))


@dataclass
class MemoryFiles:
    """A store in memory that records every listing."""

    files: dict[str, bytes] = field(default_factory=dict)
    mod_times: dict[str, int] = field(default_factory=dict)
    listed: list[list[str]] = field(default_factory=list)
    open_files: int = 0
    opened: list[str] = field(default_factory=list)
    url: str = "memory:///"

    def put(
        self,
        journal: str,
        begin: int,
        content: bytes,
        codec: int = pb.NONE,
        *,
        postfix: str = "",
        mod_time: int = MOD_TIME,
    ) -> str:
        path = fragment_of(journal, begin, content, codec, postfix).content_path
        self.files[path] = encoded(content, codec)
        self.mod_times[path] = mod_time
        return path

    def list(self, directories: Sequence[str]) -> Iterator[StoreFile]:
        self.listed.append(list(directories))
        for path in sorted(self.files):
            if any(not each or path.startswith(f"{each}/") for each in directories):
                yield StoreFile(path, len(self.files[path]), self.mod_times.get(path, MOD_TIME))

    def open(self, stored: StoredFragment, offset: int, end_offset: int) -> FragmentReader:
        if stored.path not in self.files:
            raise DirectReadError(stored.path, "no such file", missing=True)
        self.open_files += 1
        self.opened.append(stored.path)
        stream = _Noted(self, self.files[stored.path])
        return FragmentReader(stream, stored.fragment, offset, end_offset=end_offset, source=stored.path)

    def write_to(self, directory: Path) -> None:
        for path, data in self.files.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(data)


class _Noted(io.BytesIO):
    def __init__(self, store: MemoryFiles, data: bytes) -> None:
        super().__init__(data)
        self._store = store

    def close(self) -> None:
        if not self.closed:
            self._store.open_files -= 1
        super().close()


def store_options(**options: str) -> SourceOptions:
    """Return the options of a batch query on a store, of lines by default.

    Each directory is a journal. Where one journal begins at the end of another, the options must say so.
    """
    given = {"fragmentStore": "file:///a/store", "framing": "lines", "fragmentPostfixLevels": "0"} | options
    if not given.keys() & {"journals", "journalsPattern", "path"}:
        given["path"] = "log/"
    return parse_options(given, "batch", environ={})


def plan(files: StoreFiles, options: SourceOptions) -> list[Piece]:
    journals = StoreJournals.listed(files, store_selection(options))
    planner = Planner(journals, options)
    return with_fragments(journals, planner.pieces(*planner.batch()), options)


def read(files: StoreFiles, options: SourceOptions, pieces: Sequence[Piece]) -> list[Row]:
    rows: list[Row] = []
    for piece in pieces:
        reach = reach_of(options, piece)
        journals = StoreJournals.of_piece(files, piece.journal, piece.fragments, reach)
        framing = framing_named(piece.framing, options.max_record_bytes)
        scan = PieceScan(
            journals,
            piece,
            fail_on_data_loss=options.fail_on_data_loss,
            max_record_bytes=options.max_record_bytes,
            framing=framing,
        )
        for record_batch in raw_record_batches(scan, SCHEMA, framing=framing):
            rows += zip(*record_batch.to_pydict().values(), strict=True)
    return rows


def rows_of(files: StoreFiles, **options: str) -> list[Row]:
    parsed = store_options(**options)
    return read(files, parsed, plan(files, parsed))
