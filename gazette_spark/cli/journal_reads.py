"""Implements ``gazette-spark journals read``, which reads journals one after the other or concurrently."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

import click

from gazette_spark.cli.journal_options import (
    Connect,
    Interrupts,
    chosen_journals,
    chosen_selector,
    interrupted_by_signals,
    is_fully_suspended,
    journal_argument,
    leaves_out_deleted,
)
from gazette_spark.cli.main import Integer, Interrupted
from gazette_spark.cli.times import Time
from gazette_spark.errors import JsonError, OptionError
from gazette_spark.progress import Bar, progress
from gazette_spark.strict_json import parse_json

if TYPE_CHECKING:
    from gazette_spark.client import Chunk, Client, RetryReader
    from gazette_spark.message import ReadCommitted
    from gazette_spark.message.iterate import ReadKeywords


class ChunkWriter:
    """Writes the bytes of journals, one journal at a time. Thread-safe."""

    def __init__(self, target: BinaryIO, output_format: str, interrupts: Interrupts, bar: Bar) -> None:
        self._target = target
        self._as_json = output_format == "json"
        self._lock = threading.Lock()
        self._interrupts = interrupts
        self._bar = bar

    def drain(self, source: JournalContent, written: dict[str, int]) -> None:
        """Write all bytes of a source, and record the offset after each chunk in ``written``.

        Bytes of one append are written without bytes of other journals in between.
        """
        holds = False
        is_main = threading.current_thread() is threading.main_thread()
        try:
            for chunk, is_last in source.chunks():
                # The lock is held from the first chunk of an append to its last, even while waiting for the
                # next chunk, so that others do not write in between.
                if not holds:
                    self._lock.acquire()
                    holds = True
                content = chunk.content
                if self._as_json:
                    text = base64.b64encode(content).decode()
                    line = json.dumps({"journal": source.journal, "offset": chunk.offset, "content": text})
                    content = line.encode() + b"\n"
                # Ctrl-C between the write and the recording would make the next run repeat bytes. Only the
                # main thread receives signals.
                with self._interrupts.defer_signals() if is_main else nullcontext():
                    self._write(content)
                    written[source.journal] = chunk.end
                self._bar.advance(len(chunk.content))
                if is_last:
                    self._target.flush()
                    self._lock.release()
                    holds = False
        finally:
            if holds:
                self._target.flush()
                self._lock.release()

    def _write(self, content: bytes) -> None:
        # A signal can interrupt a write to an unbuffered stdout, which then takes only part of the bytes.
        remaining = memoryview(content)
        while remaining:
            remaining = remaining[self._target.write(remaining) :]


class JournalContent(Protocol):
    """A source of one journal's content."""

    @property
    def journal(self) -> str:
        """The journal's name."""

    @property
    def reader(self) -> RetryReader:
        """The reader of the content."""

    def chunks(self) -> Iterator[tuple[Chunk, bool]]:
        """Yield chunks, and whether each is the last one of an append."""

    def close(self) -> None:
        """Close the source. Any thread may call it."""


@dataclass(frozen=True)
class AllBytes:
    """All bytes of a journal, in chunks."""

    reader: RetryReader

    @property
    def journal(self) -> str:
        """The journal's name."""
        return self.reader.journal

    def chunks(self) -> Iterator[tuple[Chunk, bool]]:
        """Yield the reader's chunks."""
        for chunk in self.reader:
            fragment = self.reader.reader.fragment
            # The broker does not report where appends end. But the end of a fragment is the end of an append,
            # and so is the current end of a spool.
            yield chunk, fragment is None or chunk.end >= fragment.end

    def close(self) -> None:
        """Close the reader."""
        self.reader.close()


