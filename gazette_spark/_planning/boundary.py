"""Searches windows of a journal for record boundaries, to decide the end of a batch.

A callable ``read_window(begin, end)`` provides the bytes, so the search itself is pure. It returns the
content of ``[begin, end)``. A SHORTER answer means that bytes are missing: it is then the content after the
last hole, ``[end - len(answer), end)``. A record that a hole cuts cannot be completed, so a search stops at
the end of a hole. In a framing that ``resyncs``, no record need begin there. So a batch of such a framing
ends one byte earlier, inside the hole, and the next batch also sees the hole. If the hole reaches the write
head, the batch ends at the head.

Anchored framings need more bytes: a tail of at most the longest record's length, for which every possible
reading has the same end. Without such a tail, all records from ``begin`` on are followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gazette_spark._formats.framing import RecordFraming
from gazette_spark._formats.lines import LINES
from gazette_spark._planning.reads import JournalOpener, chunks_of, resume_offset
from gazette_spark.errors import DataLossError, RecordError

ReadWindow = Callable[[int, int], bytes]

FIRST_WINDOW_BYTES = 64 << 10
"""Length of a search's first window; each further one is twice as long."""

MAX_WINDOW_BYTES = 8 << 20
"""Maximum window length when all records of a range are followed."""


def record_end(
    read_window: ReadWindow,
    begin: int,
    end: int,
    max_record_bytes: int,
    *,
    journal: str = "",
    framing: RecordFraming = LINES,
    write_head: int | None = None,
) -> int:
    """Return the largest record boundary in ``[begin, end]``; ``begin`` counts as a boundary.

    The end of a hole counts as well, if no other boundary follows it. With a write head, and in a framing
    that ``resyncs``, a hole's last byte counts instead, unless the hole ends at the head.

    The result is ``begin`` if there is no whole record. The search goes back from ``end`` and reads no byte
    twice, and at most ``max_record_bytes + 1`` bytes unless an anchored framing needs more.

    Raises:
        RecordError: the bytes before ``end`` belong to a record longer than ``max_record_bytes``.
    """
    if framing.anchored:
        # Locally, a newline or a magic word proves nothing in these framings.
        return AnchoredBoundary(read_window, max_record_bytes, journal, framing).end(begin, end)
    # Go back from the end in windows that double. Records are usually short, so the first window has the end
    # of one, and a long record costs at most twice its length.
    high, size = end, FIRST_WINDOW_BYTES
    while high > begin:
        # This is one byte more than the longest record. If none of these bytes ends a record, they belong to
        # one that is too long, and no further search can help.
        low = max(begin, high - size, end - max_record_bytes - 1)
        window = read_window(low, high)
        cut = framing.last_boundary(window, max_record_bytes)
        if cut is not None:
            return high - len(window) + cut
        if len(window) < high - low:
            # The record before the hole is cut and can never be completed, so nothing before the hole counts.
            # In a framing whose appends have whole records, a record begins after it. At the write head
            # nothing follows, and waiting for more would stop the query. A caller without a head does not
            # want to end inside a hole.
            behind = high - len(window)
            if not framing.resyncs or write_head in (None, behind):
                return behind
            # Otherwise the bytes after the hole may be the rest of the cut record. The next batch must skip
            # them, which it can detect only if it also sees the hole. So this batch ends inside the hole.
            # That is possible if the hole has two bytes or more: one for each batch.
            inside = behind - 1
            if inside == begin or not read_window(inside - 1, inside):
                return inside
            high, size, end = inside, FIRST_WINDOW_BYTES, inside  # A batch must have a byte of the hole.
            continue
        if end - low > max_record_bytes:
            raise _oversized(journal, low, end, max_record_bytes, exact=low == begin)
        high, size = low, size * 2
    return begin


def next_record_end(
    read_window: ReadWindow,
    begin: int,
    write_head: int,
    max_record_bytes: int,
    *,
    journal: str = "",
    framing: RecordFraming = LINES,
) -> int | None:
    """Return a boundary past ``begin``, usually the first; None if there is none up to the write head.

    Raises:
        RecordError: the record at ``begin`` is longer than ``max_record_bytes``.
    """
    if framing.anchored:
        search = AnchoredBoundary(read_window, max_record_bytes, journal, framing)
        return next(search.followed(begin, write_head), None)
    # This is the same search forwards, over at most the length of the longest record.
    low, size = begin, FIRST_WINDOW_BYTES
    while low < write_head:
        high = min(write_head, low + size, begin + max_record_bytes + 1)
        window = read_window(low, high)
        cut = framing.first_boundary(window, low)
        if len(window) < high - low:
            # A hole has cut the record. The next one begins after the hole, or after the rest of the cut one.
            begin = high - len(window)
            if cut is None and (not framing.resyncs or begin == write_head):
                return begin
        if cut is not None:
            return high - len(window) + cut
        if high - begin > max_record_bytes:
            raise _oversized(journal, begin, high, max_record_bytes, exact=True)
        low, size = high, size * 2
    return None


