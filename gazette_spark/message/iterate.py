"""Reads the messages of a journal, all of them or only committed ones.

Both iterators use a :class:`~gazette_spark.client.RetryReader`, so they continue through restarts and broken
connections. They end where that ends: at the end offset, or at the write head if it does not wait there.
Messages of transactions that are open at that time are not lost: the sequencer's checkpoint has their states,
and the next reader, from the checkpoint's offset on, delivers them when they are acknowledged.

If the journal has lost bytes, a message that was cut is dropped with a warning. A replay is stricter, because
it reads bytes that existed before, and a transaction would lack some of its messages.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Self, TypedDict, Unpack

from google.protobuf.message import DecodeError

from gazette_spark.client._read.reader import RetryReader
from gazette_spark.client.client import Client
from gazette_spark.closing import Closing
from gazette_spark.errors import ClosedError, DataLossError, RecordError
from gazette_spark.message.interfaces import Envelope, NewMessage, framing_of_journal
from gazette_spark.message.locator import locator_for, raw_messages
from gazette_spark.message.sequencer import ReplayRange, Sequencer
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import split_meta

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 << 20
"""Maximum length of a message, in bytes. A header may announce more than fits in memory."""


class _Frame(NamedTuple):
    """A record's frame, ``[begin, end)`` of the journal, and its bytes, or bytes outside frames."""

    begin: int
    end: int
    record: bytes | None


