"""Decides what a query reads: the start of a query, the end of each batch, and the pieces of a batch.

A :class:`Planner` runs on the driver and decides positions. Executors read the planned pieces and decide
nothing. The planner requests lists, write heads and short tails from a client. Every answer depends only on
the position and on the brokers, so a query continues after a crash with a new planner.

A position moves like this:

1. A new query gets its offsets from :meth:`Planner.initial`, marked ``initial``. Spark does not store them,
   so the first batch ends at the same offsets, marked ``pinned``, and reads nothing: its entry in the query
   checkpoint stores the start.
2. Each later batch ends where the read limits allow, moved to the end of a whole record
   (:meth:`Planner.next`). A half-written record waits for a later batch.
3. A journal that appears later is pinned the same way: the batch in which it appears records its first
   available offset, or its end in the table that ``resumeOffsets`` describes, and reads nothing of it. The
   deletion of a journal is also recorded by a batch, which may be empty.

Each position has the state of the journals at its time (see ``offsets``). ``selection`` uses that state when
a journal is gone, and ``identities`` when a journal may be another one of the same name.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from gazette_spark._formats.metadata import Labels
from gazette_spark._options.source import READ_COMMITTED, SourceOptions
from gazette_spark._planning.access import open_client, show_logs
from gazette_spark._planning.admission import (
    Backlog,
    ReadLimits,
    admit,
    admit_fragments,
    allocate_limit,
    fragment_ends,
    is_due,
)
from gazette_spark._planning.boundary import next_record_end
from gazette_spark._planning.ends import RangeResolver, range_end
from gazette_spark._planning.identities import JournalIdentities
from gazette_spark._planning.listing import JournalLister, RequestedJournals, follow, selector_of
from gazette_spark._planning.pieces import OffsetRange, Piece, PlannedBytes, split
from gazette_spark._planning.reads import JournalSource, skipped_spans
from gazette_spark._planning.selection import QueryJournals
from gazette_spark._planning.states import OpenTransactions, StateFiles
from gazette_spark._planning.view import JournalView
from gazette_spark.client._read.heads import MANY, Tail
from gazette_spark.errors import JournalNotFoundError, OffsetError, OptionError
from gazette_spark.message.bulk_sequencer import ProducerStates
from gazette_spark.offsets import (
    FINGERPRINT_BYTES,
    Fingerprint,
    JournalOffsets,
    changed,
    check_forward,
)
from gazette_spark.protocol.spans import joined

if TYPE_CHECKING:
    from gazette_spark.client import Client

log = logging.getLogger(__name__)

T = TypeVar("T")

NO_LIMITS = ReadLimits()

IDLE_POLL_S = 0.1
"""Minimum seconds between two polls of journals that had nothing new. By default Spark asks 100 times a
second, and each poll costs the brokers a call per journal."""

SETTLED_S = 10.0
"""Seconds for which a settled head counts, as long as brokers report the same lower head."""

TAIL_BYTES = 64 << 10
"""Maximum bytes of a journal that are fetched with its write head."""

TOTAL_TAIL_BYTES = 64 << 20
"""Maximum bytes of all journals that are fetched with their write heads."""

SHOWN_RANGES = 3
"""Number of a batch's ranges that the log shows: the largest ones."""