@dataclass(frozen=True)
class CommittedMessages:
    """The committed messages of a journal in their frames, without acknowledgements."""

    messages: ReadCommitted

    @property
    def journal(self) -> str:
        """The journal's name."""
        return self.reader.journal

    @property
    def reader(self) -> RetryReader:
        """The reader of uncommitted messages."""
        return self.messages.messages.reader

    def chunks(self) -> Iterator[tuple[Chunk, bool]]:
        """Yield a chunk for each message."""
        from gazette_spark.client import Chunk
        from gazette_spark.message import framing_of_journal, split_uuid
        from gazette_spark.message.uuids import ACK_TXN

        framing = framing_of_journal(self.messages.messages.spec)
        for envelope in self.messages:
            # The sequencer also delivers acknowledgements, which are empty records that users do not want.
            if split_uuid(envelope.message.get_uuid())[2] != ACK_TXN:
                yield Chunk(envelope.begin, framing.marshal(envelope.message)), True

    def close(self) -> None:
        """Close the readers."""
        self.messages.close()


def open_committed(
    client: Client, journal: str, offset: int, uuid_path: str, how: ReadKeywords
) -> CommittedMessages:
    """Return the committed messages of a journal."""
    from gazette_spark.message import read_committed

    try:
        return CommittedMessages(read_committed(client, journal, offset=offset, uuid_path=uuid_path, **how))
    except OptionError as error:
        raise OptionError("--uuid-path", error.got, error.expected) from None


@click.command()
@journal_argument
@click.option("--offset", type=Integer(min=-1), default=0, help="First offset; -1: the write head.")
@click.option("--end-offset", type=Integer(min=0), default=0, help="Stop at this offset; 0: the write head.")
@click.option("--tail", is_flag=True, help="Begin at the write head, unless --offsets names another offset.")
@click.option(
    "--block", "-b", is_flag=True, help="Follow the journals, and new ones that match, until interrupted."
)
@click.option(
    "--offsets",
    "offsets_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON file of first offsets by journal. Other journals begin at --offset.",
)
@click.option(
    "--offsets-out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the next offsets, also after Ctrl-C. If --offsets names the same file, FILE.previous has "
    "the old offsets.",
)
@click.option(
    "--file-root",
    type=click.Path(exists=True, file_okay=False),
    help="Directory of file:/// stores on this machine, to read fragments without the broker.",
)
@click.option(
    "--from",
    "begin_mod_time",
    type=Time(),
    default=0,
    help="Skip fragments stored before this time, such as '2h ago', an ISO 8601 time, or Unix seconds.",
)
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    help="Which messages to read; read_committed reads those of committed transactions, each once.",
)
@click.option(
    "--uuid-path",
    default="",
    metavar="PLACE",
    help="Place of a message's UUID: JSON pointer, CSV column or protobuf field. [/_meta/uuid, 0, 1]",
)
@click.option("--output", "target", type=click.File("wb"), default="-", help="File to write; '-' is stdout.")
@click.option(
    "--format",
    "-o",
    "output_format",
    type=click.Choice(["raw", "json"]),
    default="raw",
    show_default=True,
    help="The bytes, or a line of JSON for each chunk.",
)
@click.pass_obj
def read(
    connect: Connect,
    *,
    journal: str | None,
    selector: str,
    offset: int,
    end_offset: int,
    tail: bool,
    block: bool,
    offsets_path: Path | None,
    offsets_out: Path | None,
    file_root: str | None,
    begin_mod_time: int,
    isolation_level: str,
    uuid_path: str,
    target: BinaryIO,
    output_format: str,
) -> None:
    """Write the bytes of JOURNAL, or of a selection, to stdout.

    The command reads journals one after the other, up to their write heads. With --block it reads all
    concurrently, and bytes that were appended together stay together. The format json is a line for each
    chunk, with journal, offset and the bytes in base64. After Ctrl-C, the command prints the offset at which
    to continue.

    With --isolation-level=read_committed, journals hold messages with UUIDs. The command writes the committed
    ones, each once and in its frame. If a transaction began before the first offset, only its other messages
    are written.
    """
    if end_offset and end_offset < offset:
        raise click.UsageError(f"--end-offset {end_offset} is before --offset {offset}; give a later end")
    selected = chosen_selector(journal, selector)
    committed = is_committed(isolation_level, uuid_path, offsets_out)
    offsets = load_offsets(offsets_path) if offsets_path else {}
    if offsets_path is not None and offsets_path == offsets_out:
        # Renamed instead of overwritten, because a run that fails would destroy the only copy.
        offsets_path.rename(f"{offsets_path}.previous")
    with (
        connect(fragment_root=file_root) as client,
        progress("reading", is_bytes=True, target=target, has_lines=not block) as bar,
        Interrupts() as interrupts,
    ):
        sink = ChunkWriter(target, output_format, interrupts, bar)

        def open_source(name: str) -> JournalContent:
            first = offsets.get(name, -1 if tail else offset)
            how: ReadKeywords = {"end_offset": end_offset, "block": block, "begin_mod_time": begin_mod_time}
            if not committed:
                return AllBytes(client.read(name, offset=first, **how))
            return open_committed(client, name, first, uuid_path, how)

        if block:
            follow(client, selected, Pumps(sink, open_source, offsets))
        else:
            try:
                specs = chosen_journals(client, journal, selector)
                for at, spec in enumerate(specs):
                    # A suspended journal has no content, and reading it would needlessly resume it.
                    if not is_fully_suspended(spec):
                        bar.show(f"reading {spec.name} ({at + 1} of {len(specs)})")
                        with leaves_out_deleted(journal):
                            drain(sink, open_source(journal or spec.name), offsets)
            except KeyboardInterrupt:
                target.flush()
                if offsets_out is not None:
                    save_offsets(offsets, offsets_out)
                raise Interrupted(interrupted_text(offsets, offsets_out, committed=committed)) from None
    if offsets_out is not None:
        save_offsets(offsets, offsets_out)


def is_committed(isolation_level: str, uuid_path: str, offsets_out: Path | None) -> bool:
    """Return whether to read committed messages, after checking the related options.

    Raises:
        click.UsageError: an option contradicts the isolation level.
    """
    committed = isolation_level == "read_committed"
    if uuid_path and not committed:
        raise click.UsageError("--uuid-path is for --isolation-level=read_committed")
    if committed and offsets_out is not None:
        problem = "an offset does not describe open transactions"
        raise click.UsageError(f"--offsets-out cannot be used with read_committed: {problem}")
    return committed


def interrupted_text(offsets: Mapping[str, int], offsets_out: Path | None, *, committed: bool) -> str:
    """Return the message after an interrupted read, with the offset at which to continue."""
    if committed:
        return "interrupted: start again; an offset does not describe open transactions"
    if offsets_out is not None:
        return (
            f"interrupted: all bytes up to the offsets in {offsets_out} are written; continue with --offsets"
        )
    match list(offsets.items()):
        case []:
            return "interrupted: nothing was read"
        case [(journal, offset)]:
            return f"interrupted: {journal} is written up to offset {offset}; continue with --offset {offset}"
    return f"interrupted: to continue, give --offsets a file with {json.dumps(dict(sorted(offsets.items())))}"


def drain(sink: ChunkWriter, source: JournalContent, offsets: dict[str, int]) -> None:
    """Read a journal to its end, record that offset, and report missing bytes."""
    reader = source.reader
    with closing(source):
        try:
            sink.drain(source, offsets)
        except KeyboardInterrupt:
            raise  # The last bytes may not have been written, so their offset is not recorded.
        except BaseException:
            _note(reader, offsets)
            raise
        _note(reader, offsets)
    for requested, available in reader.jumps:
        click.echo(f"{reader.journal}: bytes [{requested}, {available}) are gone", err=True)


def _note(reader: RetryReader, offsets: dict[str, int]) -> None:
    if reader.offset >= 0:
        offsets[reader.journal] = reader.offset


