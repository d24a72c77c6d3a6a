"""Where a query starts, where each batch ends, and the pieces it is read in.

A :class:`Planner` runs on the driver and decides positions; executors read what it planned and decide
nothing. It asks a client for lists, write heads and small tail windows, and keeps no state that
matters: every answer follows from the position it is given and from the brokers, so a query goes on
after a crash with a new planner.

A position moves like this:

1. A new query is given its offsets (:meth:`Planner.initial`), marked ``initial``. Spark does not write
   them down, so the first batch ends at the same offsets, marked ``pinned``, and reads nothing: its
   entry in the query checkpoint holds the start for ever.
2. Each later batch ends where the read limit allows, moved to the end of a whole record
   (:meth:`Planner.next`). A record that is half written stays for a later batch.
3. A journal that appears later is pinned the same way: the batch it appears in records its first
   available offset and reads nothing of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from gazette_spark.admission import Backlog, admit
from gazette_spark.errors import (
    DataLossError,
    JournalNotFoundError,
    OffsetBeyondHeadError,
    OffsetError,
    OptionError,
)
from gazette_spark.framing.base import Framing
from gazette_spark.framing.metadata import Labels
from gazette_spark.offsets import JournalOffsets, changed, check_forward
from gazette_spark.options import EARLIEST, LATEST, SourceOptions
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import label_set, values_of
from gazette_spark.scan.boundary import ReadWindow, limited_end, record_end, window_reader
from gazette_spark.scan.framings import framing_of
from gazette_spark.scan.ranges import OffsetRange, Piece, split

if TYPE_CHECKING:
    from gazette_spark.client import Client

log = logging.getLogger(__name__)

THREADS = 8
"""Requests to the brokers at the same time."""

T = TypeVar("T")


class Planner:
    """Decides the positions of one query. To be used by one thread.

    What it remembers only saves work and repeated warnings, but for the heads taken by
    :meth:`freeze`, which Spark asks for anew in each run.
    """

    def __init__(self, client: Client, options: SourceOptions) -> None:
        self._client = client
        self._options = options
        self._frozen: Mapping[str, int] | None = None
        self._unfinished: dict[str, tuple[int, int]] = {}
        """By journal, begin and write head between which no whole record was found."""
        self._warned: set[str] = set()
        self._heads: dict[str, int] = {}
        self._specs: dict[str, pb.JournalSpec] = {}

    def __repr__(self) -> str:
        return f"Planner({self._options.selection}, frozen={self._frozen is not None})"

    def initial(self) -> JournalOffsets:
        """Return where a new query starts, marked ``initial``."""
        return self._starts(self._chosen()).at("initial")

    def freeze(self) -> None:
        """Take the present write heads as the last ends this planner gives."""
        self._frozen = self._settled_heads(self._selected())

    def next(self, start: JournalOffsets, max_bytes: int | None = None) -> JournalOffsets:
        """Return where the batch that begins at ``start`` ends; ``start`` itself if nothing is new.

        Raises:
            JournalNotFoundError: a journal of the query is gone, under ``failOnDataLoss=true``.
            OffsetBeyondHeadError: a journal ends before its offset in ``start``.
            RecordError: a record is longer than ``maxRecordBytes``.
        """
        if start.position == "initial":
            return start.at("pinned")
        try:
            return self._next(start, max_bytes)
        except JournalNotFoundError as error:
            # It may have been deleted since it was listed; listing again says what that means.
            if error.journal in self._selected(start.read_through):
                raise
            return self._next(start, max_bytes)

    def _next(self, start: JournalOffsets, max_bytes: int | None) -> JournalOffsets:
        selected = self._selected(start.read_through)
        added = sorted(name for name in selected - start.read_through.keys() if self._may_add(name))
        heads = self._write_heads(start, selected & start.read_through.keys())
        backlogs = {journal: self._backlog(journal, start, head) for journal, head in heads.items()}
        admitted = admit(backlogs, max_bytes)
        moving = [
            journal for journal, backlog in sorted(backlogs.items()) if self._has_news(journal, backlog)
        ]
        ends = self._each(lambda name: self._end_of(name, backlogs[name], admitted[name]), moving)
        firsts = self._each(self._client.first_offset, added)
        reached = {**start.read_through, **ends, **firsts}
        return start if reached == start.read_through else JournalOffsets(reached)

    def latest(self) -> JournalOffsets | None:
        """Return the write heads seen last, None before there are any."""
        return JournalOffsets(self._heads) if self._heads else None

    def batch(self) -> tuple[JournalOffsets, JournalOffsets]:
        """Return where a batch query starts and ends."""
        journals = self._chosen()
        start = self._starts(journals)
        heads = self._client.write_heads(journals)
        wanted = {journal: self._wanted_end(journal, heads[journal]) for journal in journals}
        for journal, begin in start.read_through.items():
            if wanted[journal] < begin:
                raise OffsetError(f"endingOffsets lies before the start at {begin}", journal, wanted[journal])
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
        fragments = self._each(
            lambda journal: [each.fragment for each in self._client.list_fragments(journal)], large
        )
        self._learn(each.journal for each in ranges)
        framings = self._each(self._framing, [each.journal for each in ranges])
        return split(ranges, fragments, framings=framings, min_partitions=at_least, max_bytes=at_most)

    def labels(self, journal: str) -> Labels:
        """Return a journal's labels, with the values of each name in order."""
        labels = self._spec(journal).labels
        names = sorted({label.name for label in labels.labels})
        return tuple((name, tuple(sorted(values_of(labels, name)))) for name in names)

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

    def _selected(self, known: Iterable[str] = ()) -> set[str]:
        """Return the journals that match; what is ``known`` but does not match any more is checked."""
        selection = self._options.selection
        selector: str | pb.LabelSelector = selection.selector
        if selection.names:
            selector = pb.LabelSelector(include=label_set({"name": list(selection.names)}))
        listed = [entry.spec for entry in self._client.list_journals(selector)]
        for spec in listed:
            framing_of(spec, self._options)  # Raises where label and options contradict each other.
            self._specs[spec.name] = spec
        found, known = {spec.name for spec in listed}, set(known)
        for name in selection.names:
            if name not in found | known:
                raise JournalNotFoundError(name)
        self._each(self._check_absent, sorted(known - found))
        return found

    def _check_absent(self, journal: str) -> None:
        """Say why a journal the query has read is not selected any more, or raise that it is gone."""
        try:
            self._client.get_journal(journal)
            self._warn(journal, "journal not selected any more, its offset is kept")
        except JournalNotFoundError as error:
            if self._options.fail_on_data_loss:
                detail = "the query has read it and it is gone; set failOnDataLoss=false to leave it out"
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
                self._client.get_journal(journal)  # Raises when there is no such journal at all.
                got = f"journal {journal!r}, which option {options.selection.option!r} leaves out"
                raise OptionError(option, got, "journals of the query only")
        return journals

    def _starts(self, journals: Sequence[str]) -> JournalOffsets:
        choice = self._options.starting_offsets
        heads = self._settled_heads(journals)
        return JournalOffsets(
            self._each(lambda name: self._start_of(name, choice.of(name), heads[name]), journals)
        )

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

    def _whole_records(self, journal: str, begin: int, end: int) -> int:
        limit = self._options.max_record_bytes
        framing = self._framing(journal)
        return record_end(self._window(journal), begin, end, limit, journal=journal, framing=framing)

    def _window(self, journal: str) -> ReadWindow:
        lossless = self._options.fail_on_data_loss
        return window_reader(self._client, journal, fail_on_data_loss=lossless)
