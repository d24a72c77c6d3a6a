"""The start of a query, the end of each batch, and the pieces of a batch.

A :class:`Planner` runs on the driver and decides positions; executors read the planned pieces and decide
nothing. It asks a client for lists, write heads and small tail windows, and keeps no state that
matters: every answer follows from the given position and from the brokers, so a query goes on
after a crash with a new planner.

A position moves like this:

1. A new query is given its offsets (:meth:`Planner.initial`), marked ``initial``. Spark does not write
   them down, so the first batch ends at the same offsets, marked ``pinned``, and reads nothing: its
   entry in the query checkpoint keeps the start.
2. Each later batch ends where the read limits allow, moved to the end of a whole record
   (:meth:`Planner.next`). A record that is half written stays for a later batch.
3. A journal that appears later is pinned the same way: the batch it appears in records its first
   available offset and reads nothing of it. A journal that is deleted is recorded, too, by a batch that may
   be empty.

Each position has the state of the journals when it was made: see ``offsets``. ``selection`` uses it when a
journal is gone, ``identities`` when it may be another one.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gazette_spark._formats.framing import Framing
from gazette_spark._formats.metadata import Labels
from gazette_spark._planning.admission import (
    Backlog,
    ReadLimits,
    admit,
    admit_fragments,
    allocate_limit,
    fragment_ends,
    is_due,
)
from gazette_spark._planning.boundary import limited_end, next_record_end, window_of
from gazette_spark._planning.ends import RangeResolver, counted_end, counted_end_of
from gazette_spark._planning.identities import JournalIdentities, RecordedWindow
from gazette_spark._planning.listing import JournalLister, RequestedJournals, selector_of
from gazette_spark._planning.pieces import OffsetRange, Piece, PlannedBytes, split
from gazette_spark._planning.reads import JournalSource, skipped_spans
from gazette_spark._planning.selection import QueryJournals
from gazette_spark._planning.states import OpenTransactions, StateFiles
from gazette_spark._planning.view import JournalView
from gazette_spark.client._read.heads import MANY, Tail
from gazette_spark.errors import JournalNotFoundError, OffsetError
from gazette_spark.message.columns import ProducerStates
from gazette_spark.offsets import (
    FINGERPRINT_BYTES,
    Fingerprint,
    JournalOffsets,
    changed,
    check_forward,
)
from gazette_spark.options.source import SourceOptions
from gazette_spark.protocol.spans import Spans, joined

log = logging.getLogger(__name__)

NO_LIMITS = ReadLimits()

TAIL_BYTES = 64 << 10
"""Bytes of a journal that come with its write head, at most ..."""

LOOK_BYTES = 64 << 20
"""... and of all journals together."""

SHOWN_RANGES = 3
"""Journals of a batch whose ranges are shown in the log, the largest ones."""


class Planner:
    """Decides the positions of one query. To be used by one thread.

    Its state only saves work and repeated warnings, with two exceptions. One is the heads read by
    :meth:`freeze`, which Spark calls again in each run. The other is the time of the last batch, without
    which a batch does not wait.
    """

    def __init__(
        self,
        client: JournalSource,
        options: SourceOptions,
        journals: JournalLister | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        many: int = MANY,
    ) -> None:
        self._view = JournalView(client, options)
        self._journals = journals or RequestedJournals(client, selector_of(options))
        self._identities = JournalIdentities(self._view)
        self._selection = QueryJournals(self._view, self._journals, self._identities)
        self._resolver = RangeResolver(self._view, self._selection, self._identities)
        if options.resume_offsets is not None:
            self._identities.take(options.resume_offsets.fingerprints)
        self._resumes = True
        """The next batch begins at a position that comes from outside."""
        self._clock = clock
        self._last_batch_s = -math.inf
        self._frozen: Mapping[str, int] | None = None
        self._unfinished: dict[str, tuple[int, int]] = {}
        """By journal, a begin and a write head with no whole record between them."""
        self._many = many
        """Journals of which heads are asked for alone, unless most of them have news."""
        self._mostly_news = False
        """Half of the journals had something new when last asked."""
        self._listed_from: dict[str, int] = {}
        """By journal, start of a fragment; earlier fragments have nothing left to read."""
        self._planned = PlannedBytes()
        self._open: OpenTransactions | None = None
        if options.reads_committed and options.state_location is not None:
            self._open = OpenTransactions(StateFiles(options.state_location))

    def close(self) -> None:
        """Close the watch of the list of journals; the client stays open."""
        self._journals.close()

    def __repr__(self) -> str:
        return f"Planner({self._view.options.selection}, frozen={self._frozen is not None})"

    def initial(self) -> JournalOffsets:
        """Return the start of a new query, marked ``initial``."""
        self._resumes = False
        first = self._resolver.initial()
        if self._view.options.reads_committed:
            first = replace(first, starts=self._starts(first))
        return first.at("initial")

    def _starts(self, first: JournalOffsets) -> dict[str, int]:
        """Return where the messages of a new query begin: a table's query goes on with the states it had."""
        choice = self._view.options.resume_offsets
        resumed = choice.named if choice else {}
        names = [name for name, offset in first.read_through.items() if 0 < resumed.get(name, 0) == offset]
        if not names:
            return dict(first.read_through)
        files = StateFiles(self._view.options.state_location or "")

        def start_of(journal: str) -> int:
            offset = first.read_through[journal]
            found = files.load(journal, offset, None)
            if found is None:
                raise OffsetError(
                    "resumeOffsets goes on where a table ends, and stateLocation does not have the states of "
                    "producers there: which transactions are open is not known. Name the stateLocation that "
                    "the table's query had",
                    journal,
                    offset,
                )
            return found[1]

        return {**first.read_through, **self._view.map_journals(start_of, names)}

    def freeze(self, ends: JournalOffsets | None = None) -> None:
        """Take the present write heads, or these, as the last ends this planner gives."""
        if ends is not None:
            self._frozen = ends.read_through
            return
        # A named journal may be gone because the query has read it: the position tells.
        self._frozen = self._view.final_heads(self._selection.listed(), {})

    def next(self, start: JournalOffsets, limits: ReadLimits = NO_LIMITS) -> JournalOffsets:
        """Return the end of the batch that begins at ``start``; ``start`` itself if nothing is new.

        After :meth:`freeze` no batch waits: the frozen heads are final.

        Raises:
            JournalNotFoundError: a journal of the query is gone with bytes that were not read, under
                ``failOnDataLoss=true``.
            JournalRecreatedError: a journal was deleted and created again.
            OffsetBeyondHeadError: a journal ends before its offset in ``start``.
            OtherJournalsError: ``start`` is the position of another source.
            RecordError: a record is longer than ``maxRecordBytes``.
        """
        if start.position == "initial":
            log.info("%s", start_line(start.read_through, start.heads))
            return start.at("pinned")
        self._check_continued(start)
        if self._open is not None:
            self._open.refresh(start, self._view.map_journals)
        try:
            return self._next(start, limits)
        except JournalNotFoundError as error:
            # It may have been deleted since it was listed; listing again says what that means.
            if error.journal in self._selection.selected(start, fresh=True):
                raise
            return self._next(start, limits)

    def _next(self, start: JournalOffsets, limits: ReadLimits) -> JournalOffsets:
        if self._resumes:
            self._identities.take(start.fingerprints)
        selected = self._selection.selected(start)
        added = sorted(name for name in selected - start.read_through.keys() if self._may_add(name))
        tails = self._tails(start, sorted(selected & start.read_through.keys()))
        heads = self._write_heads(start, {journal: tail.write_head for journal, tail in tails.items()})
        backlogs = {journal: self._backlog(journal, start, head) for journal, head in sorted(heads.items())}
        firsts = self._view.map_journals(self._view.client.first_offset, added)
        news = {journal: left for journal, left in backlogs.items() if self._has_news(journal, left)}
        reached = {journal: start.read_through[journal] for journal in news}
        self._identities.compare_first(reached, self._selection.created, heads)
        renewed = self._identities.renewed
        news = {journal: left for journal, left in news.items() if journal not in renewed}
        self._mostly_news = 2 * len(news) > len(backlogs)
        ends = self._ends(news, limits, tails)
        reached = {**start.read_through, **ends, **firsts}
        if reached == start.read_through and self._selection.gone == start.gone and not renewed:
            return start
        seen = heads | self._view.client.write_heads(added)
        position, gaps = self._position(start, reached, seen), self._gaps(start, ends, tails)
        if not gaps:
            return position
        log.warning("%s", gaps_line(gaps))
        return replace(position, gaps=gaps)

    def _check_continued(self, start: JournalOffsets) -> None:
        if self._resumes:
            self._selection.check_continued(start)

    def _gaps(
        self, start: JournalOffsets, ends: Mapping[str, int], tails: Mapping[str, Tail]
    ) -> dict[str, tuple[tuple[int, int], ...]]:
        """Return the missing bytes of a batch, by journal; nothing where missing bytes are an error."""
        if self._view.options.fail_on_data_loss:
            return {}
        # Bytes that are here are available.
        begins = {
            name: begin
            for name, end in ends.items()
            if (begin := start.read_through[name]) < end
            and tails[name].content is None
            and name not in self._planned
        }
        return self._missing(begins, ends)

    def completed(self, start: JournalOffsets, end: JournalOffsets) -> JournalOffsets:
        """Return the end of a batch that begins at ``start`` with what the ledger records of it.

        That is a fingerprint of each journal that the batch reads, which takes a small read, and the missing
        bytes; where those are an error, none.
        """
        begins = {journal: begin for journal, begin, _ in changed(start, end)}

        def read(journal: str) -> None:
            until = end.read_through[journal]
            content = self._view.window(journal, skip_holes=True)(max(0, until - FINGERPRINT_BYTES), until)
            self._identities.read(journal, begins[journal], until, content)

        self._view.map_journals(read, begins)
        prints = self._identities.finish(end.read_through, self._selection.created)
        gaps = {} if self._view.options.fail_on_data_loss else self._missing(begins, end.read_through)
        return replace(end, gaps=gaps, fingerprints=prints)

    def compare(
        self, recorded: Mapping[str, Fingerprint], reached: Mapping[str, int], ends: Mapping[str, int]
    ) -> dict[str, Fingerprint]:
        """Compare journals with the fingerprints of a table's ledger.

        A store may lack bytes that a table has from brokers. Those are not compared.

        Args:
            recorded: The ledger's fingerprints.
            reached: Where the table's rows end.
            ends: Journals of the query, and where their bytes end today.

        Returns:
            The fingerprints under today's creations. They show the sink which journals were compared.

        Raises:
            JournalRecreatedError: a journal is another one than the table has rows of.
        """
        there = {name: each for name, each in recorded.items() if name in ends and each.end <= ends[name]}
        self._identities.take(there)
        known = {name: reached[name] for name in there}
        self._identities.compare_first(known, self._selection.created, ends)
        return self._identities.pinned(known, {})

    def _missing(
        self, begins: Mapping[str, int], ends: Mapping[str, int]
    ) -> dict[str, tuple[tuple[int, int], ...]]:
        def skipped(journal: str) -> Spans:
            end, listed = ends[journal], self._spans(journal, begins[journal])
            missing = skipped_spans(self._view.client, journal, listed, begins[journal], end)
            return joined((low, self._resynced(journal, high, end)) for low, high in missing)

        return {
            name: tuple(spans) for name, spans in self._view.map_journals(skipped, begins).items() if spans
        }

    def _resynced(self, journal: str, hole_end: int, end: int) -> int:
        """Return where the rows of a batch go on behind a hole that ends here."""
        framing = self._view.framing(journal)
        if hole_end == end or not framing.resyncs:
            return hole_end
        window, longest = self._view.window(journal), self._view.options.max_record_bytes
        found = next_record_end(window, hole_end, end, longest, journal=journal, framing=framing)
        return end if found is None else found

    def _position(
        self, start: JournalOffsets, reached: Mapping[str, int], heads: Mapping[str, int]
    ) -> JournalOffsets:
        """Return a position with the state of the journals when it was made."""
        gone = self._selection.gone
        starts: dict[str, int] = {}
        if self._view.options.reads_committed:
            known = {**reached, **start.read_through, **start.starts}
            starts = {journal: known[journal] for journal in reached}
        created = self._selection.created
        new = {name: at for name, at in reached.items() if name not in start.read_through}
        prints = self._identities.pinned(new, created) | self._identities.finish(reached, created)
        if not (revision := self._selection.revision):
            return JournalOffsets(reached, gone=gone, starts=starts, fingerprints=prints)
        kept = {name: start.heads[name] for name in self._selection.paused if name in start.heads}
        behind = {journal: head for journal, head in heads.items() if head > reached[journal]}
        return JournalOffsets(
            reached,
            revision=revision,
            heads=kept | behind,
            gone=gone,
            starts=starts,
            fingerprints=prints,
        )

    def _ends(
        self, backlogs: Mapping[str, Backlog], limits: ReadLimits, tails: Mapping[str, Tail]
    ) -> dict[str, int]:
        """Return the end of a batch in the journals it reads; nothing if it is to wait."""
        now = self._clock()
        left = sum(backlog.size_bytes for backlog in backlogs.values())
        if self._frozen is None and not is_due(left, now - self._last_batch_s, limits):
            return {}
        admitted = admit(self._whole_fragments(backlogs, limits.max_fragments), limits.max_bytes)
        sizes = {name: end - backlogs[name].begin for name, end in admitted.items()}
        # A journal's most records; a record has at least one byte.
        most = allocate_limit(sizes, limits.max_records)

        contents = self._contents(backlogs, tails)

        def end_of(name: str) -> int:
            return self._end_of(name, backlogs[name], admitted[name], most[name], contents.get(name))

        # Bytes in memory need no wait, and a thread costs more than the search.
        ends = self._view.map_journals(end_of, backlogs.keys() - contents.keys())
        ends |= {name: end_of(name) for name in contents}
        self._planned.keep({name: backlogs[name].begin for name in contents}, ends, contents)
        if any(end > backlogs[journal].begin for journal, end in ends.items()):
            self._last_batch_s = now
        return ends

    def _whole_fragments(self, backlogs: Mapping[str, Backlog], limit: int | None) -> Mapping[str, Backlog]:
        """Return the backlogs, cut to a limit of fragments."""
        if limit is None:
            return backlogs
        spans = self._view.map_journals(
            lambda journal: self._spans(journal, backlogs[journal].begin), backlogs
        )
        ends = {journal: fragment_ends(spans[journal], backlog) for journal, backlog in backlogs.items()}
        admitted = admit_fragments(ends, limit)
        return {journal: Backlog(left.begin, admitted[journal]) for journal, left in backlogs.items()}

    def _spans(self, journal: str, begin: int) -> list[tuple[int, int]]:
        """Return the spans of fragments from an offset on, and maybe of some before."""
        fragments = self._view.fragments(journal, page_token=self._listed_from.get(journal, 0))
        started = [each.begin for each in fragments if each.begin <= begin]
        self._listed_from[journal] = max(started, default=0)
        return [(each.begin, each.end) for each in fragments]

    def latest(self) -> JournalOffsets | None:
        """Return the write heads seen last, None before there are any."""
        return JournalOffsets(self._selection.heads) if self._selection.heads else None

    def check_heads(self, reached: Mapping[str, int]) -> None:
        """Raise OffsetBeyondHeadError if a journal ends before an offset that was already read."""
        self._view.check_heads(reached)

    def open_transactions(self) -> dict[str, Any]:
        """Return the transactions that were open where the last batch ended, by journal."""
        return {} if self._open is None else self._open.to_dict()

    def batch(self) -> tuple[JournalOffsets, JournalOffsets]:
        """Return start and end of a batch query in each of its journals."""
        self._resumes = False
        start, end = self._resolver.batch()
        since = self._view.options.messages_since or {}
        for journal, first in since.items():
            if first > start.read_through.get(journal, first):
                raise OffsetError("messagesSince lies past the start of the query", journal, first)
        starts = {journal: first for journal, first in since.items() if journal in end.read_through}
        return start, replace(end, starts=starts)

    def continued_starts(self, begin: JournalOffsets, recorded: Mapping[str, int]) -> dict[str, int]:
        """Return where the query of a table's committed messages began, as far as states are known since.

        Where journals begin that the table does not have, the states are written: no task may come by there.

        Args:
            begin: The end of the table's rows; of journals that it does not have, where they are to begin.
            recorded: Where the table's rows begin.
        """
        files = StateFiles(self._view.options.state_location or "")

        def start_of(journal: str) -> int:
            offset = begin.read_through[journal]
            if journal not in recorded:
                files.save(journal, offset, offset, ProducerStates.none())
                return offset
            found = files.load(journal, offset, None)
            return recorded[journal] if found is None else min(recorded[journal], found[1])

        return self._view.map_journals(start_of, begin.read_through)

    def pieces(self, start: JournalOffsets, end: JournalOffsets) -> list[Piece]:
        """Cut a batch into pieces.

        Raises:
            OffsetError: ``end`` cannot be reached from ``start``, or ``start`` is where no record begins.
            OtherJournalsError: ``start`` is the position of another source.
        """
        check_forward(start, end)
        self._check_continued(start)
        if self._resumes:
            self._compare_planned(start, end)
        ranges = [OffsetRange(journal, begin, stop) for journal, begin, stop in changed(start, end)]
        if self._resumes and self._view.options.fail_on_data_loss:
            self._resolver.check_resumed(ranges)
        self._resumes = False
        self._view.refresh_specs(each.journal for each in ranges)
        framings = {each.journal: self._view.framing(each.journal) for each in ranges}
        if self._view.options.reads_committed:
            pieces = [
                replace(piece, start=end.starts.get(piece.journal, piece.begin))
                for piece in split(ranges, framings=framings)
            ]
        else:
            pieces = self._split(ranges, framings)
        pieces = self._planned.attach_to(pieces)
        log.info("%s", batch_line(ranges, len(pieces), end.read_through, self._selection.heads))
        return pieces

    def _compare_planned(self, start: JournalOffsets, end: JournalOffsets) -> None:
        """Compare the journals of a batch that another run planned, and that runs again."""
        names = [journal for journal, _, _ in changed(start, end)]
        planned = {name: end.fingerprints[name] for name in names if name in end.fingerprints}
        if not self._identities.has_all(planned):  # Else this run planned it.
            replayed = JournalIdentities(self._view)
            replayed.take(planned)
            ends = {name: end.read_through[name] for name in planned}
            replayed.compare_first(ends, self._selection.created, self._view.check_heads(ends))
        # The next batch continues this one. Without its fingerprints, a journal that was created again over
        # its own bytes could not be compared there, and would be refused.
        self._identities.go_on_from(planned)
        self._identities.take(start.fingerprints)

    def _split(self, ranges: Sequence[OffsetRange], framings: Mapping[str, Framing]) -> list[Piece]:
        at_least, at_most = self._view.options.min_partitions or 1, self._view.options.max_bytes_per_partition
        # Only a range that will be cut needs its fragments: listing them costs a request per journal.
        large = {r.journal for r in ranges if at_least > len(ranges) or r.size_bytes > at_most}
        fragments = self._view.map_journals(self._view.fragments, sorted(large))
        solid = {name: [each for each in found if each.is_compressed] for name, found in fragments.items()}
        return split(
            ranges, fragments, solid=solid, framings=framings, min_partitions=at_least, max_bytes=at_most
        )

    def labels(self, journal: str) -> Labels:
        """Return a journal's labels, with the values of each name in order."""
        return self._view.labels(journal)

    def _tails(self, start: JournalOffsets, journals: Sequence[str]) -> dict[str, Tail]:
        """Return the journals' write heads; for journals that were fully read, also their new bytes."""
        behind = [name for name in journals if self._is_behind(name, start)]
        heads = self._view.client.write_heads(behind)
        # To ask for these takes three calls, and they have nothing new.
        heads |= {
            name: start.read_through[name]
            for name in journals
            if self._view.suspended_at(name) == start.read_through[name]
        }
        near = {name: start.read_through[name] for name in journals if name not in heads}
        if len(near) >= self._many and not self._mostly_news:
            # A head costs half of a tail, so where few journals have news the rest is not asked for one.
            heads |= self._view.client.write_heads(list(near))
            near = {}
        return self._asked_tails(near) | {name: Tail(head) for name, head in heads.items()}

    def _is_behind(self, journal: str, start: JournalOffsets) -> bool:
        """Tell whether a journal had more to read when it was seen last: no look brings it twice."""
        head = self._selection.heads.get(journal, start.head_seen(journal))
        return head is not None and head > start.read_through[journal]

    def _contents(self, backlogs: Mapping[str, Backlog], tails: Mapping[str, Tail]) -> dict[str, bytes]:
        """Return the unread bytes of the journals that have few of them."""
        small = {
            name: left.begin
            for name, left in backlogs.items()
            if tails[name].content is None and left.size_bytes <= TAIL_BYTES
        }
        found = dict(tails) | self._asked_tails(small)
        contents = {name: found[name].content for name in backlogs}
        return {name: content for name, content in contents.items() if content is not None}

    def _asked_tails(self, offsets: Mapping[str, int]) -> dict[str, Tail]:
        if not offsets:
            return {}
        return self._view.client.tails(offsets, max(1, min(TAIL_BYTES, LOOK_BYTES // len(offsets))))

    def _write_heads(self, start: JournalOffsets, seen: Mapping[str, int]) -> dict[str, int]:
        # A head below what was read, or below the end of the run, may be that of a replica that has just
        # joined the journal. Taken as it is, it would be a loss, or end the run with bytes left to read.
        frozen, read = self._frozen or {}, start.read_through
        expected = {name: max(read[name], frozen.get(name, 0)) for name in seen}
        unsettled = {name: offset for name, offset in expected.items() if seen[name] < offset}
        heads = dict(seen)
        if unsettled:
            heads |= self._view.check_heads({name: read[name] for name in unsettled}, unsettled)
        self._selection.see(heads)
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

    def _end_of(self, journal: str, backlog: Backlog, admitted: int, most: int, content: bytes | None) -> int:
        begin, options = backlog.begin, self._view.options
        window, framing = RecordedWindow(self._view.window(journal)), self._view.framing(journal)
        counts = most < admitted - begin
        if content is not None:
            window = RecordedWindow(window_of(content, begin, window))
            if counts:
                admitted = counted_end_of(content[: admitted - begin], begin, most, framing)
        elif counts:
            admitted = counted_end(
                self._view.client,
                Piece(journal, begin, admitted, admitted, starts_on_record=True, framing=framing.name),
                most,
                fail_on_data_loss=options.fail_on_data_loss,
                max_record_bytes=options.max_record_bytes,
                framing=framing,
            )
        end = limited_end(
            window,
            begin,
            admitted,
            backlog.head,
            options.max_record_bytes,
            journal=journal,
            framing=framing,
        )
        if end == backlog.begin:
            self._unfinished[journal] = (backlog.begin, backlog.head)
        self._identities.read(journal, begin, end, window.before(end))
        return end


def batch_line(
    ranges: Sequence[OffsetRange], pieces: int, behind: Mapping[str, int], heads: Mapping[str, int]
) -> str:
    """Return the line about a planned batch.

    Args:
        ranges: ranges that the batch reads.
        pieces: number of its tasks.
        behind: end of the batch in each journal of the query.
        heads: write heads as far as they were seen; empty for a batch that is run again.
    """
    lag = sum(max(0, heads[journal] - end) for journal, end in behind.items() if journal in heads)
    unseen = len(behind.keys() - heads.keys()) if heads else 0
    largest = sorted(ranges, key=lambda each: (-each.size_bytes, each.journal))
    shown = [f"{each.journal}[{each.begin},{each.end})" for each in largest[:SHOWN_RANGES]]
    shown += [f"+{len(largest) - SHOWN_RANGES}"] if len(largest) > SHOWN_RANGES else []
    parts = [
        f"batch planned journals={len(ranges)} bytes={sum(each.size_bytes for each in ranges)}",
        f"pieces={pieces} ranges={','.join(shown)}",
        *([f"lag_bytes={lag}"] if heads else []),
        *([f"unseen={unseen}"] if unseen else []),
    ]
    return " ".join(parts)


def gaps_line(gaps: Mapping[str, Sequence[tuple[int, int]]]) -> str:
    """Return the line about missing bytes that a batch skips."""
    sizes = {journal: sum(end - begin for begin, end in spans) for journal, spans in gaps.items()}
    largest = sorted(sizes, key=lambda journal: (-sizes[journal], journal))
    shown = [f"{journal}:{sizes[journal]}" for journal in largest[:SHOWN_RANGES]]
    shown += [f"+{len(largest) - SHOWN_RANGES}"] if len(largest) > SHOWN_RANGES else []
    figures = f"journals={len(sizes)} bytes={sum(sizes.values())} largest={','.join(shown)}"
    return f"batch skips missing bytes {figures}"


def start_line(starts: Mapping[str, int], heads: Mapping[str, int]) -> str:
    """Return the line about a query that starts, ``heads`` being of the journals that have more to read."""
    left = sum(head - starts[journal] for journal, head in heads.items())
    return f"query starts journals={len(starts)} lag_bytes={left}"
