"""Whether a journal that was created again is another one: its bytes decide, or else its creation."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from gazette_spark._formats.fixed import frame
from gazette_spark._planning import plan as planner_module
from gazette_spark._planning.admission import ReadLimits
from gazette_spark._planning.plan import Planner
from gazette_spark.errors import (
    GazetteError,
    JournalRecreatedError,
    OffsetBeyondHeadError,
    OffsetNotYetAvailableError,
    SuspendedError,
)
from gazette_spark.offsets import FINGERPRINT_BYTES, Fingerprint, JournalOffsets
from tests.oracles.brokers import FIXED, FakeClient, FakeJournal, FakeReader, at, lines, planner_of

A = "log/a"
OLD = b"".join(b"old record %03d\n" % number for number in range(100))
NEW = b"".join(b"new record %03d\n" % number for number in range(120))


def fingerprint(content: bytes, end: int, created: int = 1) -> Fingerprint:
    """Return the fingerprint of an offset in a journal that begins at 0."""
    return Fingerprint.of(content[:end], end, created)


def resumed(
    journal: FakeJournal, recorded: Fingerprint, end: int, **options: str
) -> tuple[Planner, FakeClient]:
    """Return the planner of a query without a checkpoint, on a table that ends at an offset."""
    offsets = JournalOffsets({A: end}, fingerprints={A: recorded})
    return planner_of({A: journal}, resumeOffsets=offsets.to_json(), **options)


ROWS = [
    pytest.param(FakeJournal(OLD, create_revision=1), 1, None, id="same_bytes"),
    pytest.param(FakeJournal(OLD, create_revision=7), 1, None, id="same_bytes_created_again"),
    pytest.param(FakeJournal(NEW, create_revision=7), 1, JournalRecreatedError, id="other_bytes"),
    pytest.param(FakeJournal(NEW, create_revision=1), 1, JournalRecreatedError, id="other_bytes_new_etcd"),
    pytest.param(FakeJournal(NEW, create_revision=0), 0, JournalRecreatedError, id="other_bytes_of_a_store"),
    pytest.param(FakeJournal(OLD[900:], 900, create_revision=1), 1, None, id="gone_same_creation"),
    pytest.param(
        FakeJournal(OLD[900:], 900, create_revision=7), 1, JournalRecreatedError, id="gone_other_creation"
    ),
    pytest.param(FakeJournal(OLD[900:], 900, create_revision=7), 0, None, id="gone_and_not_recorded"),
    pytest.param(FakeJournal(OLD[900:], 900, create_revision=0), 1, None, id="gone_and_not_listed"),
]


@pytest.mark.parametrize(("journal", "recorded", "expected"), ROWS)
def test_the_table_of_the_module(
    journal: FakeJournal, recorded: int, expected: type[GazetteError] | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The cases are the module's table: the journal is compared with the ledger's fingerprint."""
    caplog.set_level(logging.WARNING)
    known = fingerprint(OLD, 900, recorded)
    planner, _ = resumed(replace(journal), known, 900)
    if expected is not None:
        with pytest.raises(expected, match=r"'log/a': it was deleted and created again"):
            planner.initial()
        return
    initial = planner.initial()
    assert initial == at(a=900).at("initial")
    assert initial.fingerprints == {A: replace(known, create_revision=journal.create_revision or recorded)}
    is_unknown = journal.begin == 900 and 0 in {journal.create_revision, recorded}
    assert (
        "recorded bytes are gone, not compared journal=log/a begin=388 end=900" in caplog.text
    ) == is_unknown


def test_a_journal_of_which_nothing_was_read_may_be_another_one() -> None:
    """The first record is still unread, whichever journal it is in."""
    planner, _ = resumed(FakeJournal(NEW, create_revision=7), Fingerprint(0, 0, create_revision=1), 0)
    assert planner.initial() == at(a=0).at("initial")


def test_a_start_at_the_latest_tells_another_creation_although_it_read_no_byte() -> None:
    """The position records the creation without a read. Otherwise records up to the start would be lost."""
    planner, client = planner_of({A: FakeJournal(OLD)})
    pinned = planner.next(planner.initial())
    assert pinned.fingerprints == {A: Fingerprint(1500, 1500, create_revision=1)}
    assert pinned.to_json() == JournalOffsets.from_json(pinned.to_json()).to_json()
    client.journals[A] = FakeJournal(NEW, create_revision=7)
    again, _ = resumed(client.journals[A], pinned.fingerprints[A], 1500)
    with pytest.raises(JournalRecreatedError, match=r"up to offset 1500 cannot be compared"):
        again.initial()


def test_a_query_with_a_checkpoint_behind_the_table_compares_at_the_tables_end() -> None:
    """With an old checkpoint and ``on_overlap="trim"``, the position says nothing about the new journal."""
    known = fingerprint(OLD, 900)
    assert resumed(FakeJournal(OLD), known, 900)[0].next(at(a=15)).read_through == {A: 1500}
    with pytest.raises(JournalRecreatedError, match=r"\[388, 900\) are not those that were read"):
        resumed(FakeJournal(NEW), known, 900)[0].next(at(a=15))
    with pytest.raises(OffsetBeyondHeadError, match=r"900 was already read, but .* ends at 600"):
        resumed(FakeJournal(NEW[:600]), known, 900)[0].next(at(a=15))