class Pumps:
    """Runs a thread for each journal that is read. Not thread-safe."""

    def __init__(
        self, sink: ChunkWriter, open_source: Callable[[str], JournalContent], offsets: dict[str, int]
    ) -> None:
        self.failure: BaseException | None = None
        """The first error that ended a thread."""
        self.on_failure: Callable[[], object] = lambda: None
        """Called by a thread that fails."""
        self._sink = sink
        self._open_source = open_source
        self._offsets = offsets
        self._running: dict[str, tuple[JournalContent, threading.Thread]] = {}
        self._created: dict[str, int] = {}
        """Etcd revision at which each journal was created when it was read last."""

    def keep(self, created: Mapping[str, int]) -> None:
        """Read exactly these journals, given with the Etcd revisions at which they were created."""
        names = set(created)
        recreated = {name for name in names if self._created.get(name, created[name]) != created[name]}
        # First stop the readers of journals that have gone, because they would fail.
        for name in self._running.keys() - (names - recreated):
            source, thread = self._running.pop(name)
            # The thread returns when its reader is closed.
            source.close()
            thread.join(CLOSE_TIMEOUT_S)
        for name in sorted(recreated):
            # The offset is one of the deleted journal. A read from there would skip what comes before it.
            click.echo(f"{name} was created again, and is read like a new journal", err=True)
            self._offsets.pop(name, None)
        self._created |= created
        # A journal whose reader has found it deleted may have been created again.
        alive = {name for name, (_, thread) in self._running.items() if thread.is_alive()}
        for name in sorted(names - alive):
            source = self._open_source(name)
            thread = threading.Thread(target=self._pump, args=(source,), name=f"read {name}", daemon=True)
            self._running[name] = source, thread
            thread.start()

    def _pump(self, source: JournalContent) -> None:
        try:
            # A reader may find its journal deleted before the listing lacks it.
            with leaves_out_deleted(None):
                drain(self._sink, source, self._offsets)
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            # Keep the first error, because it often causes the others.
            self.failure = self.failure or error
            self.on_failure()


CLOSE_TIMEOUT_S = 10.0
"""Time limit for a thread to end after its reader is closed, in seconds."""


def follow(client: Client, selector: str, pumps: Pumps) -> None:
    """Read the matching journals until interrupted. The set of journals may change."""
    from gazette_spark.client import WatchedList

    with interrupted_by_signals(), suppress(KeyboardInterrupt), WatchedList(client, selector) as watched:
        # A pump fails in another thread while this one waits for the next listing, which may never come.
        # Closing the watch ends the wait.
        pumps.on_failure = watched.close
        try:
            for listing in watched.updates():
                pumps.keep(
                    {
                        journal.spec.name: journal.create_revision
                        for journal in listing.journals
                        if not is_fully_suspended(journal.spec)
                    }
                )
        finally:
            # All readers must end before the offsets are written to a file.
            pumps.keep({})
    if pumps.failure is not None:
        raise pumps.failure


def load_offsets(path: Path) -> dict[str, int]:
    """Return the offsets of a file."""
    try:
        offsets = parse_json(path.read_bytes())
    except JsonError as error:
        raise click.ClickException(f"{path} is {error}") from error
    match offsets:
        # type instead of isinstance, because true and false are integers in Python. -1 is the write head.
        case dict() if all(type(value) is int and value >= -1 for value in offsets.values()):
            return offsets
    raise click.ClickException(f'{path} is not a file of offsets, such as {{"a/journal": 1024}}')


def save_offsets(offsets: dict[str, int], path: Path) -> None:
    """Write the offsets to a file atomically."""
    temporary = path.with_name(f"{path.name}.temp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(dict(sorted(offsets.items())), file)
        file.write("\n")
        file.flush()
        # The next run continues from this file, so after a power cut it must be the complete old or new one.
        os.fsync(file.fileno())
    temporary.replace(path)
