"""What a missing journal means, given the position and brokers that are at least as current."""

from __future__ import annotations

import pytest

from gazette_spark._planning.plan import Planner
from gazette_spark._planning.selection import JournalStatus, LastSeen, classify
from gazette_spark.errors import (
    JournalNotFoundError,
    JournalRecreatedError,
    OtherJournalsError,
    UnavailableError,
)
from gazette_spark.offsets import JournalOffsets
from gazette_spark.protocol import protocol_pb2 as pb
from tests.oracles.brokers import FakeClient, FakeJournal, lines, planner_of

A, B = "log/a", "log/b"


@pytest.mark.parametrize(
    ("last_seen", "create_revision", "listed_revision", "status"),
    [
        pytest.param(LastSeen(10, 10, 7), 3, 9, JournalStatus.PAUSED, id="exists"),
        pytest.param(LastSeen(10, 10, 7), 7, 9, JournalStatus.PAUSED, id="created_just_before"),
        pytest.param(LastSeen(10, 10, 7), 8, 9, JournalStatus.RECREATED, id="created_since"),
        pytest.param(LastSeen(10, None, 0), 8, 9, JournalStatus.PAUSED, id="nobody_remembers_when"),
        pytest.param(LastSeen(10, 10, 7), 0, 9, JournalStatus.PAUSED, id="brokers_that_do_not_say"),
        pytest.param(LastSeen(10, 10, 7, True), None, 7, JournalStatus.READ, id="gone_and_read"),
        pytest.param(LastSeen(10, 4, 7, True), None, 7, JournalStatus.READ, id="gone_and_read_past_the_head"),
        pytest.param(LastSeen(10, 10, 7), None, 7, JournalStatus.LOST, id="gone_and_read_by_an_earlier_run"),
        pytest.param(
            LastSeen(10, 11, 7, is_gone=True), None, 7, JournalStatus.GONE, id="gone_since_an_earlier_batch"
        ),
        pytest.param(LastSeen(10, 11, 7, is_gone=True), 8, 9, JournalStatus.RECREATED, id="gone_and_back"),
        pytest.param(LastSeen(10, 11, 7, True), None, 7, JournalStatus.LOST, id="gone_with_a_byte"),
        pytest.param(LastSeen(10, None, 0), None, 7, JournalStatus.LOST, id="gone_and_nobody_remembers"),
        pytest.param(LastSeen(10, 10, 7), None, 6, JournalStatus.NOT_LISTED, id="broker_is_behind"),
        pytest.param(
            LastSeen(10, 11, 7), None, 6, JournalStatus.NOT_LISTED, id="broker_is_behind_and_bytes_are_left"
        ),
        pytest.param(LastSeen(10, 10, 7), 3, 6, JournalStatus.PAUSED, id="broker_is_behind_and_knows_it"),
    ],
)
def test_the_status_of_a_journal_that_the_list_lacks(
    last_seen: LastSeen, create_revision: int | None, listed_revision: int, status: JournalStatus
) -> None:
    """The cases are the module's table."""
    assert classify(last_seen, create_revision, listed_revision) is status


def stored(position: JournalOffsets) -> JournalOffsets:
    return JournalOffsets.from_json(position.to_json())


def read_some(journals: dict[str, FakeJournal], /, **options: str) -> tuple[FakeClient, JournalOffsets]:
    """Read a batch of a stream within the options' limits, and commit it; return the position."""
    planner, client = planner_of(journals, **options)
    client.revision = 5
    start = JournalOffsets(dict.fromkeys(journals, 0))
    return client, stored(planner.next(start))