def test_a_planned_batch_that_runs_again_compares_its_bytes() -> None:
    """The journal was created again between the plan of a batch and its second run."""
    planner, client = planner_of({A: FakeJournal(OLD)})
    end = planner.next(at(a=15))
    planner.pieces(at(a=15), end)
    again, _ = planner_of(client.journals)
    assert again.pieces(at(a=15), JournalOffsets.from_json(end.to_json()))
    client.journals[A] = FakeJournal(NEW, create_revision=7)
    again, _ = planner_of(client.journals)
    with pytest.raises(JournalRecreatedError, match=r"\[988, 1500\)"):
        again.pieces(at(a=15), end)


@pytest.mark.parametrize("resumed_at", [None, 900], ids=["no_resume", "resumed_at_the_begin"])
def test_the_batch_after_one_that_runs_again_compares_with_its_bytes(resumed_at: int | None) -> None:
    """The journal was created again with the same bytes while the query was down with a planned batch."""
    start = replace(at(a=900), revision=3, fingerprints={A: fingerprint(OLD, 900)})
    planner, client = planner_of({A: FakeJournal(OLD[:1200])})
    end = planner.next(start)
    assert end.fingerprints[A].end == 1200
    client.journals[A] = FakeJournal(OLD, create_revision=7)
    options = {}
    if resumed_at:
        options["resumeOffsets"] = JournalOffsets({A: 900}, fingerprints=start.fingerprints).to_json()
    again, _ = planner_of(client.journals, **options)
    again.pieces(start, end)
    renewed = again.next(end)
    assert renewed.read_through == {A: 1200}
    assert renewed.fingerprints == {A: replace(end.fingerprints[A], create_revision=7)}
    assert again.next(renewed).read_through == {A: 1500}


def test_same_bytes_under_another_creation_go_on_after_one_position_that_says_so() -> None:
    """The next position has the compared range under the new creation, and reads nothing of the journal."""
    planner, client = planner_of({A: FakeJournal(OLD), "log/b": FakeJournal(lines(1))})
    client.revision = 5
    position = planner.next(at(a=0, b=0))
    client.change(A, None)
    client.change(A, FakeJournal(OLD))
    renewed = planner.next(position)
    assert renewed.read_through == position.read_through
    assert renewed.fingerprints == {A: fingerprint(OLD, 1500, 7)}
    reads = len(client.reads)
    assert planner.next(renewed) is renewed
    assert len(client.reads) == reads  # It was compared once.
    client.journals[A].content += b"more\n"
    last = planner.next(renewed)
    assert last.fingerprints == {A: fingerprint(OLD + b"more\n", 1505, 7)}


@pytest.mark.parametrize("content_type", ["application/x-ndjson", FIXED])
def test_what_is_planned_is_what_the_journal_has(content_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = OLD
    if content_type == FIXED:
        content = b"".join(frame(b"record %d" % number) for number in range(200))
    for tail_bytes, options in ((64 << 10, {}), (16, {}), (16, {"maxRecordsPerTrigger": "7"})):
        monkeypatch.setattr(planner_module, "TAIL_BYTES", tail_bytes)
        planner, _ = planner_of({A: FakeJournal(content, content_type=content_type)}, **options)
        position = at(a=0)
        for _ in range(8):
            end = planner.next(position, ReadLimits(max_bytes=100, max_records=7 if options else None))
            planner.pieces(position, end)
            reached = end.read_through[A]
            (found,) = end.fingerprints.values()
            assert (found.end, found.create_revision) == (reached, 1)
            assert found.is_of(content[found.begin : reached])
            assert found.begin < position.read_through[A] or position.read_through[A] == 0
            assert reached - found.begin <= FINGERPRINT_BYTES
            position = end


@pytest.mark.parametrize(
    "error",
    [SuspendedError(A), OffsetNotYetAvailableError(A, "offset 388 cannot be read yet")],
    ids=lambda error: type(error).__name__,
)
def test_bytes_that_brokers_cannot_serve_are_gone(
    error: GazetteError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A suspended journal, or one whose spec names another store, is not thereby another journal."""
    for created, expected in ((1, None), (7, JournalRecreatedError)):
        planner, client = resumed(FakeJournal(OLD, create_revision=created), fingerprint(OLD, 900), 900)
        read = client.read

        def refuse(journal: str, *, offset: int = 0, end_offset: int = 0) -> FakeReader:
            if offset == 388:
                raise error
            return read(journal, offset=offset, end_offset=end_offset)  # noqa: B023 - called in this round.

        monkeypatch.setattr(client, "read", refuse)
        if expected is None:
            assert planner.initial() == at(a=900).at("initial")
        else:
            with pytest.raises(expected):
                planner.initial()


def test_a_backfill_compares_journals_with_the_ledger() -> None:
    known = fingerprint(OLD, 900)
    planner, _ = planner_of({A: FakeJournal(OLD, create_revision=7)}, "batch")
    _, end = planner.batch()
    assert planner.compare({A: known}, {A: 900}, {A: 1500}) == {A: replace(known, create_revision=7)}
    assert planner.completed(at(a=900), end).fingerprints == {A: fingerprint(OLD, 1500, 7)}
    planner, _ = planner_of({A: FakeJournal(NEW, create_revision=7)}, "batch")
    planner.batch()
    with pytest.raises(JournalRecreatedError, match=r"\[388, 900\)"):
        planner.compare({A: known}, {A: 900}, {A: 1800})
    assert planner.compare({A: known}, {A: 900}, {A: 600}) == {}  # A store may be behind.
