"""Sends the planner's requests about journals to brokers, and caches the journals' specs.

This module only asks. ``plan``, ``ends`` and ``selection`` decide.

The options ``startingTimestamp`` and ``endingTimestamp`` name a time, but Gazette does not record when a byte
was appended, only when its fragment was stored, in whole seconds (``mod_time``). That is the time of the
append or later. So the offset of a time is the smallest offset whose fragment was stored in that second or
later. Hence

- every byte that was appended at that time or later is at or after this offset, and so are some older bytes,
  up to a fragment's worth. For newer records only, filter by a time in the records;
- a range that ends at a time and one that starts at the same time share no byte and omit none;
- a byte that is not stored yet is later than any time that an option can name.

If a store's clock is behind the writers' clocks, the first rule does not hold: start earlier by that amount.
A fragment counts as not stored until brokers have listed their store again. So the offset of a time less than
the journal's ``refresh_interval`` ago may still increase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from gazette_spark._formats.framing import RecordFraming
from gazette_spark._formats.metadata import Labels
from gazette_spark._formats.registry import framing_name, framing_named
from gazette_spark._options.source import SourceOptions
from gazette_spark._planning.boundary import ReadWindow, record_end, window_reader
from gazette_spark._planning.reads import JournalSource
from gazette_spark.client._transport import retry
from gazette_spark.errors import OffsetBeyondHeadError, SuspendedError, UnavailableError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.protocol.labels import label_set, values_of

if TYPE_CHECKING:
    from gazette_spark.client import Listing

THREADS = 8
"""Maximum number of concurrent requests to brokers."""

NAMES_AT_ONCE = 10_000
"""Maximum number of names in a request, which brokers limit to 4 MiB. A query looks up every deleted one."""

T = TypeVar("T")


class JournalView:
    """Brokers' journals under a query's options. For one thread."""

    def __init__(self, client: JournalSource, options: SourceOptions) -> None:
        self.client = client
        self.options = options
        self._specs: dict[str, pb.JournalSpec] = {}
        self._framings: dict[str, RecordFraming] = {}
        self._listed_from: dict[str, int] = {}
        """Start of a fragment by journal; earlier fragments have nothing left to read."""

    def __repr__(self) -> str:
        return f"JournalView({self.client!r}, {len(self._specs)} specs)"

    def cache_spec(self, spec: pb.JournalSpec) -> None:
        """Remember a listed spec.

        Raises:
            OptionError: the options contradict the journal's labels.
        """
        options = self.options
        name = framing_name(spec, options.framing, options.format)
        self._framings[spec.name] = framing_named(name, options.max_record_bytes, options.sep, options.quote)
        self._specs[spec.name] = spec

    def suspended_at(self, journal: str) -> int | None:
        """Return the offset at which a journal is fully suspended, according to its spec; None if it is not.

        Nothing can be appended to such a journal without a change of its spec.
        """
        spec = self._specs.get(journal)
        if spec is None or spec.suspend.level != pb.JournalSpec.Suspend.FULL:
            return None
        return spec.suspend.offset

    def describe_journals(self, names: Sequence[str], revision: int, listed: int) -> Listing:
        """Look journals up by name until the answer is as new as what the query knows.

        Args:
            names: The journals' names.
            revision: Etcd revision at which the query last saw them.
            listed: Revision of a list that lacks them.

        Returns:
            An answer at ``listed`` or later; if a journal is missing, also at ``revision`` or later.

        Raises:
            UnavailableError: a broker stays behind for longer than a request may take.
        """
        # A journal that the last list lacks was deleted, or unselected, or the broker that listed it lags
        # behind Etcd. Brokers do not wait for a revision in a List call, so the request is repeated until the
        # answer is at least as new as what the query has seen. An answer that has the journals need only be
        # as new as the list.
        ordered = sorted(names)
        selectors = [
            pb.LabelSelector(include=label_set({"name": ordered[at : at + NAMES_AT_ONCE]}))
            for at in range(0, len(ordered), NAMES_AT_ONCE)
        ]

        def ask(_left_s: float) -> Listing:
            answers = [self.client.list_all_journals(selector) for selector in selectors]
            # The oldest answer decides how new the whole one is.
            oldest = min(answers, key=lambda part: part.revision)
            answer = replace(oldest, journals=tuple(journal for part in answers for journal in part.journals))
            missing = sorted(set(names) - set(answer.names))
            needed = max(listed, revision) if missing else listed
            if answer.revision < needed:
                claim = f"it lacks journal {missing[0]!r}" if missing else f"it has journal {names[0]!r}"
                seen = "the query saw it" if needed == revision else "the journals were listed"
                problem = (
                    f"{claim} at Etcd revision {answer.revision}, but {seen} at {needed}: "
                    "the broker is behind, or its Etcd was reset"
                )
                raise UnavailableError(self.client.endpoint, problem)
            return answer

        timeout_s = self.client.timeout_s
        return retry.retrying(ask, retry.after_call, timeout_s=timeout_s, patience_s=lambda: timeout_s)

    def labels(self, journal: str) -> Labels:
        """Return a journal's labels, with the values of each name in order."""
        labels = self.spec(journal).labels
        names = sorted({label.name for label in labels.labels})
        return tuple((name, tuple(sorted(values_of(labels, name)))) for name in names)

    def fragments(self, journal: str, page_token: int = 0) -> list[Fragment]:
        """Return a journal's fragments from an offset on; none if it is suspended."""
        try:
            return [listed.fragment for listed in self.client.list_fragments(journal, page_token=page_token)]
        except SuspendedError:
            # Brokers suspend a journal completely only when it has no fragments left.
            return []

    def spans_from(self, journal: str, begin: int) -> list[tuple[int, int]]:
        """Return the spans of fragments from an offset on, and perhaps of some before it.

        Later calls must pass the same offset or a larger one: fragments before it are not listed again.
        """
        # A journal may have 100,000 fragments, and a listing returns those from an offset on. The token is
        # the start of a fragment, and it must not pass the one that contains the offset.
        fragments = self.fragments(journal, self._listed_from.get(journal, 0))
        started = [fragment.begin for fragment in fragments if fragment.begin <= begin]
        self._listed_from[journal] = max(started, default=0)
        return [(fragment.begin, fragment.end) for fragment in fragments]

    def offset_at(self, journal: str, timestamp_ms: int) -> int | None:
        """Return the start of the first fragment stored at a time or later; None without such a fragment."""
        # Store times have whole seconds, so all bytes of a second are on the same side of any time within it.
        return self.client.offset_since(journal, timestamp_ms // 1000)

    def framing(self, journal: str) -> RecordFraming:
        """Return the framing in which a journal is read."""
        if journal not in self._framings:
            self.cache_spec(self.spec(journal))
        return self._framings[journal]

    def refresh_specs(self, journals: Iterable[str]) -> None:
        """List journals that were never listed, in one request. A repeated batch needs this."""
        # The run that planned the batch had listed the journals; this one repeats it before its first list.
        unknown = [journal for journal in journals if journal not in self._specs]
        if len(unknown) > 1:
            selector = pb.LabelSelector(include=label_set({"name": unknown}))
            self._specs |= {entry.spec.name: entry.spec for entry in self.client.list_journals(selector)}

    def spec(self, journal: str) -> pb.JournalSpec:
        """Return a journal's spec, from the last list if that has it."""
        if journal not in self._specs:
            self._specs[journal] = self.client.get_journal(journal).spec
        return self._specs[journal]

    def map_journals(self, answer: Callable[[str], T], journals: Iterable[str]) -> dict[str, T]:
        """Call ``answer`` for many journals concurrently, and return the results by journal."""
        names = list(journals)
        # A pool of threads costs more than one call, and most batches of a small query ask about one journal.
        if len(names) < 2:
            return {name: answer(name) for name in names}
        with ThreadPoolExecutor(min(THREADS, len(names)), "gazette-planner") as pool:
            return dict(zip(names, pool.map(answer, names), strict=True))

    def final_heads(
        self, journals: Iterable[str], named: Mapping[str, int], firsts: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Return write heads at which a range may end finally, because no later poll corrects a low head.

        A broker that has just started reports a head of 0 until it has listed the stores; a request for the
        first offset waits for that. A replica that has just joined a journal knows only stored bytes, so all
        members of the journal are asked.

        Args:
            journals: The journals' names.
            named: Offset by journal that the query's options name. A head below it is confirmed.
            firsts: Available offsets by journal, if they were requested already.
        """
        names = sorted(journals)
        if firsts is None:
            firsts = self.map_journals(self.client.first_offset, names)
        # At a trigger, any member's head is good enough: bytes that it lacks are read at the next trigger. A
        # final end has no next trigger.
        heads = self.client.highest_heads(names)
        # Brokers report a head of 0 if the journal has no fragments left.
        heads = {name: max(head, firsts[name]) for name, head in heads.items()}
        beyond = {name: named[name] for name in names if heads[name] < named.get(name, 0)}
        if beyond:
            heads |= {name: settled.write_head for name, settled in self.client.settled_heads(beyond).items()}
        return heads

    def check_heads(
        self, reached: Mapping[str, int], expected: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Return write heads of journals, all at or past the offsets that were already read.

        Args:
            reached: Offset by journal up to which it was read.
            expected: The same or larger offsets at which the journals were seen to end. A lower head is
                confirmed, but is not an error.

        Raises:
            OffsetBeyondHeadError: a journal ends before the offset up to which it was read.
        """
        heads = {}
        # Only the members of a journal together know whether bytes are lost or one of them lags behind.
        for name, settled in self.client.settled_heads(expected or reached).items():
            heads[name] = settled.write_head
            if settled.write_head < reached[name]:
                raise OffsetBeyondHeadError(name, reached[name], settled.write_head, settled.doubt)
        return heads

    def whole_records(
        self,
        journal: str,
        begin: int,
        end: int,
        *,
        skip_holes: bool = False,
        write_head: int | None = None,
    ) -> int:
        """Return the largest end of a record in ``[begin, end]``; ``begin`` if no record ends there.

        See :func:`~gazette_spark._planning.boundary.record_end` for the role of the write head.
        """
        limit = self.options.max_record_bytes
        framing = self.framing(journal)
        window = self.window(journal, skip_holes=skip_holes)
        return record_end(window, begin, end, limit, journal=journal, framing=framing, write_head=write_head)

    def window(self, journal: str, *, skip_holes: bool = False) -> ReadWindow:
        """Return the reader of a journal's bytes. Under ``failOnDataLoss`` a hole is an error."""
        lossless = self.options.fail_on_data_loss and not skip_holes
        return window_reader(self.client, journal, fail_on_data_loss=lossless)