def revived_planner(client: FakeClient, revision: int, **options: str) -> Planner:
    planner, other = planner_of(client.journals, **options)
    other.revision = revision
    return planner


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
def test_a_journal_that_was_read_may_go_while_the_query_runs(
    restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    client, position = read_some({A: FakeJournal(lines(2) + b"half"), B: FakeJournal(lines(2))})
    assert (position.revision, position.heads) == (5, {A: 24})
    planner = revived_planner(client, 5)
    assert planner.next(position) is position
    del client.journals[B]
    after = planner.next(position)
    assert (after, after.gone) == (position, (B,))
    assert planner.next(after) is after
    assert [record.getMessage() for record in caplog.records] == [
        f"journal is gone and was read to its last known end, its offset is kept journal={B}"
    ]
    again = revived_planner(client, 5) if restarted else planner
    after = stored(after)
    assert again.next(after) is after
    client.journals[A].content += lines(1)
    assert again.next(after).gone == (B,)


def test_a_journal_that_goes_while_the_query_is_down_may_have_had_more() -> None:
    """Bytes appended after the last look are lost, so it is an error unless loss is allowed."""
    client, position = read_some({A: FakeJournal(lines(2)), B: FakeJournal(lines(2))})
    del client.journals[B]
    with pytest.raises(
        JournalNotFoundError, match="perhaps with unread bytes: it was deleted while the query"
    ):
        revived_planner(client, 5).next(position)
    allowed = revived_planner(client, 5, failOnDataLoss="false").next(position)
    assert allowed.gone == (B,)
    assert revived_planner(client, 5).next(allowed) is allowed


@pytest.mark.parametrize("allowed", [False, True], ids=["losses refused", "losses allowed"])
def test_a_named_journal_may_go_once_it_is_read(allowed: bool) -> None:
    options = {"journals": f"{A},{B}", "failOnDataLoss": str(not allowed).lower()}
    client, position = read_some({A: FakeJournal(lines(2)), B: FakeJournal(lines(2))}, **options)
    if not allowed:
        planner = revived_planner(client, 5, **options)
        planner.next(position)
        del client.journals[B]
        position = planner.next(position)
    else:
        del client.journals[B]
    client.journals[A].content += lines(1)
    for expected in ({A: 30, B: 20}, {A: 30, B: 20}):
        planner = revived_planner(client, 5, **options)
        planner.freeze()
        position = stored(planner.next(position))
        assert (position.read_through, position.gone) == (expected, (B,))
    planner = revived_planner(client, 5, **options | {"journals": f"{A},{B},log/c"})
    planner.freeze()
    with pytest.raises(JournalNotFoundError, match=r"'log/c'.*option 'journals' names it"):
        planner.next(position)


@pytest.mark.parametrize("allowed", [False, True], ids=["refused", "allowed"])
def test_a_journal_that_was_not_read_may_not(allowed: bool, caplog: pytest.LogCaptureFixture) -> None:
    client, position = read_some({A: FakeJournal(lines(2)), B: FakeJournal(lines(2) + b"half")})
    del client.journals[B]
    client.journals[A].content += lines(1)
    again = revived_planner(client, 6, failOnDataLoss=str(not allowed).lower())
    if not allowed:
        with pytest.raises(JournalNotFoundError, match="it is gone, with 4 unread bytes; set failOnData"):
            again.next(position)
        return
    after = again.next(position)
    assert after.read_through == {A: 30, B: 20}
    assert [record.getMessage() for record in caplog.records] == [
        f"journal is gone, its offset is kept journal={B}"
    ]
    # A loss has to be allowed only once.
    assert revived_planner(client, 6).next(stored(after)) == after


def test_a_new_journal_that_goes_before_it_is_read_is_a_loss() -> None:
    """The journal was pinned at its first byte. It is a loss if the position recorded more bytes."""
    client, position = read_some({A: FakeJournal(lines(2))})
    client.journals[B] = FakeJournal(lines(3), create_revision=6)
    pinned = stored(revived_planner(client, 6).next(position))
    assert (pinned.read_through, pinned.heads) == ({A: 20, B: 0}, {B: 30})
    del client.journals[B]
    with pytest.raises(JournalNotFoundError, match="with 30 unread bytes"):
        revived_planner(client, 7).next(pinned)


def test_a_position_without_heads_does_not_show_what_was_left() -> None:
    """The deleted journal may have had unread bytes. The error names the remedy."""
    client, position = read_some({A: FakeJournal(lines(2)), B: FakeJournal(lines(2))})
    del client.journals[B]
    with pytest.raises(
        JournalNotFoundError, match=r"it is gone, perhaps with unread bytes.*set failOnDataLoss=false"
    ):
        planner_of(client.journals)[0].next(position.plain())


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="selected"),
        pytest.param({"journals": A}, id="not selected"),
        pytest.param({"failOnDataLoss": "false"}, id="losses allowed"),
    ],
)
def test_a_journal_made_again_of_other_bytes_is_another_one(options: dict[str, str]) -> None:
    """It is an error regardless of the options, because its offsets mean other bytes."""
    client, position = read_some({A: FakeJournal(lines(2)), B: FakeJournal(lines(2))})
    client.journals[B] = FakeJournal(b"y" * 20, create_revision=7)
    with pytest.raises(
        JournalRecreatedError, match=r"log/b.* at revision 7 .* existed at 1\).*\[0, 20\) are not"
    ):
        revived_planner(client, 8, **options).next(position)


def test_a_journal_made_again_is_seen_by_the_running_query() -> None:
    planner, client = planner_of({A: FakeJournal(lines(2))})
    client.revision = 5
    position = planner.next(JournalOffsets({A: 0}))
    client.revision = 8
    client.journals[A] = FakeJournal(b"y" * 39 + b"\n", create_revision=7)
    with pytest.raises(JournalRecreatedError):
        planner.next(position)


def test_brokers_that_know_less_are_not_believed() -> None:
    """A missing journal is not a loss then. If the brokers do not catch up, the query ends."""
    client, position = read_some({A: FakeJournal(lines(2)), B: FakeJournal(lines(2))})
    del client.journals[B]
    for allowed in ("true", "false"):
        planner = revived_planner(client, 4, failOnDataLoss=allowed)
        with pytest.raises(UnavailableError, match=r"'log/b' at Etcd revision 4, .* saw it at 5"):
            planner.next(position)


def test_brokers_that_know_less_may_list_what_they_know() -> None:
    client, position = read_some({A: FakeJournal(lines(2))})
    assert revived_planner(client, 4).next(position) is position


def test_a_list_that_is_behind_makes_no_position_older() -> None:
    """An outdated broker must not replace a journal in the position by an older one."""
    client, position = read_some({A: FakeJournal(lines(2))})
    client.revision = 9
    client.change(B, FakeJournal(lines(1)))
    pinned = revived_planner(client, 10).next(position)
    assert (pinned.read_through, pinned.revision) == ({A: 20, B: 0}, 10)
    late = revived_planner(client, 10)
    client.journals[A].content += lines(1)
    late._view.client.revision = 7  # type: ignore[attr-defined]  # A fake client's.
    after = late.next(pinned)
    assert (after.read_through, after.revision) == ({A: 30, B: 10}, 10)
    assert revived_planner(client, 11).next(stored(after)) is not None


def test_a_journal_is_looked_up_until_the_answer_is_as_new_as_the_list() -> None:
    """Otherwise a journal from the newer list would permanently be treated as created again."""
    client, position = read_some({A: FakeJournal(lines(2)), B: FakeJournal(lines(2))})
    new = FakeJournal(lines(1), create_revision=9)
    client.journals["log/c"] = new
    planner, other = planner_of(client.journals, selector="name=log/a,name=log/c")
    other.revision, other.lags = 10, [0, 0, 3]
    with pytest.raises(UnavailableError, match=r"'log/b' at Etcd revision 7, .* listed at 10"):
        planner.next(position)
    other.timeout_s, other.lags = 5.0, [0, 3, 3]
    after = planner.next(position)
    assert (after.revision, other.lags) == (10, [])
    assert planner.next(stored(after)).read_through == {A: 20, B: 20, "log/c": 10}


TWO_SOURCES = {name: FakeJournal(lines(2)) for name in ("log/a", "log/b", "other/c", "other/d")}


def test_a_position_of_another_source_names_both() -> None:
    _, position = read_some({A: FakeJournal(lines(2)), B: FakeJournal(lines(2))})
    planner, other = planner_of(TWO_SOURCES, selector="prefix=other/")
    other.revision = 5
    with pytest.raises(OtherJournalsError) as caught:
        planner.next(position)
    assert str(caught.value) == (
        "option 'selector': it selects 'other/c', 'other/d', but this source's position in the query "
        "checkpoint is of 'log/a', 'log/b'. Spark matches sources and positions by their order in the query: "
        "keep that order, and add no source in front. To read other journals, start with a new "
        "checkpoint and sink.resume(reader), which continues the table; or let the option select journals of "
        "both"
    )
    with pytest.raises(OtherJournalsError):
        revived_planner(other, 5, selector="prefix=other/").pieces(position, position)


def test_a_position_of_another_source_is_told_by_what_exists() -> None:
    """Deleted journals may have successors, but existing ones were selected by another option."""
    _, position = read_some({A: FakeJournal(lines(2)), B: FakeJournal(lines(2))})
    successors = {"other/c": FakeJournal(lines(1), create_revision=6)}
    planner, client = planner_of(successors, selector="prefix=other/", failOnDataLoss="false")
    client.revision = 6
    assert planner.next(position).read_through == {A: 20, B: 20, "other/c": 0}
    client.journals[B] = FakeJournal(lines(2))
    with pytest.raises(OtherJournalsError, match="'log/b'"):
        revived_planner(client, 6, selector="prefix=other/").next(position)


def test_a_running_query_may_have_its_labels_moved() -> None:
    """Only the position at the start of a run may belong to another source."""
    journals = {A: FakeJournal(lines(2)), "other/c": FakeJournal(lines(2))}
    planner, client = planner_of(journals, selector="name=log/a")
    position = planner.next(JournalOffsets({A: 0}))
    planner._journals._selector.include.labels[0].value = "other/c"  # type: ignore[attr-defined]  # Only a selected list has labels.
    moved = planner.next(position)
    assert moved.read_through == {A: 20, "other/c": 0}
    # The position now has a journal of each selection, so it does not belong to another source.
    assert (
        revived_planner(client, 2, selector="prefix=other/").next(stored(moved)).read_through["other/c"] == 20
    )


def test_a_list_that_is_behind_shows_no_other_source() -> None:
    """A list older than the position may lack its journals."""
    journals = {"log/old": FakeJournal(lines(2)), A: FakeJournal(lines(2), create_revision=4)}
    planner, client = planner_of(journals)
    client.revision, client.lags = 5, [3, 3, 0]
    client.past[2] = {"log/old": journals["log/old"]}
    position = JournalOffsets({A: 20}, revision=5)
    assert planner.next(position).read_through == {A: 20, "log/old": 0}


def test_a_journal_that_pauses_is_asked_for_once_a_list() -> None:
    """Otherwise each look would cost a request."""
    client, position = read_some({A: FakeJournal(lines(2)), B: FakeJournal(lines(2) + b"half")})
    planner, other = planner_of(client.journals, journals=A)
    other.revision = 5
    listing = other.list_all_journals("name=log/a")
    planner._journals.latest = lambda: listing  # type: ignore[method-assign]  # A list of the test.
    for _ in range(3):
        assert planner.next(position) == position
    assert len(other.listed) == 2
    client.journals[A].content += lines(1)
    assert planner.next(position).heads == {B: 24}


def test_many_absent_journals_are_looked_up_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request with all of them could be longer than brokers accept."""
    monkeypatch.setattr("gazette_spark._planning.view.NAMES_AT_ONCE", 2)
    client, position = read_some({f"log/{letter}": FakeJournal(lines(2)) for letter in "abcde"})
    planner, other = planner_of(client.journals, journals=A)
    other.revision = 5
    assert planner.next(position) == position
    asked = [selector for selector in other.listed if isinstance(selector, pb.LabelSelector)]
    names = [[label.value for label in selector.include.labels] for selector in asked]
    assert names[-2:] == [["log/b", "log/c"], ["log/d", "log/e"]]
