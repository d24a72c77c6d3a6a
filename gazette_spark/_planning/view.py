"""The planner's questions to brokers about journals, and a cache of the journals' specs.

Everything here is a question. ``plan``, ``ends`` and ``selection`` decide by the answers.

The options ``startingTimestamp`` and ``endingTimestamp`` name a time, and Gazette does not record when a byte
was appended, only when the fragment that holds it was stored, in whole seconds (``mod_time``). That is the
time of the append or later. So the offset of a time is the smallest offset whose fragment was stored in that
second or later, and

- every byte that was appended at that time or later is at this offset or after it, and so are some older
  ones, up to a fragment's worth. To have newer records only, filter by a time in the records;
- a range that ends at a time and one that starts at it meet: they share no byte and leave none out;
- a byte that is not stored yet is later than any time that an option can name.

A store's clock that is behind the writers' breaks the first rule: start earlier by as much. A fragment counts
as not stored until brokers have listed their store again. So the offset of a time less than the journal's
``refresh_interval`` ago may still increase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, TypeVar

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
"""Requests to the brokers at the same time."""

T = TypeVar("T")


class JournalView:
    """Journals as brokers show them, under a query's options. To be used by one thread."""

    def __init__(self, client: JournalSource, options: SourceOptions) -> None:
        self.client = client
        self.options = options
        self._specs: dict[str, pb.JournalSpec] = {}
        self._framings: dict[str, RecordFraming] = {}
        self._listed_from: dict[str, int] = {}
        """By journal, start of a fragment; earlier fragments have nothing left to read."""

    def __repr__(self) -> str:
        return f"JournalView({self.client!r}, {len(self._specs)} specs)"

    def cache_spec(self, spec: pb.JournalSpec) -> None:
        """Remember a spec that was listed.

        Raises:
            OptionError: the options contradict the journal's labels.
        """
        options = self.options
        name = framing_name(spec, options.framing, options.format)
        self._framings[spec.name] = framing_named(name, options.max_record_bytes, options.sep, options.quote)
        self._specs[spec.name] = spec

    def suspended_at(self, journal: str) -> int | None:
        """Return the offset at which a journal is wholly suspended, as it was listed; None if it is not.

        Nothing can be appended without a change of its spec.
        """
        spec = self._specs.get(journal)
        if spec is None or spec.suspend.level != pb.JournalSpec.Suspend.FULL:
            return None
        return spec.suspend.offset

    def describe_journals(self, names: Sequence[str], revision: int, listed: int) -> Listing:
        """Ask about journals by name until the answer is as new as what is known of them.

        Args:
            names: Their names.
            revision: Etcd's revision at which the query saw them last.
            listed: The revision of a list that lacks them.

        Returns:
            An answer at ``listed`` or later; if a journal is missing, also at ``revision`` or later.

        Raises:
            UnavailableError: for as long as a request may take, a broker knows less.
        """
        selector = pb.LabelSelector(include=label_set({"name": list(names)}))

        def ask(_left_s: float) -> Listing:
            answer = self.client.list_all_journals(selector)
            missing = sorted(set(names) - set(answer.names))
            needed = max(listed, revision) if missing else listed
            if answer.revision < needed:
                claim = f"it knows no journal {missing[0]!r}" if missing else f"it knows journal {names[0]!r}"
                seen = "the query saw it" if needed == revision else "the journals were listed"
                problem = (
                    f"{claim} at Etcd's revision {answer.revision}, and {seen} at {needed}: "
                    "the broker is behind, or its Etcd was made anew"
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

    def fragments(self, journal: str, **narrowed: int) -> list[Fragment]:
        """Return a journal's fragments, or those the client is asked for; none if it is wholly suspended."""
        try:
            return [listed.fragment for listed in self.client.list_fragments(journal, **narrowed)]
        except SuspendedError:
            return []

    def spans_from(self, journal: str, begin: int) -> list[tuple[int, int]]:
        """Return the spans of fragments from an offset on, and maybe of some before.

        Later calls have the same offset or a larger one: fragments before it are not listed again.
        """
        fragments = self.fragments(journal, page_token=self._listed_from.get(journal, 0))
        started = [fragment.begin for fragment in fragments if fragment.begin <= begin]
        self._listed_from[journal] = max(started, default=0)
        return [(fragment.begin, fragment.end) for fragment in fragments]

    def offset_at(self, journal: str, timestamp_ms: int) -> int | None:
        """Return the start of the first fragment stored at a time or later; None without such a fragment."""
        # Brokers need not send earlier fragments. The times of the sent ones are checked again.
        since = self.fragments(journal, begin_mod_time=timestamp_ms // 1000)
        return offset_at(since, timestamp_ms)

    def framing(self, journal: str) -> RecordFraming:
        """Return the framing a journal is read in."""
        if journal not in self._framings:
            self.cache_spec(self.spec(journal))
        return self._framings[journal]

    def refresh_specs(self, journals: Iterable[str]) -> None:
        """List journals that were never listed, in one request: a batch that is run again begins so."""
        unknown = [journal for journal in journals if journal not in self._specs]
        if len(unknown) > 1:
            selector = pb.LabelSelector(include=label_set({"name": unknown}))
            self._specs |= {entry.spec.name: entry.spec for entry in self.client.list_journals(selector)}

    def spec(self, journal: str) -> pb.JournalSpec:
        """Return a journal's spec, from the last list if it was in that."""
        if journal not in self._specs:
            self._specs[journal] = self.client.get_journal(journal).spec
        return self._specs[journal]

    def map_journals(self, answer: Callable[[str], T], journals: Iterable[str]) -> dict[str, T]:
        """Ask about many journals at the same time; return the answers by journal."""
        names = list(journals)
        if len(names) < 2:
            return {name: answer(name) for name in names}
        with ThreadPoolExecutor(min(THREADS, len(names)), "gazette-planner") as pool:
            return dict(zip(names, pool.map(answer, names), strict=True))

    def final_heads(
        self, journals: Iterable[str], named: Mapping[str, int], *, is_listed: bool = False
    ) -> dict[str, int]:
        """Return write heads at which a range may end for good: no later look corrects one that is too low.

        A broker that has just started answers with a head of 0 until it has listed the stores; asking
        for the first offset waits for that. A replica that has just joined a journal knows of stored bytes
        only, so all members of the journal are asked.

        Args:
            journals: Their names.
            named: By journal, an offset that the query's options name. A head below it is confirmed.
            is_listed: The brokers have listed the stores: somebody has asked for first offsets.
        """
        names = sorted(journals)
        if not is_listed:
            self.map_journals(self.client.first_offset, names)
        heads = self.client.highest_heads(names)
        beyond = {name: named[name] for name in names if heads[name] < named.get(name, 0)}
        if beyond:
            heads |= {name: settled.write_head for name, settled in self.client.settled_heads(beyond).items()}
        return heads

    def check_heads(
        self, reached: Mapping[str, int], expected: Mapping[str, int] | None = None
    ) -> dict[str, int]:
        """Return write heads of journals, all at or past the offsets that were already read.

        Args:
            reached: By journal, the offset up to which it was read.
            expected: The same or larger offsets, at which the journals were seen to end; a lower head is
                confirmed, but is no error.

        Raises:
            OffsetBeyondHeadError: a journal ends before it was read to, as far as its primary tells in time.
        """
        heads = {}
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
        """Return the reader of a journal's bytes; under ``failOnDataLoss`` a hole is an error."""
        lossless = self.options.fail_on_data_loss and not skip_holes
        return window_reader(self.client, journal, fail_on_data_loss=lossless)


class HasModTime(Protocol):
    """A fragment, as far as its time is concerned."""

    @property
    def begin(self) -> int:
        """Offset of the fragment's first byte."""

    @property
    def mod_time(self) -> int:
        """When it was stored, in Unix seconds; 0 if it is not stored yet."""


def offset_at(fragments: Iterable[HasModTime], timestamp_ms: int) -> int | None:
    """Return the first offset stored at a time or later, None if all that there is was stored before.

    Args:
        fragments: of one journal, in any order.
        timestamp_ms: milliseconds since 1970; the second they lie in counts as a whole.
    """
    second = timestamp_ms // 1000
    return min(
        (fragment.begin for fragment in fragments if fragment.mod_time == 0 or fragment.mod_time >= second),
        default=None,
    )
