"""In-memory journals for recovery logs: appends can be held, repeated or refused, and reads cut anywhere.

They replace a broker and an append service for a recorder and a player, with timing under a test's control.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast
from unittest.mock import patch

from gazette_spark import Client
from gazette_spark.client import AppendOptions, AppendResult, AsyncAppend, Chunk
from gazette_spark.client._append.futures import OpFutures
from gazette_spark.client._append.service import AsyncJournalClient
from gazette_spark.consumer.stores import sqlite
from gazette_spark.errors import RegisterMismatchError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import selector_matches


@contextmanager
def closed_databases() -> Iterator[None]:
    """Close the databases that stores open inside the block, because Python 3.13 warns of open ones."""
    connect = sqlite._connect
    with ExitStack() as databases:

        def connect_until_the_end(path: Path) -> sqlite3.Connection:
            return databases.enter_context(closing(connect(path)))

        databases.enter_context(patch.object(sqlite, "_connect", connect_until_the_end))
        yield


@dataclass
class MemoryJournals:
    content: dict[str, bytearray] = field(default_factory=dict)
    registers: dict[str, pb.LabelSet] = field(default_factory=dict)
    first_offsets: dict[str, int] = field(default_factory=dict)
    """Offset of each journal below which bytes are deleted."""
    before_hand_off: Callable[[], object] = lambda: None
    """Function called once, before the next append that sets registers."""
    before_repetition: Callable[[], object] | None = None
    """Function called after the next append that sets registers, which is then repeated: its answer was
    lost."""
    pieces: random.Random = field(default_factory=lambda: random.Random(1))
    max_piece: int = 40

    def append(self, options: AppendOptions, content: bytes) -> AppendResult:
        if options.union_registers is not None:
            hurry, self.before_hand_off = self.before_hand_off, lambda: None
            hurry()
        log = self.content.setdefault(options.journal, bytearray())
        registers = self.registers.setdefault(options.journal, pb.LabelSet())
        check = options.check_registers
        if check is not None and registers.labels and not selector_matches(check, registers):
            raise RegisterMismatchError(options.journal, "")
        if options.union_registers is not None:
            registers.CopyFrom(options.union_registers)
        begin = len(log)
        log += content
        if options.union_registers is not None and self.before_repetition is not None:
            meanwhile, self.before_repetition = self.before_repetition, None
            meanwhile()
            return self.append(options, content)
        return AppendResult(begin, len(log), b"", registers)

    def client(self) -> Client:
        return cast(Client, MemoryClient(self))


class MemoryClient:
    """Appends immediately, and reads the current content."""

    def __init__(self, journals: MemoryJournals) -> None:
        self._journals = journals

    def append(
        self, journal: str, content: bytes, *, union_registers: pb.LabelSet | None = None
    ) -> AppendResult:
        return self._journals.append(AppendOptions(journal, union_registers=union_registers), content)

    def read(self, journal: str, *, offset: int, end_offset: int, block: bool) -> MemoryReader:
        assert not block, "a test in memory tells its players how to end before they play"
        return MemoryReader(self._journals, journal, offset, end_offset)


@dataclass
class MemoryReader:
    """Reads a range in pieces of random sizes."""

    journals: MemoryJournals
    journal: str
    offset: int
    end_offset: int

    def __iter__(self) -> Iterator[Chunk]:
        at = max(self.offset, self.journals.first_offsets.get(self.journal, 0))
        while at < self.end_offset:
            end = min(self.end_offset, at + self.journals.pieces.randint(1, self.journals.max_piece))
            yield Chunk(at, bytes(self.journals.content[self.journal][at:end]))
            at = end

    def cancel(self) -> None:
        """Do nothing: no read waits."""

    def close(self) -> None:
        """Do nothing."""


class MemoryAppend:
    def __init__(self, service: MemoryService, options: AppendOptions) -> None:
        self._service = service
        self.options = options
        self.content = bytearray()
        self.future: Future[AppendResult] = Future()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._service.release(self)

    def write(self, content: bytes) -> int:
        self.content += content
        return len(content)

    def done(self) -> bool:
        return self.future.done()

    @property
    def response(self) -> AppendResult:
        return self.future.result(0)

    def exception(self) -> BaseException | None:
        return self.future.exception(0)

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        self.future.add_done_callback(lambda _: fn(self))


class MemoryService:
    """Appends in order. While it is ``held``, appends wait; after a failed one, all do."""

    def __init__(self, journals: MemoryJournals) -> None:
        self.journals = journals
        self.held = False
        self.repeats = False
        """Whether the next append is done twice, as if its answer was lost."""
        self.waiting: list[MemoryAppend] = []
        self.released: MemoryAppend | None = None
        """The newest append."""
        self.failure: BaseException | None = None
        self.on_commit: Callable[[MemoryAppend], object] = lambda _: None

    def as_client(self) -> AsyncJournalClient:
        return cast(AsyncJournalClient, self)

    def start_append(self, journal: AppendOptions, *, dependencies: Iterable[object] = ()) -> AsyncAppend:
        assert not tuple(dependencies)
        return cast(AsyncAppend, MemoryAppend(self, journal))

    def append(self, journal: str, content: bytes) -> AsyncAppend:
        with self.start_append(AppendOptions(journal)) as started:
            started.write(content)
        return started

    def pending_except(self, journal: str) -> OpFutures:
        return frozenset()

    def release(self, append: MemoryAppend) -> None:
        """Do an append, unless it has to wait."""
        self.waiting.append(append)
        self.released = append
        if not self.held:
            self.flush()

    def flush(self) -> None:
        waiting, self.waiting = self.waiting, []
        for append in waiting:
            try:
                if self.failure is not None:
                    raise self.failure
                result = self.journals.append(append.options, bytes(append.content))
                if self.repeats and append.content:
                    self.repeats = False
                    result = self.journals.append(append.options, bytes(append.content))
            except RegisterMismatchError as error:
                self.failure = error
                append.future.set_exception(error)
            else:
                self.on_commit(append)
                append.future.set_result(result)


def files_below(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }
