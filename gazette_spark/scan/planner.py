"""Where a query starts, where each batch ends, and the pieces it is read in.

A :class:`Planner` runs on the driver and decides positions; executors read what it planned and decide
nothing. It asks a client for lists, write heads and small tail windows, and keeps no state that
matters: every answer follows from the position it is given and from the brokers, so a query goes on
after a crash with a new planner.

A position moves like this:

1. A new query is given its offsets (:meth:`Planner.initial`), marked ``initial``. Spark does not write
   them down, so the first batch ends at the same offsets, marked ``pinned``, and reads nothing: its
   entry in the query checkpoint holds the start for ever.
2. Each later batch ends where the read limits allow, moved to the end of a whole record
   (:meth:`Planner.next`). A record that is half written stays for a later batch.
3. A journal that appears later is pinned the same way: the batch it appears in records its first
   available offset and reads nothing of it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from gazette_spark.admission import Backlog, Limits, admit, admit_fragments, fragment_ends, is_due
from gazette_spark.errors import (
    DataLossError,
    JournalNotFoundError,
    OffsetBeyondHeadError,
    OffsetError,
    OptionError,
    SuspendedError,
)
from gazette_spark.framing.base import Framing
from gazette_spark.framing.metadata import Labels
from gazette_spark.offsets import JournalOffsets, changed, check_forward
from gazette_spark.options import SourceOptions
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.protocol.labels import label_set, values_of
from gazette_spark.query_range import EARLIEST, LATEST
from gazette_spark.scan.boundary import ReadWindow, limited_end, record_end, window_reader
from gazette_spark.scan.framings import framing_of
from gazette_spark.scan.ranges import OffsetRange, Piece, split
from gazette_spark.scan.timestamps import offset_at

if TYPE_CHECKING:
    from gazette_spark.client import Client

log = logging.getLogger(__name__)

THREADS = 8
"""Requests to the brokers at the same time."""

NO_LIMITS = Limits()

T = TypeVar("T")


class Planner:
    """Decides the positions of one query. To be used by one thread.

    What it remembers only saves work and repeated warnings, but for two things: the heads taken by
    :meth:`freeze`, which Spark asks for anew in each run, and when the last batch was, without which a
    batch does not wait.
    """

    def __init__(
        self, client: Client, options: SourceOptions, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._options = options
        self._clock = clock
        self._last_batch_s = -math.inf
        self._frozen: Mapping[str, int] | None = None
        self._unfinished: dict[str, tuple[int, int]] = {}
        """By journal, begin and write head between which no whole record was found."""
        self._warned: set[str] = set()
        self._heads: dict[str, int] = {}
        self._read_to_the_end: set[str] = set()
        """Journals that are gone, and of which nothing was left to read."""
        self._listed_from: dict[str, int] = {}
        """By journal, begin of a fragment before which none is left to read."""
        self._specs: dict[str, pb.JournalSpec] = {}

    def __repr__(self) -> str:
        return f"Planner({self._options.selection}, frozen={self._frozen is not None})"

    def initial(self) -> JournalOffsets:
        """Return where a new query starts, marked ``initial``."""
        return self._starts(self._chosen()).at("initial")

    def freeze(self) -> None:
        """Take the present write heads as the last ends this planner gives."""
        self._frozen = self._settled_heads(self._selected())

    def next(self, start: JournalOffsets, limits: Limits = NO_LIMITS) -> JournalOffsets:
        """Return where the batch that begins at ``start`` ends; ``start`` itself if nothing is new.

        After :meth:`freeze` no batch waits: what there was is all that will be.

        Raises:
            JournalNotFoundError: a journal of the query is gone with bytes that were not read, under
                ``failOnDataLoss=true``.
            OffsetBeyondHeadError: a journal ends before its offset in ``start``.
            RecordError: a record is longer than ``maxRecordBytes``.
        """
        if start.position == "initial":
            return start.at("pinned")
        try:
            return self._next(start, limits)
        except JournalNotFoundError as error:
            # It may have been deleted since it was listed; listing again says what that means.
            if error.journal in self._selected(start.read_through):
                raise
            return self._next(start, limits)

    def _next(self, start: JournalOffsets, limits: Limits) -> JournalOffsets:
        selected = self._selected(start.read_through)
        added = sorted(name for name in selected - start.read_through.keys() if self._may_add(name))
        heads = self._write_heads(start, selected & start.read_through.keys())
        backlogs = {journal: self._backlog(journal, start, head) for journal, head in sorted(heads.items())}
        firsts = self._each(self._client.first_offset, added)
        news = {journal: left for journal, left in backlogs.items() if self._has_news(journal, left)}
        ends = self._ends(news, limits)
        reached = {**start.read_through, **ends, **firsts}
        return start if reached == start.read_through else JournalOffsets(reached)

    def _ends(self, backlogs: Mapping[str, Backlog], limits: Limits) -> dict[str, int]:
        """Return where a batch ends in the journals it reads; nothing if it is to wait."""
        now = self._clock()
        left = sum(backlog.size_bytes for backlog in backlogs.values())
        if self._frozen is None and not is_due(left, now - self._last_batch_s, limits):
            return {}
        admitted = admit(self._whole_fragments(backlogs, limits.max_fragments), limits.max_bytes)
        ends = self._each(lambda name: self._end_of(name, backlogs[name], admitted[name]), backlogs)
        if any(end > backlogs[journal].begin for journal, end in ends.items()):
            self._last_batch_s = now
        return ends

    def _whole_fragments(self, backlogs: Mapping[str, Backlog], limit: int | None) -> Mapping[str, Backlog]:
        """Return what a limit of fragments leaves of the backlogs."""
        if limit is None:
            return backlogs
        spans = self._each(lambda journal: self._spans(journal, backlogs[journal].begin), backlogs)
        ends = {journal: fragment_ends(spans[journal], backlog) for journal, backlog in backlogs.items()}
        admitted = admit_fragments(ends, limit)
        return {journal: Backlog(left.begin, admitted[journal]) for journal, left in backlogs.items()}

    def _spans(self, journal: str, begin: int) -> list[tuple[int, int]]:
        """Return the spans of fragments from an offset on, and maybe of some before."""
        fragments = self._fragments(journal, page_token=self._listed_from.get(journal, 0))
        started = [each.begin for each in fragments if each.begin <= begin]
        self._listed_from[journal] = max(started, default=0)
        return [(each.begin, each.end) for each in fragments]

    def latest(self) -> JournalOffsets | None:
        """Return the write heads seen last, None before there are any."""
        return JournalOffsets(self._heads) if self._heads else None

    def batch(self) -> tuple[JournalOffsets, JournalOffsets]:
        """Return where a batch query starts and ends."""
        journals = self._chosen()
        start = self._starts(journals)
        heads = self._client.write_heads(journals)
        wanted = self._each(lambda journal: self._wanted_end(journal, heads[journal]), journals)
        option = "endingOffsets" if self._options.ending_timestamp is None else "endingTimestamp"
        for journal, begin in start.read_through.items():
            if wanted[journal] < begin:
                raise OffsetError(f"{option} lies before the start at {begin}", journal, wanted[journal])
        ends = self._each(
            lambda journal: self._whole_records(journal, start.read_through[journal], wanted[journal]),
            journals,
        )
        return start, JournalOffsets(ends)

    def pieces(self, start: JournalOffsets, end: JournalOffsets) -> list[Piece]:
        """Cut a batch into pieces.

        Raises:
            OffsetError: ``end`` cannot be reached from ``start``.
        """
        check_forward(start, end)
        ranges = [OffsetRange(journal, begin, stop) for journal, begin, stop in changed(start, end)]
        at_least, at_most = self._options.min_partitions or 1, self._options.max_bytes_per_partition
        # Only a range that will be cut needs its fragments: listing them costs a request per journal.
        large = [r.journal for r in ranges if at_least > len(ranges) or r.size_bytes > at_most]
        fragments = self._each(self._fragments, large)
        solid = {journal: [each for each in found if _is_solid(each)] for journal, found in fragments.items()}
        self._learn(each.journal for each in ranges)
        framings = self._each(self._framing, [each.journal for each in ranges])
        return split(
            ranges, fragments, solid=solid, framings=framings, min_partitions=at_least, max_bytes=at_most
        )

    def labels(self, journal: str) -> Labels:
        """Return a journal's labels, with the values of each name in order."""
        labels = self._spec(journal).labels
        names = sorted({label.name for label in labels.labels})
        return tuple((name, tuple(sorted(values_of(labels, name)))) for name in names)

    def _fragments(self, journal: str, **narrowed: int) -> list[Fragment]:
        """Return a journal's fragments, or those the client is asked for; none if it is wholly suspended."""
        try:
            return [each.fragment for each in self._client.list_fragments(journal, **narrowed)]
        except SuspendedError:
            return []

    def _offset_at(self, journal: str, timestamp_ms: int) -> int | None:
        # What was stored before need not be sent. Whatever is sent, the times are looked at again.
        since = self._fragments(journal, begin_mod_time=timestamp_ms // 1000)
        return offset_at(since, timestamp_ms)

    def _framing(self, journal: str) -> Framing:
        return framing_of(self._spec(journal), self._options)

    def _learn(self, journals: Iterable[str]) -> None:
        """List journals that were never listed, in one request: a batch that is run again begins so."""
        unknown = [journal for journal in journals if journal not in self._specs]
        if len(unknown) > 1:
            selector = pb.LabelSelector(include=label_set({"name": unknown}))
            self._specs |= {entry.spec.name: entry.spec for entry in self._client.list_journals(selector)}

    def _spec(self, journal: str) -> pb.JournalSpec:
        """Return a journal's spec, from the last list if it was in that."""
        if journal not in self._specs:
            self._specs[journal] = self._client.get_journal(journal).spec
        return self._specs[journal]

    def _each(self, answer: Callable[[str], T], journals: Iterable[str]) -> dict[str, T]:
        names = list(journals)
        if len(names) < 2:
            return {name: answer(name) for name in names}
        with ThreadPoolExecutor(min(THREADS, len(names)), "gazette-planner") as pool:
            return dict(zip(names, pool.map(answer, names), strict=True))

    def _selected(self, known: Mapping[str, int] | None = None) -> set[str]:
        """Return the journals that match; what is ``known`` but does not match any more is checked."""
        selection = self._options.selection
        selector: str | pb.LabelSelector = selection.selector
        if selection.names:
            selector = pb.LabelSelector(include=label_set({"name": list(selection.names)}))
        listed = [entry.spec for entry in self._client.list_journals(selector)]
        for spec in listed:
            framing_of(spec, self._options)  # Raises where label and options contradict each other.
            self._specs[spec.name] = spec
        found, known = {spec.name for spec in listed}, known or {}
        for name in selection.names:
            if name not in found | known.keys():
                raise JournalNotFoundError(name, f"option {selection.option!r} names it")
        self._each(lambda name: self._check_absent(name, known[name]), sorted(known.keys() - found))
        return found

    def _check_absent(self, journal: str, reached: int) -> None:
        """Say why a journal the query has read is not selected any more, or raise that it is gone.

        Only bytes that were not read are a loss. What was appended after this planner last saw the head
        cannot be known, nor, in a planner that never saw it, whether there was anything left.
        """
        try:
            self._client.get_journal(journal)
            self._warn(journal, "journal not selected any more, its offset is kept")
        except JournalNotFoundError as error:
            head = self._heads.get(journal)
            if head == reached:
                self._read_to_the_end.add(journal)
            if self._options.fail_on_data_loss and journal not in self._read_to_the_end:
                left = "maybe with bytes" if head is None else f"with {head - reached} bytes"
                detail = (
                    f"the query has read it up to offset {reached} and it is gone, {left} not read; "
                    "set failOnDataLoss=false to leave it out"
                )
                raise JournalNotFoundError(journal, detail) from error
            self._warn(journal, "journal is gone, its offset is kept")

    def _warn(self, journal: str, event: str) -> None:
        if journal not in self._warned:
            self._warned.add(journal)
            log.warning("%s journal=%s", event, journal)

    def _chosen(self) -> list[str]:
        """Return the journals of a new query, by name."""
        options = self._options
        journals = sorted(self._selected())
        if not journals:
            got = f"{options.selection.selector!r}, which matches no journal"
            raise OptionError(options.selection.option, got, "at least one journal when a query starts")
        edges = (("startingOffsets", options.starting_offsets), ("endingOffsets", options.ending_offsets))
        for option, choice in edges:
            for journal in sorted(choice.named.keys() - set(journals)):
                self._check_named(option, journal)
                got = f"journal {journal!r}, which option {options.selection.option!r} leaves out"
                raise OptionError(option, got, "journals of the query only")
        return journals

    def _check_named(self, option: str, journal: str) -> None:
        try:
            self._client.get_journal(journal)
        except JournalNotFoundError as error:
            raise JournalNotFoundError(journal, f"option {option!r} names it") from error

    def _starts(self, journals: Sequence[str]) -> JournalOffsets:
        choice, timestamp_ms = self._options.starting_offsets, self._options.starting_timestamp
        heads = self._settled_heads(journals)

        def start_of(journal: str) -> int:
            if timestamp_ms is not None:
                return self._start_at(journal, timestamp_ms, heads[journal])
            return self._start_of(journal, choice.of(journal), heads[journal])

        return JournalOffsets(self._each(start_of, journals))

    def _start_at(self, journal: str, timestamp_ms: int, head: int) -> int:
        found = self._offset_at(journal, timestamp_ms)
        if found is None and self._options.starting_offsets_by_timestamp_strategy == "error":
            raise OffsetError(
                f"nothing was stored at startingTimestamp {timestamp_ms} or later; "
                "set startingOffsetsByTimestampStrategy=latest to start at its write head",
                journal,
                head,
            )
        # A fragment may begin inside a record: that is read from its begin, as its end was appended later.
        first = self._client.first_offset(journal)
        place = head if found is None else found
        return self._whole_records(journal, min(first, place), place, skip_holes=True)

    def _start_of(self, journal: str, chosen: int, head: int) -> int:
        if chosen > head:
            raise OffsetError(f"startingOffsets lies past the write head {head}", journal, chosen)
        first = self._client.first_offset(journal)
        if chosen == EARLIEST:
            return first
        if chosen == LATEST:
            # The write head may lie inside a record that is half written.
            return self._whole_records(journal, first, head)
        if chosen < first:
            if self._options.fail_on_data_loss:
                raise DataLossError(journal, chosen, first)
            log.warning("bytes are gone, skipped journal=%s begin=%d end=%d", journal, chosen, first)
        if chosen > first:
            self._check_boundary(journal, chosen, head)
        return max(chosen, first)

    def _check_boundary(self, journal: str, offset: int, head: int) -> None:
        """Check that a record begins where the user says; half of one would be a row of its own."""
        window = window_reader(self._client, journal, fail_on_data_loss=False)
        framing = self._framing(journal)
        before, after = b"", b""
        if framing.header_bytes:
            after = window(offset, min(offset + framing.header_bytes, head))
        elif framing.trailer_bytes:
            before = window(offset - 1, offset)
        if not framing.may_begin(before, after):
            where = "at it begins" if framing.header_bytes else "before it ends"
            problem = (
                f"startingOffsets lies inside a record: what stands {where} none of framing {framing.name}"
            )
            raise OffsetError(problem, journal, offset)

    def _wanted_end(self, journal: str, head: int) -> int:
        timestamp_ms = self._options.ending_timestamp
        if timestamp_ms is not None:
            found = self._offset_at(journal, timestamp_ms)
            return head if found is None else min(found, head)
        chosen = self._options.ending_offsets.of(journal)
        if chosen > head:
            raise OffsetError(f"endingOffsets lies past the write head {head}", journal, chosen)
        return head if chosen == LATEST else chosen

    def _settled_heads(self, journals: Iterable[str]) -> dict[str, int]:
        """Return write heads that a broker which has just started cannot give too low.

        It answers with a head of 0 until it has listed the fragment stores; asking for the first
        offset waits for that.
        """
        names = sorted(journals)
        self._each(self._client.first_offset, names)
        return self._client.write_heads(names)

    def _write_heads(self, start: JournalOffsets, journals: Iterable[str]) -> dict[str, int]:
        heads = self._client.write_heads(sorted(journals))
        behind = [journal for journal, head in heads.items() if head < start.read_through[journal]]
        heads |= self._settled_heads(behind) if behind else {}
        for journal in behind:
            if heads[journal] < (reached := start.read_through[journal]):
                raise OffsetBeyondHeadError(journal, reached, heads[journal])
        self._heads = heads
        return heads

    def _may_add(self, journal: str) -> bool:
        return self._frozen is None or journal in self._frozen

    def _backlog(self, journal: str, start: JournalOffsets, head: int) -> Backlog:
        begin = start.read_through[journal]
        if self._frozen is not None:
            head = max(begin, min(head, self._frozen.get(journal, begin)))
        return Backlog(begin, head)

    def _has_news(self, journal: str, backlog: Backlog) -> bool:
        return backlog.size_bytes > 0 and self._unfinished.get(journal) != (backlog.begin, backlog.head)

    def _end_of(self, journal: str, backlog: Backlog, admitted: int) -> int:
        end = limited_end(
            self._window(journal),
            backlog.begin,
            admitted,
            backlog.head,
            self._options.max_record_bytes,
            journal=journal,
            framing=self._framing(journal),
        )
        if end == backlog.begin:
            self._unfinished[journal] = (backlog.begin, backlog.head)
        return end

    def _whole_records(self, journal: str, begin: int, end: int, *, skip_holes: bool = False) -> int:
        limit = self._options.max_record_bytes
        framing = self._framing(journal)
        window = self._window(journal, skip_holes=skip_holes)
        return record_end(window, begin, end, limit, journal=journal, framing=framing)

    def _window(self, journal: str, *, skip_holes: bool = False) -> ReadWindow:
        lossless = self._options.fail_on_data_loss and not skip_holes
        return window_reader(self._client, journal, fail_on_data_loss=lossless)


def _is_solid(fragment: Fragment) -> bool:
    """Tell whether reading from the middle of a fragment costs decompressing what is before."""
    return fragment.mod_time != 0 and fragment.codec != pb.NONE
