"""Checks that a query's offsets still belong to the journals from which they were read.

A journal that is deleted and created again keeps its name. If its store is empty, its offsets refer to other
bytes, and a query that continued would silently omit the first records of the new journal. If it was created
over the old journal's fragments, they refer to the same bytes, and the query may continue. So each batch
records a :class:`~gazette_spark.offsets.Fingerprint` of the journals it reads, in its position and from there
in the table's ledger. This module compares it with the current journal:

- when a query starts without a checkpoint, every journal of ``resumeOffsets``; when a backfill starts, those
  of the ledger;
- when a run first reads a journal, by the fingerprint of its position or of ``resumeOffsets``;
- immediately, a journal that was created after the query's position.

==================================  ==========================  ================================
the recorded bytes now              creation                    consequence
==================================  ==========================  ================================
are the same                        any                         continues
differ                              any                         ``JournalRecreatedError``
cannot be read                      the same                    continues: retention deleted them
cannot be read, or never recorded   another                     ``JournalRecreatedError``
cannot be read                      unknown on either side      continues, with a warning
==================================  ==========================  ================================

A journal of which nothing was read (offset 0) needs no comparison.

If a journal has the same bytes under a new creation, the next batch reads nothing of it. Its position only
records the compared fingerprint, which ends where the table does, under the new creation, so that the sink
accepts later batches. If the same batch read more bytes, the table's last bytes would have no fingerprint.

A query with a batch at each trigger reads nothing extra for this: the planner has the bytes before a batch's
end in memory, because it has searched them for a record boundary.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from gazette_spark._planning.boundary import window_reader
from gazette_spark._planning.view import JournalView
from gazette_spark.errors import (
    JournalRecreatedError,
    OffsetBeyondHeadError,
    OffsetNotYetAvailableError,
    SuspendedError,
)
from gazette_spark.offsets import FINGERPRINT_BYTES, Fingerprint

log = logging.getLogger(__name__)


class JournalIdentities:
    """The fingerprints of a query's journals, recorded ones and those of a planned batch. For one thread."""

    def __init__(self, view: JournalView) -> None:
        self._view = view
        self._fingerprints: dict[str, Fingerprint] = {}
        """Last fingerprint of each journal."""
        self._unverified: set[str] = set()
        """Journals whose fingerprint comes from outside and has not been compared."""
        self._bytes_before: dict[str, bytes] = {}
        """Bytes before the end of the last fingerprint, by journal that this run has read or compared."""
        self._planned_ends: dict[str, tuple[int, bytes]] = {}
        """Ends of the planned batch, with the bytes before them."""
        self._renewed: dict[str, Fingerprint] = {}
        """Compared fingerprints under a new creation, which the next position records for the ledger."""
        self._confirmed: dict[str, int] = {}
        """Creations that were found to have the same bytes."""

    def __repr__(self) -> str:
        count, unverified = len(self._fingerprints), len(self._unverified)
        return f"JournalIdentities({count} fingerprints, {unverified} not compared)"

    def take(self, recorded: Mapping[str, Fingerprint]) -> None:
        """Take recorded fingerprints, except for journals that already have one.

        Take a ledger's fingerprints before a position's, because the sink compares by the ledger's ranges.
        """
        new = {
            journal: fingerprint
            for journal, fingerprint in recorded.items()
            if journal not in self._fingerprints
        }
        self._fingerprints |= new
        self._unverified |= new.keys()

    def go_on_from(self, planned: Mapping[str, Fingerprint]) -> None:
        """Take the fingerprints of a repeated batch, except for journals with a later one."""
        for journal, fingerprint in planned.items():
            last = self._fingerprints.get(journal)
            if last is None or last.end < fingerprint.end:
                self._fingerprints[journal] = fingerprint
                self._bytes_before.pop(journal, None)  # These bytes are before a different offset.
                self._unverified.discard(journal)

    def compare_first(
        self, reached: Mapping[str, int], created: Mapping[str, int], heads: Mapping[str, int]
    ) -> None:
        """Compare the journals whose recorded fingerprint has not been compared.

        Args:
            reached: Journals about to be read, with the offset up to which they have been read.
            created: Their create revisions.
            heads: Their write heads.

        Raises:
            JournalRecreatedError: a journal is not the one that was read.
            OffsetBeyondHeadError: a journal ends before the recorded bytes.
        """
        names = sorted(self._unverified & reached.keys())
        ends = {journal: self._fingerprints[journal].end for journal in names}
        # A head below the recorded bytes means that the journal lost them, or that a replica has just joined
        # it. This waits for the members to agree, or raises an error.
        if too_short := {journal: end for journal, end in ends.items() if heads[journal] < end}:
            self._view.check_heads(too_short)

        def compare(journal: str) -> None:
            self._compare(journal, self._fingerprints[journal], created.get(journal, 0), reached[journal])

        # If one journal raises an error, all stay unverified, so that a later attempt cannot skip the others.
        self._view.map_journals(compare, names)
        self._unverified -= set(names)

    def compare_recreated(self, journal: str, reached: int, create_revision: int, seen_revision: int) -> None:
        """Compare a journal that was created after the query's position.

        Args:
            journal: Its name.
            reached: Offset up to which the query has read.
            create_revision: Etcd revision of its creation.
            seen_revision: Etcd revision at which the query last saw it.

        Raises:
            JournalRecreatedError: its bytes differ, or cannot be compared.
        """
        # Nothing was read, or these bytes were already compared: the list shows the new creation at each
        # trigger until a position has a later revision.
        if reached == 0 or self._confirmed.get(journal) == create_revision:
            return
        # Without a recorded fingerprint there are no bytes to compare, and the creation decides. The caller
        # knows that it is another one, so a fingerprint without a creation gets that of the position.
        recorded = self._fingerprints.get(journal, Fingerprint(reached, reached))
        if recorded.create_revision in {0, create_revision}:
            recorded = replace(recorded, create_revision=seen_revision)
        try:
            self._view.check_heads({journal: recorded.end})
        except OffsetBeyondHeadError as error:
            # The new journal is shorter than the old one was. As an OffsetBeyondHeadError, that would look
            # like lost bytes of the same journal.
            raise JournalRecreatedError(journal, reached, create_revision, seen_revision) from error
        self._compare(journal, recorded, create_revision, reached)
        self._unverified.discard(journal)
        self._confirmed[journal] = create_revision

    def _compare(self, journal: str, recorded: Fingerprint, create_revision: int, reached: int) -> None:
        """Compare a journal with a fingerprint, according to the module's table, and keep the result.

        Bytes that were read past the fingerprint's end were never recorded.
        """
        begin, end, old_revision = recorded.begin, recorded.end, recorded.create_revision
        try:
            content = window_reader(self._view.client, journal, fail_on_data_loss=False)(begin, end)
        except (SuspendedError, OffsetNotYetAvailableError):
            content = b""  # The journal has no bytes there, for example because its spec names another store.

        # If all recorded bytes can be read, they decide.
        all_read = begin < end == begin + len(content)
        if all_read:
            if not recorded.is_of(content):
                raise JournalRecreatedError(
                    journal, end, create_revision, old_revision, compared=(begin, end)
                )
            self._bytes_before[journal] = content

        # Otherwise the creation decides: retention deletes bytes of the same journal, but a new journal of
        # the same name has different bytes. That also applies to bytes that were never recorded.
        are_revisions_known = bool(create_revision and old_revision)
        is_other_creation = are_revisions_known and create_revision != old_revision
        if is_other_creation and reached > 0 and (not all_read or end < reached):
            raise JournalRecreatedError(journal, end, create_revision, old_revision)
        if begin + len(content) < end and not are_revisions_known:
            log.warning(
                "recorded bytes are gone, not compared journal=%s begin=%d end=%d", journal, begin, end
            )
        if create_revision not in {0, old_revision}:
            recorded = self._renewed[journal] = replace(recorded, create_revision=create_revision)
        self._fingerprints[journal] = recorded

    @property
    def renewed(self) -> Collection[str]:
        """Journals with the same bytes under a new creation, which the next position records."""
        return self._renewed.keys()

    def read(self, journal: str, begin: int, end: int, content: bytes) -> None:
        """Take the bytes before the end of a batch that begins at ``begin``."""
        last = self._fingerprints.get(journal)
        if len(content) < FINGERPRINT_BYTES and last is not None and last.end == end - len(content):
            # These bytes follow those of the last fingerprint, so even a small batch gets a long fingerprint.
            content = self._bytes_before.get(journal, b"") + content
        if begin < end and content:
            self._planned_ends[journal] = (end, content[-FINGERPRINT_BYTES:])

    def finish(self, reached: Mapping[str, int], created: Mapping[str, int]) -> dict[str, Fingerprint]:
        """Return the fingerprints of the planned batch's position: of journals it reads, and renewed ones."""
        recorded: dict[str, Fingerprint] = {}
        for journal, (end, content) in self._planned_ends.items():
            # An attempt to plan this batch may have failed and been repeated with other ends.
            if reached[journal] == end:
                self._fingerprints[journal] = Fingerprint.of(content, end, created.get(journal, 0))
                self._bytes_before[journal] = content
            last = self._fingerprints.get(journal)
            if last is not None and last.end == reached[journal]:
                recorded[journal] = last
        recorded |= {journal: renewed for journal, renewed in self._renewed.items() if journal in reached}
        self._planned_ends, self._renewed = {}, {}
        return recorded

    def has_all(self, fingerprints: Mapping[str, Fingerprint]) -> bool:
        """Return whether these are the last fingerprints of their journals."""
        return fingerprints.items() <= self._fingerprints.items()

    def pinned(self, offsets: Mapping[str, int], created: Mapping[str, int]) -> dict[str, Fingerprint]:
        """Return the fingerprints of journals whose first offset is pinned.

        For a journal that the table lacks, only the creation is recorded, which costs no read. Stores have no
        creations.
        """
        for journal, offset in offsets.items():
            self._renewed.pop(journal, None)
            if journal not in self._fingerprints and (create_revision := created.get(journal, 0)):
                self._fingerprints[journal] = Fingerprint(offset, offset, create_revision=create_revision)
        return {name: self._fingerprints[name] for name in offsets if name in self._fingerprints}