class Planner:
    """Decides the positions of one query. For one thread.

    Its state is a cache, and suppresses repeated warnings, with two exceptions: the heads that :meth:`freeze`
    takes, which Spark calls again in each run, and the time of the last batch, from which delays count.
    """

    def __init__(
        self,
        client: JournalSource,
        options: SourceOptions,
        journals: JournalLister | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        many: int = MANY,
        idle_poll_s: float = 0,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        """Plan a query's batches.

        Args:
            client: Brokers or a store. The planner does not close it.
            options: The query's options.
            journals: Lists the query's journals; by default each poll requests the list.
            clock: Seconds from any origin.
            many: With at least this many journals, only write heads are requested, without new bytes, unless
                most journals have new bytes.
            idle_poll_s: Minimum seconds between two polls without new bytes; 0 disables waiting.
            wait: Waits for a number of seconds.
        """
        self._view = JournalView(client, options)
        self._journals = journals or RequestedJournals(client, selector_of(options))
        self._identities = JournalIdentities(self._view)
        self._selection = QueryJournals(self._view, self._journals, self._identities)
        self._resolver = RangeResolver(self._view, self._selection, self._identities)
        # Fingerprints of the table's ledger come before those of any position, because the first one of a
        # journal stays, and the sink compares journals by the ledger's ranges.
        if options.resume_offsets is not None:
            self._identities.take(options.resume_offsets.fingerprints)
        # Without `stateLocation`, tasks leave no files from which the open transactions could be reported.
        self._open: OpenTransactions | None = None
        if options.reads_committed and options.state_location is not None:
            self._open = OpenTransactions(StateFiles(options.state_location, options.uuid_path or ""))
        self._clock, self._many, self._idle_poll_s, self._wait = clock, many, idle_poll_s, wait
        self._from_checkpoint = True
        """Whether the next batch begins at a position that this planner has not made."""
        self._frozen: Mapping[str, int] | None = None
        # A position does not have the time of its batch. So the first batch of a run counts as having waited
        # forever: a restart must not delay bytes that have already waited.
        self._last_batch_s = -math.inf
        self._idle_until_s = -math.inf
        self._unfinished: dict[str, tuple[int, int]] = {}
        """Begin and write head by journal, with no whole record between them."""
        self._settled: dict[str, tuple[int, int, float]] = {}
        """Reported head, head that the members confirmed instead, and the time until which it counts."""
        self._mostly_news = False
        """Whether more than half of the journals had new bytes at the last poll."""
        self._planned = PlannedBytes()

    def close(self) -> None:
        """Close the watch of the list of journals. The client stays open."""
        self._journals.close()

    def __repr__(self) -> str:
        return f"Planner({self._view.options.selection}, frozen={self._frozen is not None})"

    def initial(self) -> JournalOffsets:
        """Return the start of a new query, marked ``initial``.

        Raises:
            OffsetError: the query continues a table of committed messages, and ``stateLocation`` lacks their
                producers' states.
        """
        # The options decide this position. There is no checkpoint that could belong to another source.
        self._from_checkpoint = False
        first = self._without_deleted(self._resolver.initial, self._selection.listed)
        if not self._view.options.reads_committed:
            return first.at("initial")
        return replace(first, starts=self._message_starts(first.read_through)).at("initial")

    def _message_starts(self, firsts: Mapping[str, int]) -> dict[str, int]:
        """Return the offsets since which messages of journals count that the query starts at ``firsts``."""
        # The messages of a new query begin at its start. A query that continues a table needs the states of
        # producers that the table's query had, because a transaction open at its end began earlier.
        options = self._view.options
        resumed = options.resume_offsets.named if options.resume_offsets else {}
        # A journal that the table lacks, or whose first bytes after the table's end are gone, has no states
        # to continue: its messages begin at its start.
        names = [name for name, offset in firsts.items() if 0 < resumed.get(name, 0) == offset]
        if not names:
            return dict(firsts)
        files = StateFiles(options.state_location or "", options.uuid_path or "")

        def start_of(journal: str) -> int:
            # The file may be of any query. States follow from the journal's bytes since that query's start,
            # which the file names and this query takes over.
            loaded = files.load(journal, firsts[journal], None)
            if loaded is None:
                raise OffsetError(
                    "resumeOffsets continues at a table's end, but stateLocation does not have the "
                    "states of producers there, so the open transactions are unknown. Set the "
                    "stateLocation of the table's query",
                    journal,
                    firsts[journal],
                )
            return loaded[1]

        return {**firsts, **self._view.map_journals(start_of, names)}

    def freeze(self, ends: JournalOffsets | None = None) -> None:
        """Take the current write heads, or ``ends``, as the final ends of this run."""
        if ends is not None:
            self._frozen = ends.read_through
            return
        # A journal that an option names may be gone because the query has read all of it. Only the position
        # can show that, so its absence is not an error here.
        self._frozen = self._without_deleted(
            lambda: self._view.final_heads(self._selection.listed(), {}), self._selection.listed
        )

    def next(self, start: JournalOffsets, limits: ReadLimits = NO_LIMITS) -> JournalOffsets:
        """Return the end of the batch that begins at ``start``; ``start`` itself if nothing is new.

        After :meth:`freeze` no batch waits: the frozen heads are final.

        Raises:
            JournalNotFoundError: a journal of the query is gone with unread bytes, under
                ``failOnDataLoss=true``.
            JournalRecreatedError: a journal was deleted and created again.
            OffsetBeyondHeadError: a journal ends before its offset in ``start``.
            OptionError: ``start`` is of a query of committed messages, and this query reads all messages, or
                has another ``uuidPath``.
            OtherJournalsError: ``start`` is the position of another source.
            RecordError: a record is longer than ``maxRecordBytes``.
        """
        # Spark does not store where a new query starts. So its first batch reads nothing and ends where it
        # begins: the query checkpoint then has the start, and a restart cannot choose another one.
        if start.position == "initial":
            log.info("%s", start_line(start.read_through, start.heads))
            return start.at("pinned")

        # If nothing was new, Spark asks again immediately. The pause is at least as long as the last poll
        # took, so that polling thousands of journals occupies the brokers at most half of the time. A run
        # with frozen heads never waits for new bytes.
        began_s = self._clock()
        if self._frozen is None and self._idle_poll_s and self._idle_until_s > began_s:
            self._wait(self._idle_until_s - began_s)
            began_s = self._clock()

        # Spark pairs the positions of a checkpoint with a query's sources by their order alone. If the
        # sources were swapped, the position belongs to other journals.
        if self._from_checkpoint:
            self._selection.check_continued(start)
            # Messages before the position whose transactions are open there are in no batch yet, and a query
            # that reads all messages would begin behind them.
            if start.starts and not self._view.options.reads_committed:
                raise _other_isolation(start, "messages of transactions that were open there would be lost")
        # Spark collects no figures from tasks, so the driver reads their files for the query's progress.
        # Those of the last batch are complete, because Spark plans a batch after the previous one has ended.
        if self._open is not None:
            self._open.refresh(start, self._view.map_journals)
        end = self._without_deleted(
            lambda: self._batch_end(start, limits), lambda: self._selection.selected(start, fresh=True)
        )
        if end is start:
            now_s = self._clock()
            self._idle_until_s = now_s + max(self._idle_poll_s, now_s - began_s)
        return end

    def _without_deleted(self, plan: Callable[[], T], selected: Callable[[], Collection[str]]) -> T:
        """Plan again as long as a journal was deleted after it was listed.

        Args:
            plan: Lists the journals, and requests something about them.
            selected: Lists the journals again, and raises if bytes are lost.
        """
        while True:
            try:
                return plan()
            except JournalNotFoundError as error:
                # A journal that the list did not have is misspelt, or is gone with unread bytes.
                if error.journal not in self._selection.names or error.journal in selected():
                    raise

    def _batch_end(  # noqa: C901 - one story, told in order
        self, start: JournalOffsets, limits: ReadLimits
    ) -> JournalOffsets:
        view, selection, identities = self._view, self._selection, self._identities
        begins, frozen = start.read_through, self._frozen

        # While no query ran, a journal may have been deleted and another one created under its name. The
        # fingerprints in the run's first position reveal that before anything is read.
        if self._from_checkpoint:
            identities.take(start.fingerprints)

        # Which journals exist? Absence from the list proves nothing: journals of the position that the list
        # lacks are looked up by name, and an error is raised here if one is gone with unread bytes.
        selected = selection.selected(start)
        # A journal that appeared after the heads were frozen has no final end, so the run leaves it out.
        added = sorted(name for name in selected - begins.keys() if frozen is None or name in frozen)

        # Which have new bytes? Only bytes up to a frozen head count.
        tails = self._poll(start, sorted(selected & begins.keys()))
        heads = {name: tail.write_head for name, tail in tails.items()}
        backlogs = {}
        for name, head in sorted(heads.items()):
            # A journal without a frozen head was not selected when this run began: its backlog is empty, not
            # negative.
            final = head if frozen is None else min(head, frozen.get(name, 0))
            backlogs[name] = Backlog(begins[name], max(begins[name], final))
        # A half-written record does not count until the journal grows. Without this memory the planner would
        # read it again at each trigger.
        news = {
            name: backlog
            for name, backlog in backlogs.items()
            if backlog.size_bytes and self._unfinished.get(name) != (backlog.begin, backlog.head)
        }
        # Journals are compared with their fingerprints before they are read for the first time. A journal
        # that was created again over the same bytes is only recorded in this batch: see `identities`.
        identities.compare_first({name: begins[name] for name in news}, selection.created, heads)
        news = {name: backlog for name, backlog in news.items() if name not in identities.renewed}
        # This decides what the next poll requests: see `_poll`.
        self._mostly_news = 2 * len(news) > len(backlogs)

        # What do the limits admit? A batch that is not due reads nothing, but may still record a journal that
        # appeared or disappeared. Frozen heads are final, so their last bytes must not wait for more.
        now_s, total_bytes = self._clock(), sum(backlog.size_bytes for backlog in news.values())
        ends: dict[str, int] = {}
        contents: dict[str, bytes] = {}
        if frozen is not None or is_due(total_bytes, now_s - self._last_batch_s, limits):
            readable = news
            # A compressed fragment is decompressed from its start, however few of its bytes a batch needs. If
            # a batch ends with a fragment, the next one need not decompress that fragment again for its rest.
            # Only this limit needs listings, which cost a call per journal.
            if limits.max_fragments is not None:
                spans = view.map_journals(lambda name: view.spans_from(name, news[name].begin), news)
                edges = {name: fragment_ends(spans[name], backlog) for name, backlog in news.items()}
                last_edges = admit_fragments(edges, limits.max_fragments)
                readable = {name: Backlog(backlog.begin, last_edges[name]) for name, backlog in news.items()}
            admitted = admit(readable, limits.max_bytes)
            # A record has at least one byte, so a journal is never granted more records than bytes.
            granted_bytes = {name: admitted[name] - begins[name] for name in news}
            max_records = allocate_limit(granted_bytes, limits.max_records)

            # Where does each range end? At the last admitted whole record, or else at the end of the first
            # record. A small backlog is fetched as a whole: the search needs the bytes, the batch's task gets
            # them, and the next batch's fingerprint is computed from them.
            small = {
                name: begins[name]
                for name, backlog in news.items()
                if tails[name].content is None and backlog.size_bytes <= TAIL_BYTES
            }
            for name, tail in ({name: tails[name] for name in news} | self._ask_tails(small)).items():
                if tail.content is not None:
                    contents[name] = tail.content

            def end_of(name: str) -> tuple[int, bytes]:
                return range_end(
                    view,
                    name,
                    news[name],
                    admitted=admitted[name],
                    max_records=max_records[name],
                    content=contents.get(name),
                )

            # Only journals without bytes in memory need threads: a thread costs more than a search in memory.
            range_ends = view.map_journals(end_of, news.keys() - contents.keys())
            range_ends |= {name: end_of(name) for name in contents}
            for name, (end, bytes_before) in range_ends.items():
                ends[name] = end
                identities.read(name, begins[name], end, bytes_before)
                if end == begins[name]:
                    self._unfinished[name] = (begins[name], news[name].head)
            # `pieces` attaches these bytes when Spark requests the batch's tasks. Losing them costs only a
            # read: if another run repeats the batch, its tasks read from brokers.
            self._planned.keep(begins, ends, contents)
            # A batch that only records a journal does not count. Otherwise each journal that appears would
            # postpone the bytes that wait for `maxTriggerDelay`.
            if any(end > begins[name] for name, end in ends.items()):
                self._last_batch_s = now_s

        # A journal that appeared is pinned at its first offset. Without that record a restart would start at
        # the journal's first offset at that time, and lose what retention had deleted in between.
        firsts = self._resolver.added(added)
        reached = {**begins, **ends, **firsts}
        # Spark runs a batch if the text of the position differs. A list at a newer revision alone must not
        # cause one, so this is the given position, not an equal one with that revision.
        if reached == begins and selection.gone == start.gone and not identities.renewed:
            return start

        # The ledger must account for each byte of a batch. So the position names missing bytes that are
        # allowed. Ranges whose bytes are all in memory have no missing bytes.
        gaps: dict[str, tuple[tuple[int, int], ...]] = {}
        if not view.options.fail_on_data_loss:
            remote = {
                name: begins[name]
                for name, end in ends.items()
                if begins[name] < end and len(contents.get(name, b"")) < end - begins[name]
            }
            gaps = self._missing(remote, ends)
        if gaps:
            log.warning("%s", gaps_line(gaps))
        # The heads of new journals are recorded as well: if one is deleted before it is read, they show the
        # loss.
        return self._position(start, reached, heads | view.client.write_heads(added), gaps)

    def _position(
        self,
        start: JournalOffsets,
        reached: Mapping[str, int],
        heads: Mapping[str, int],
        gaps: Mapping[str, tuple[tuple[int, int], ...]],
    ) -> JournalOffsets:
        """Return a position with the state by which a later run judges missing or recreated journals."""
        selection, identities = self._selection, self._identities
        # The Etcd revision at which all journals were seen, and the heads of those with more to read. Stores
        # have no revisions, and without one heads are meaningless.
        recorded_heads: dict[str, int] = {}
        if selection.revision:
            # A paused journal is not polled. Its last head is passed on, because it may be deleted while it
            # is paused.
            recorded_heads = {name: start.heads[name] for name in selection.paused if name in start.heads}
            recorded_heads |= {name: head for name, head in heads.items() if head > reached[name]}
        new = {name: offset for name, offset in reached.items() if name not in start.read_through}
        starts: dict[str, int] = {}
        if self._view.options.reads_committed:
            # A journal's start never changes, because states at an offset follow from the bytes since the
            # start.
            earliest = {**self._message_starts(new), **start.read_through, **start.starts}
            starts = {name: earliest[name] for name in reached}
        fingerprints = identities.pinned(new, selection.created)
        fingerprints |= identities.finish(reached, selection.created)
        return JournalOffsets(
            reached,
            revision=selection.revision,
            heads=recorded_heads,
            gaps=gaps,
            gone=selection.gone,
            starts=starts,
            fingerprints=fingerprints,
        )

    def _poll(self, start: JournalOffsets, journals: Sequence[str]) -> dict[str, Tail]:
        """Return the write heads of journals, with new bytes where they are likely to be few.

        Raises:
            OffsetBeyondHeadError: a journal ends before its offset in ``start``.
        """
        view, begins = self._view, start.read_through
        heads: dict[str, int] = {}
        behind, caught_up = [], []
        for name in journals:
            last_head = self._selection.heads.get(name, start.head_seen(name))
            if view.suspended_at(name) == begins[name]:
                # Nothing can be appended to a suspended journal, and polling it takes three calls.
                heads[name] = begins[name]
            elif last_head is not None and last_head > begins[name]:
                # It had more to read at the last poll, so the tail would fetch the same bytes twice.
                behind.append(name)
            else:
                caught_up.append(name)
        if len(caught_up) >= self._many and not self._mostly_news:
            # A head costs half as much as a tail. If few of many journals have new bytes, most need no tail.
            behind, caught_up = behind + caught_up, []
        heads |= view.client.write_heads(behind)
        tails = self._ask_tails({name: begins[name] for name in caught_up})
        tails |= {name: Tail(head) for name, head in heads.items()}

        # A head below what was read, or below a frozen head, may come from a replica that has just joined
        # the journal. Without a check, it would raise an error, or end the run before all bytes are read. So
        # all members of the journal are asked.
        frozen = self._frozen or {}
        expected = {name: max(begins[name], frozen.get(name, 0)) for name in tails}
        low = {name: offset for name, offset in expected.items() if tails[name].write_head < offset}
        # This costs calls of all members and an append. Brokers report 0 as long as an idle journal has no
        # fragments left, so without a memory each poll would cost that.
        now_s = self._clock()
        for name in [*low]:
            reported, settled, until_s = self._settled.get(name, (-1, -1, 0.0))
            if reported == tails[name].write_head and settled >= low[name] and now_s < until_s:
                tails[name] = replace(tails[name], write_head=settled)
                del low[name]
        if low:
            for name, head in view.check_heads({name: begins[name] for name in low}, low).items():
                self._settled[name] = (tails[name].write_head, head, now_s + SETTLED_S)
                tails[name] = replace(tails[name], write_head=head)
        # Only a head that this run has seen proves that a deleted journal was read completely.
        self._selection.see({name: tail.write_head for name, tail in tails.items()})
        return tails

    def _ask_tails(self, begins: Mapping[str, int]) -> dict[str, Tail]:
        if not begins:
            return {}
        # All tails of a poll are in memory at once, so the more journals there are, the shorter each one is.
        return self._view.client.tails(begins, max(1, min(TAIL_BYTES, TOTAL_TAIL_BYTES // len(begins))))

    def _missing(
        self, begins: Mapping[str, int], ends: Mapping[str, int]
    ) -> dict[str, tuple[tuple[int, int], ...]]:
        """Return the bytes of ranges, by journal, that give no rows because bytes are missing."""
        view = self._view

        def omitted_bytes(journal: str) -> Iterator[tuple[int, int]]:
            begin, end, framing = begins[journal], ends[journal], view.framing(journal)
            for low, high in skipped_spans(view.client, journal, view.spans_from(journal, begin), begin, end):
                # No record need begin where bytes continue. The rest of a cut record is skipped as well.
                after: int | None = high
                if high != end and framing.resyncs:
                    longest = view.options.max_record_bytes
                    window = view.window(journal)
                    after = next_record_end(window, high, end, longest, journal=journal, framing=framing)
                yield low, end if after is None else after

        spans = view.map_journals(lambda journal: tuple(joined(omitted_bytes(journal))), begins)
        return {journal: missing for journal, missing in spans.items() if missing}

    def completed(self, start: JournalOffsets, end: JournalOffsets) -> JournalOffsets:
        """Return the end of a batch that begins at ``start``, completed with what the ledger records.

        That is a fingerprint of each journal that the batch reads, which costs a small read, and the missing
        bytes, unless they are an error.
        """
        begins = {journal: begin for journal, begin, _ in changed(start, end)}

        def bytes_before_end(journal: str) -> bytes:
            # A hole before the end is not an error here: the fingerprint then covers the bytes after it.
            until = end.read_through[journal]
            return self._view.window(journal, skip_holes=True)(max(0, until - FINGERPRINT_BYTES), until)

        for journal, content in self._view.map_journals(bytes_before_end, begins).items():
            self._identities.read(journal, begins[journal], end.read_through[journal], content)
        prints = self._identities.finish(end.read_through, self._selection.created)
        gaps = {} if self._view.options.fail_on_data_loss else self._missing(begins, end.read_through)
        return replace(end, gaps=gaps, fingerprints=prints)

    def compare(
        self, recorded: Mapping[str, Fingerprint], reached: Mapping[str, int], ends: Mapping[str, int]
    ) -> dict[str, Fingerprint]:
        """Compare journals with the fingerprints of a table's ledger.

        Bytes that a table has from brokers, but that a store lacks, are not compared.

        Args:
            recorded: The ledger's fingerprints.
            reached: Offsets at which the table's rows end.
            ends: Journals of the query, and the offsets at which their bytes now end.

        Returns:
            The fingerprints under the current creations. They show the sink which journals were compared.

        Raises:
            JournalRecreatedError: the table's rows are from another journal of the same name.
        """
        # A store may end before the table does, because brokers have bytes that are not stored yet.
        comparable = {
            name: fingerprint
            for name, fingerprint in recorded.items()
            if name in ends and fingerprint.end <= ends[name]
        }
        self._identities.take(comparable)
        compared = {name: reached[name] for name in comparable}
        self._identities.compare_first(compared, self._selection.created, ends)
        return self._identities.pinned(compared, {})

    def check_heads(self, reached: Mapping[str, int]) -> None:
        """Raise OffsetBeyondHeadError if a journal ends before an offset that was already read."""
        self._view.check_heads(reached)

    def report(self) -> dict[str, Any] | None:
        """Return the latest heads and open transactions for the query's progress; None before a poll."""
        if not self._selection.heads:
            return None
        opened = {} if self._open is None else self._open.to_dict()
        return JournalOffsets(self._selection.heads).to_dict() | ({"transactions": opened} if opened else {})

    def batch(self) -> tuple[JournalOffsets, JournalOffsets]:
        """Return the start and the end of a batch query."""
        self._from_checkpoint = False
        start, end = self._without_deleted(self._resolver.batch, self._selection.listed)
        # A backfill of committed messages continues a table, and an acknowledgement in its range may commit
        # messages from any place since the table's first row.
        since = self._view.options.messages_since or {}
        for journal, first in since.items():
            if first > start.read_through.get(journal, first):
                raise OffsetError("messagesSince is past the start of the query", journal, first)
        starts = {journal: first for journal, first in since.items() if journal in end.read_through}
        return start, replace(end, starts=starts)

    def continued_starts(self, begin: JournalOffsets, recorded: Mapping[str, int]) -> dict[str, int]:
        """Return the offsets since which the states of a table's committed messages are known.

        For journals that the table lacks, the empty states at their start are written, because no task does.

        Args:
            begin: The end of the table's rows, and the start of journals that the table lacks.
            recorded: The offsets at which the table's rows begin.
        """
        options = self._view.options
        files = StateFiles(options.state_location or "", options.uuid_path or "")

        def start_of(journal: str) -> int:
            offset = begin.read_through[journal]
            if journal not in recorded:
                files.save(journal, offset, offset, ProducerStates.none())
                return offset
            loaded = files.load(journal, offset, None)
            return recorded[journal] if loaded is None else min(recorded[journal], loaded[1])

        return self._view.map_journals(start_of, begin.read_through)

    def pieces(self, start: JournalOffsets, end: JournalOffsets) -> list[Piece]:
        """Cut a batch into pieces.

        Raises:
            OffsetError: ``end`` cannot follow ``start``, or no record begins at ``start``.
            OptionError: an earlier run planned the batch with another isolation level.
            OtherJournalsError: ``start`` is the position of another source.
        """
        view, options = self._view, self._view.options
        check_forward(start, end)
        ranges = [OffsetRange(journal, begin, stop) for journal, begin, stop in changed(start, end)]

        # The first batch of a run may have been planned by an earlier run, from a checkpoint that was edited
        # or belongs to other journals. Its rows must be those that were planned, so its journals are compared
        # with the fingerprints of its end, and its offsets must be record boundaries.
        if self._from_checkpoint:
            self._selection.check_continued(start)
            if ranges and bool(end.starts) != options.reads_committed:
                raise _other_isolation(end, "the batch that was planned there would have other rows")
            ranges = self._selection.existing(ranges, end.revision)
            names = end.fingerprints.keys() & {span.journal for span in ranges}
            planned = {name: end.fingerprints[name] for name in sorted(names)}
            if not self._identities.has_all(planned):
                replayed = JournalIdentities(view)
                replayed.take(planned)
                planned_ends = {name: end.read_through[name] for name in planned}
                replayed.compare_first(planned_ends, self._selection.created, view.check_heads(planned_ends))
            # The next batch continues this one. Without this batch's fingerprints, a journal that was created
            # again over its own bytes could not be compared then, and would be refused.
            self._identities.go_on_from(planned)
            self._identities.take(start.fingerprints)
            # A batch that may skip missing bytes can end inside a hole, where no record begins: see
            # `boundary`.
            if options.fail_on_data_loss:
                self._resolver.check_resumed(ranges)
        self._from_checkpoint = False

        framings = {span.journal: view.framing(span.journal) for span in ranges}
        if options.reads_committed:
            # A transaction may span pieces, so one task reads all of a journal's range.
            pieces = [
                replace(piece, start=end.starts.get(piece.journal, piece.begin))
                for piece in split(ranges, framings=framings)
            ]
        else:
            at_least, at_most = options.min_partitions or 1, options.max_bytes_per_partition
            # Only ranges that will be cut need their fragments: a listing costs a request per journal.
            large = {span.journal for span in ranges if at_least > len(ranges) or span.size_bytes > at_most}
            fragments = view.map_journals(view.fragments, sorted(large))
            solid = {
                name: [fragment for fragment in listed if fragment.is_compressed]
                for name, listed in fragments.items()
            }
            pieces = split(
                ranges, fragments, solid=solid, framings=framings, min_partitions=at_least, max_bytes=at_most
            )
        pieces = self._planned.attach_to(pieces)
        log.info("%s", batch_line(ranges, len(pieces), end.read_through, self._selection.heads))
        return pieces

    def labels(self, journal: str) -> Labels:
        """Return a journal's labels, with the values of each name in order."""
        return self._view.labels(journal)


def stream_planner(options: SourceOptions) -> tuple[Planner, Client]:
    """Return the planner of a stream and its client. The caller closes the planner first."""
    show_logs(options.log_level)
    client = open_client(options)
    try:
        return Planner(client, options, follow(client, options), idle_poll_s=IDLE_POLL_S), client
    except BaseException:
        client.close()  # The caller never receives it.
        raise


def _other_isolation(position: JournalOffsets, consequence: str) -> OptionError:
    level, other = READ_COMMITTED, "read_uncommitted"
    if not position.starts:
        level, other = other, level
    got = f"{other}, but the query checkpoint is of a query with isolationLevel={level}: {consequence}"
    expected = f"{level}, or a new query with its own checkpoint and startingOffsets"
    return OptionError("isolationLevel", got, expected)


def batch_line(
    ranges: Sequence[OffsetRange], pieces: int, behind: Mapping[str, int], heads: Mapping[str, int]
) -> str:
    """Return the log line about a planned batch.

    Args:
        ranges: Ranges that the batch reads.
        pieces: Number of its pieces.
        behind: End of the batch in each journal of the query.
        heads: Known write heads; empty for a repeated batch.
    """
    lag = sum(max(0, heads[journal] - end) for journal, end in behind.items() if journal in heads)
    unseen = len(behind.keys() - heads.keys()) if heads else 0
    largest = sorted(ranges, key=lambda span: (-span.size_bytes, span.journal))
    shown = [f"{span.journal}[{span.begin},{span.end})" for span in largest[:SHOWN_RANGES]]
    shown += [f"+{len(largest) - SHOWN_RANGES}"] if len(largest) > SHOWN_RANGES else []
    parts = [
        f"batch planned journals={len(ranges)} bytes={sum(span.size_bytes for span in ranges)}",
        f"pieces={pieces} ranges={','.join(shown)}",
        *([f"lag_bytes={lag}"] if heads else []),
        *([f"unseen={unseen}"] if unseen else []),
    ]
    return " ".join(parts)


def gaps_line(gaps: Mapping[str, Sequence[tuple[int, int]]]) -> str:
    """Return the log line about missing bytes that a batch skips."""
    sizes = {journal: sum(end - begin for begin, end in spans) for journal, spans in gaps.items()}
    largest = sorted(sizes, key=lambda journal: (-sizes[journal], journal))
    shown = [f"{journal}:{sizes[journal]}" for journal in largest[:SHOWN_RANGES]]
    shown += [f"+{len(largest) - SHOWN_RANGES}"] if len(largest) > SHOWN_RANGES else []
    figures = f"journals={len(sizes)} bytes={sum(sizes.values())} largest={','.join(shown)}"
    return f"batch skips missing bytes {figures}"


def start_line(starts: Mapping[str, int], heads: Mapping[str, int]) -> str:
    """Return the log line about a query that starts; ``heads`` are those of journals with unread bytes."""
    lag = sum(head - starts[journal] for journal, head in heads.items())
    return f"query starts journals={len(starts)} lag_bytes={lag}"