class ReadUncommitted(Closing):
    """Iterator over all messages of a journal, including repeated ones and those of open transactions.

    For one thread, but any thread may call :meth:`close`. After an error the next call continues after the
    unreadable message.
    """

    def __init__(
        self,
        reader: RetryReader,
        spec: pb.JournalSpec,
        new_message: NewMessage,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        until: int | None = None,
    ) -> None:
        """Read the messages in a reader's bytes.

        Args:
            reader: Reader of the journal from a message's begin on. It is closed with this iterator.
            spec: Spec of the journal, whose label names the framing.
            new_message: Makes messages.
            max_message_bytes: Maximum length of a message.
            until: End before the first message that begins at this offset or later. The reader's range may
                then end inside a message.

        Raises:
            MessageError: the journal's content type has no framing of messages.
        """
        self.reader = reader
        self.spec = spec
        self._framing = framing_of_journal(spec)
        self.new_message = new_message
        self._max_bytes = max_message_bytes
        self._until = until
        self._frames: deque[_Frame] = deque()
        self._rest: list[bytes] = []
        """The beginning of a message whose end has not arrived."""
        self._rest_bytes = 0
        self._needed_bytes = 0
        """Minimum length of that message, if its header has it."""
        self._end = reader.offset
        """End of the received bytes; -1 while the write head is unknown."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.reader.journal!r}, offset={self.offset})"

    @property
    def offset(self) -> int:
        """Offset of the next message; -1 while the write head is unknown."""
        if self._frames:
            return self._frames[0].begin
        return self.reader.offset if self._end == -1 else self._end - self._rest_bytes

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Envelope:
        """Return the next message.

        Raises:
            RecordError: bytes are not a message, and the next call continues after them; or the range ends
                inside a message, or a message is too long.
        """
        journal = self.reader.journal
        if self._until is not None and self.offset >= self._until:
            raise StopIteration
        while not self._frames:
            # Check this before reading more bytes, because a header may announce more than fits in memory.
            if max(self._rest_bytes, self._needed_bytes) > self._max_bytes:
                problem = f"it is longer than max_message_bytes={self._max_bytes}"
                raise RecordError(journal, self.offset, problem)
            chunk = next(self.reader, None)
            if chunk is None:
                # A write head may be inside a message whose rest comes later. The end of a range that the
                # caller requested must not be.
                begin, end_offset = self.offset, self.reader.request.end_offset
                is_cut = self._rest_bytes and end_offset and self._end >= end_offset
                if is_cut and self._until is None:
                    self._drop_rest()
                    raise RecordError(journal, begin, f"the range ends within it, at offset {end_offset}")
                raise StopIteration
            # The message that the hole cuts can never be completed. The next bytes begin a fragment, and so a
            # message, because Gazette's writers append whole messages.
            if self._end not in (-1, chunk.offset):
                logger.warning(
                    "journal has lost bytes journal=%s from=%d to=%d dropped_bytes=%d",
                    journal,
                    self._end,
                    chunk.offset,
                    self._rest_bytes,
                )
                self._drop_rest()
            self._end = chunk.end
            self._rest.append(chunk.content)
            self._rest_bytes += len(chunk.content)
            # Searching the end of a long message in each of its chunks would take quadratic time. So wait for
            # the length in its header, or for a newline.
            records = self._framing.records
            if self._rest_bytes < self._needed_bytes:
                continue
            if records.trailer_bytes and b"\n" not in chunk.content:
                continue
            data = b"".join(self._rest)
            at = self._end - len(data)
            cut = self._framing.unmarshal(data, at)
            frames = [
                _Frame(at + start - records.header_bytes, at + end + records.trailer_bytes, data[start:end])
                for start, end in zip(cut.starts.tolist(), cut.ends.tolist(), strict=True)
            ]
            # Bytes outside frames become an error at their position.
            frames += [_Frame(at + begin, at + end, None) for begin, end in cut.skipped]
            self._frames.extend(sorted(frames) if cut.skipped else frames)
            self._rest = [data[cut.size :]] if cut.size < len(data) else []
            self._rest_bytes = len(data) - cut.size
            self._needed_bytes = cut.needs
        begin, end, record = frame = self._frames.popleft()
        if record is None:
            raise RecordError(journal, begin, f"no message begins here or before offset {end}")
        try:
            return Envelope(journal, begin, end, self.new_message(self.spec, record))
        except (ValueError, DecodeError) as error:
            raise RecordError(journal, begin, str(error)) from error
        except KeyboardInterrupt:
            self._frames.appendleft(frame)  # In a notebook, the next call must not skip the message.
            raise

    def _drop_rest(self) -> None:
        self._rest.clear()
        self._rest_bytes = self._needed_bytes = 0

    def close(self) -> None:
        """End the reader. May be called again."""
        self.reader.close()


class ReadCommitted(Closing):
    """Iterator over the committed messages of a journal, each once, including acknowledgements.

    For one thread, but any thread may call :meth:`close`. After an error the next call continues, and starts
    a failed replay again.
    """

    def __init__(
        self,
        messages: ReadUncommitted,
        sequencer: Sequencer,
        open_replay: Callable[[ReplayRange], ReadUncommitted],
        *,
        fail_on_data_loss: bool = True,
    ) -> None:
        """Order the messages of a reader.

        Args:
            messages: Messages of the journal from the sequencer's offset on. They are closed with this
                iterator.
            sequencer: Sequencer of one or several journals, whose readers must then alternate by message.
            open_replay: Opens a reader of bytes that must be read again.
            fail_on_data_loss: Raise if bytes of a replay are gone. Otherwise log a warning and deliver the
                rest of the transaction.
        """
        self.messages = messages
        self.sequencer = sequencer
        self._open_replay = open_replay
        self._fail_on_data_loss = fail_on_data_loss
        self._replay: ReadUncommitted | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"ReadCommitted({self.messages.reader.journal!r}, {self.sequencer!r})"

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Envelope:
        """Return the next committed message. The next call counts it as processed.

        Raises:
            RecordError: as in :class:`ReadUncommitted`.
            DataLossError: bytes of an acknowledged transaction are gone.
        """
        if self._closed:
            raise StopIteration
        try:
            while True:
                if self.sequencer.needs_replay:
                    # The replay of a transaction begins here, or continues after the last delivered message
                    # if it has failed before.
                    self._end_replay()
                    missing = self.sequencer.replay_range()
                    messages: Iterable[Envelope] = ()
                    # For a reader, an end offset of 0 means no end.
                    if missing.begin < missing.end:
                        self._replay = self._open_replay(missing)
                        jumps = self.messages.reader.jumps
                        messages = checked_replay(
                            self._replay, jumps, fail_on_data_loss=self._fail_on_data_loss
                        )
                    self.sequencer.start_replay(messages)
                if (envelope := self.sequencer.step()) is not None:
                    return envelope
                self._end_replay()
                self.sequencer.queue(next(self.messages))
        except ClosedError:
            # This iterator was closed during a replay, which must not look like the end of the replay.
            if self._closed:
                raise StopIteration from None
            raise

    def _end_replay(self) -> None:
        replay, self._replay = self._replay, None
        if replay is not None:
            replay.close()

    def close(self) -> None:
        """End the readers. May be called again."""
        self._closed = True
        self._end_replay()
        self.messages.close()


def checked_replay(
    replay: ReadUncommitted, first_jumps: Sequence[tuple[int, int]], *, fail_on_data_loss: bool = True
) -> Iterator[Envelope]:
    """Yield the messages of a replay, and check that no bytes are missing.

    Args:
        replay: Reads the range once.
        first_jumps: Bytes that were already missing when the range was first read.
        fail_on_data_loss: As in :class:`ReadCommitted`.

    Raises:
        DataLossError: bytes are gone that existed before.
        ClosedError: the replay was closed before its end.
    """
    journal, checked = replay.reader.journal, 0
    while True:
        begin, envelope = replay.offset, None
        try:
            envelope = next(replay)
        except StopIteration:
            pass
        except RecordError as error:
            if replay.offset == begin:
                raise
            # The first read of the range raised this error already.
            logger.warning("replay skips a record cause=%s", error)
            continue
        # Check this before delivering the message after the hole: a transaction must not lack its middle.
        for missing, available in replay.reader.jumps[checked:]:
            # These bytes were already missing at the first read of the transaction, so the sequencer never
            # had their messages.
            if any(begin <= missing and available <= end for begin, end in first_jumps):
                continue
            if fail_on_data_loss:
                raise DataLossError(journal, missing, available)
            logger.warning("replay lacks bytes journal=%s from=%d to=%d", journal, missing, available)
        checked = len(replay.reader.jumps)
        if envelope is None:
            break
        yield envelope
    if replay.reader.offset < replay.reader.request.end_offset:
        # A closed reader simply stops before its end.
        raise ClosedError(f"replay of journal {journal!r}", "it was closed before its end")


class ReadKeywords(TypedDict, total=False):
    """Keywords of :meth:`Client.read <gazette_spark.client.Client.read>`."""

    end_offset: int
    block: bool
    do_not_proxy: bool
    begin_mod_time: int
    timeout_s: float | None


def read_uncommitted(
    client: Client,
    journal: str,
    new_message: NewMessage | None = None,
    *,
    offset: int = 0,
    uuid_path: str = "",
    **how: Unpack[ReadKeywords],
) -> ReadUncommitted:
    """Return an iterator over all messages of a journal.

    Args:
        client: Client of the brokers.
        journal: Name of the journal.
        new_message: Makes messages; by default a :class:`~gazette_spark.message.RawMessage`.
        offset: First offset of a message; -1 for the write head.
        uuid_path: Place of the UUID in a ``RawMessage``; see :mod:`gazette_spark.message.locator`.
        how: Keywords of ``Client.read``.

    Raises:
        MessageError: the journal's content type has no framing of messages.
    """
    spec = client.get_journal(split_meta(journal)[0]).spec
    make = new_message or raw_messages(locator_for(framing_of_journal(spec).content_type, uuid_path))
    return ReadUncommitted(client.read(journal, offset=offset, **how), spec, make)


def read_committed(
    client: Client,
    journal: str,
    new_message: NewMessage | None = None,
    *,
    sequencer: Sequencer | None = None,
    offset: int | None = None,
    uuid_path: str = "",
    fail_on_data_loss: bool = True,
    **how: Unpack[ReadKeywords],
) -> ReadCommitted:
    """Return an iterator over the committed messages of a journal.

    Args:
        client: Client of the brokers.
        journal: Name of the journal.
        new_message: Makes messages; by default a :class:`~gazette_spark.message.RawMessage`.
        sequencer: Sequencer from a checkpoint, to continue there; by default a new one.
        offset: First offset of a message, by default the sequencer's offset. An earlier transaction is
            delivered only from this offset on.
        uuid_path: Place of the UUID in a ``RawMessage``; see :mod:`gazette_spark.message.locator`.
        fail_on_data_loss: Raise if bytes of an acknowledged transaction are gone.
        how: Keywords of ``Client.read``.

    Raises:
        MessageError: the journal's content type has no framing of messages.
    """
    sequencer = sequencer or Sequencer()
    begin = sequencer.offsets.get(journal, 0) if offset is None else offset
    messages = read_uncommitted(client, journal, new_message, offset=begin, uuid_path=uuid_path, **how)
    do_not_proxy, timeout_s = how.get("do_not_proxy", False), how.get("timeout_s")

    def open_replay(missing: ReplayRange) -> ReadUncommitted:
        _, begin, end = missing
        reader = client.read(
            journal, offset=begin, end_offset=end, do_not_proxy=do_not_proxy, timeout_s=timeout_s
        )
        return ReadUncommitted(reader, messages.spec, messages.new_message)

    return ReadCommitted(messages, sequencer, open_replay, fail_on_data_loss=fail_on_data_loss)