def limited_end(
    read_window: ReadWindow,
    begin: int,
    soft_end: int,
    write_head: int,
    max_record_bytes: int,
    *,
    journal: str = "",
    framing: RecordFraming = LINES,
) -> int:
    """Return where a batch ends that should stop at ``soft_end`` and may continue up to the write head.

    This is the largest boundary up to ``soft_end``. If there is no whole record up to there, it is the end of
    the first record, so that a limit below a record's length never stops a query. It is ``begin`` only if
    there is no whole record yet.
    """
    end = min(soft_end, write_head)
    last = record_end(
        read_window, begin, end, max_record_bytes, journal=journal, framing=framing, write_head=write_head
    )
    # At the write head there is no more to read: a record without an end is half written, and waits for a
    # later batch.
    if last > begin or end == write_head:
        return last
    # No record fits the limit. Without this exception to the limit, the query would never get past this
    # record.
    after = next_record_end(
        read_window, begin, write_head, max_record_bytes, journal=journal, framing=framing
    )
    return begin if after is None else after


@dataclass(frozen=True, slots=True)
class AnchoredBoundary:
    """The search in a journal of an anchored framing."""

    read_window: ReadWindow
    max_record_bytes: int
    journal: str
    framing: RecordFraming

    def end(self, begin: int, end: int) -> int:
        """Return the largest boundary in ``[begin, end]``; ``begin`` counts as a boundary."""
        longest = self.max_record_bytes + self.framing.header_bytes + self.framing.trailer_bytes
        longest += max(0, self.framing.header_bytes - 1)  # The end may be inside the last record's header.
        window, low, size = b"", end, FIRST_WINDOW_BYTES
        while low > max(begin, end - longest):
            high, low = low, max(begin, end - longest, end - size)
            more = self.read_window(low, high)
            window = more + window
            if len(more) < high - low:
                # Fragments begin after holes, and appends of these framings have whole records. So the first
                # byte after the hole begins a record, and the records from there on can simply be followed.
                at = end - len(window)
                return at + self.framing.cut(window, at).size
            # Proof by exhaustion: the framing reads the window from every state in which it may begin. From
            # `begin` on there is only one, so those records are followed below.
            boundary = self.framing.last_boundary(window, self.max_record_bytes) if low > begin else None
            if boundary is not None:
                return low + boundary
            # Each try reads the whole window again from all states, so windows grow fast.
            size *= 4
        # No tail of the longest record's length has proved an end, for example because frames contain frames.
        # Only the records from the start on can show it.
        return max(self.followed(begin, end, window if low == begin else b""), default=begin)

    def followed(self, begin: int, end: int, data: bytes = b"") -> Iterator[int]:
        """Follow records from ``begin``, and yield the first one's end, more boundaries, and the last one.

        ``data`` is the content that has already been read from ``begin`` on.
        """
        at, size = begin, FIRST_WINDOW_BYTES
        while True:
            cut = self.framing.cut(data, at)
            if len(cut.ends):
                # The caller that needs the first record's end stops here. The other one needs the last
                # boundary only.
                yield at + int(cut.ends[0]) + self.framing.trailer_bytes
            if cut.size:
                at, data = at + cut.size, data[cut.size :]
                yield at
            # A header may announce 4 GiB. It is refused before that is read.
            if max(len(data), cut.needs) > self.max_record_bytes + self.framing.header_bytes:
                raise _oversized(self.journal, at, at + len(data), self.max_record_bytes, exact=True)
            low = at + len(data)
            if low >= end:
                return
            # Read at least as many new bytes as there are unfinished ones. The record's bytes are searched
            # again each time, and doubling keeps the total linear.
            high = min(end, low + max(size, len(data)))
            window = self.read_window(low, high)
            if len(window) < high - low:
                # As above, a record begins after a hole.
                at, data = high - len(window), b""
                yield at
            data += window
            size = min(size * 2, MAX_WINDOW_BYTES)


def window_of(content: bytes, begin: int, beyond: ReadWindow) -> ReadWindow:
    """Return a ``read_window`` of bytes in memory, all of ``[begin, begin + len(content))``.

    ``beyond`` reads all other bytes.
    """

    def read_window(low: int, high: int) -> bytes:
        if begin <= low <= high <= begin + len(content):
            return content[low - begin : high - begin]
        return beyond(low, high)

    return read_window


def window_reader(client: JournalOpener, journal: str, *, fail_on_data_loss: bool = True) -> ReadWindow:
    """Return a ``read_window`` that reads through a client.

    Raises (when called):
        DataLossError: bytes are missing and ``fail_on_data_loss`` is set.
    """

    def read_window(begin: int, end: int) -> bytes:
        if begin >= end:
            return b""
        parts: list[bytes] = []
        at = begin
        with client.read(journal, offset=begin, end_offset=end) as reader:
            for chunk in chunks_of(client, journal, reader, end):
                if chunk.offset > at:
                    # By the rule of a `read_window`, a short answer has only the bytes after the last hole.
                    _hole(journal, at, chunk.offset, fail=fail_on_data_loss)
                    parts.clear()
                parts.append(chunk.content)
                at = chunk.offset + len(chunk.content)
            if resume_offset(reader) > at:
                _hole(journal, at, resume_offset(reader), fail=fail_on_data_loss)
                parts.clear()
        return b"".join(parts)

    return read_window


def _hole(journal: str, expected: int, available: int, *, fail: bool) -> None:
    if fail:
        raise DataLossError(journal, expected, available)


def _oversized(journal: str, begin: int, end: int, max_record_bytes: int, *, exact: bool) -> RecordError:
    where = "" if exact else " or earlier"
    problem = (
        f"oversized record: it begins here{where} and does not end before offset {end}, "
        f"more than maxRecordBytes={max_record_bytes} allows. Raise maxRecordBytes, or start past the record"
    )
    return RecordError(journal, begin, problem)
