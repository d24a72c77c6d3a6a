"""Tests which appends are allowed, when a spool rolls, and which message streams commit."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from gazette_spark.broker.api import append_fsm
from gazette_spark.broker.api.append_fsm import (
    TRANSITIONS,
    AppendPlan,
    JournalHead,
    StreamEvent,
    StreamState,
    SuspendStep,
    classify,
    plan_append,
    suspend_level,
    suspend_step,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import journal_spec
from gazette_spark.protocol.labels import label_set, parse_selector

NOW = 1_700_000_000.0
LATER_SPOOL = JournalHead(
    spool_begin=100,
    spool_end=200,
    spool_codec=pb.SNAPPY,
    first_append_time=NOW - 5,
    index_begin=0,
    index_end=200,
    registers=pb.LabelSet(),
)
Suspend = pb.JournalSpec.Suspend


def plan(head: JournalHead, spec: pb.JournalSpec | None = None, **request: Any) -> AppendPlan:
    return plan_append(head, spec or journal_spec("a/journal"), pb.AppendRequest(**request), NOW)


def test_a_plain_append_goes_into_the_spool() -> None:
    assert plan(LATER_SPOOL) == AppendPlan(pb.OK, roll_to=None)


@pytest.mark.parametrize(
    ("offset", "status"),
    [
        pytest.param(0, pb.OK, id="unchecked"),
        pytest.param(200, pb.OK, id="at-head"),
        pytest.param(199, pb.WRONG_APPEND_OFFSET, id="below-head"),
        pytest.param(201, pb.WRONG_APPEND_OFFSET, id="past-head"),
    ],
)
def test_explicit_offset(offset: int, status: int) -> None:
    assert plan(LATER_SPOOL, offset=offset).status == status


def test_index_past_the_spool() -> None:
    """Refuse appends if the store has bytes past the spool, until a client resets the head explicitly."""
    behind = replace(LATER_SPOOL, index_end=500)
    assert plan(behind).status == pb.INDEX_HAS_GREATER_OFFSET
    assert plan(behind, offset=200).status == pb.WRONG_APPEND_OFFSET
    assert plan(behind, offset=500) == AppendPlan(pb.OK, roll_to=500)


def test_barrier_on_a_read_only_journal_ignores_the_index() -> None:
    """A read-only journal takes no bytes, so its spool need not match its index."""
    spec = journal_spec("a/journal", flags=pb.JournalSpec.O_RDONLY)
    assert plan(replace(LATER_SPOOL, index_end=500), spec).status == pb.OK


def test_resumed_journal_continues_at_its_suspend_offset() -> None:
    spec = journal_spec("a/journal")
    spec.suspend.offset = 700
    assert plan(replace(LATER_SPOOL, index_end=700), spec) == AppendPlan(pb.OK, roll_to=700)


@pytest.mark.parametrize(
    ("registers", "check", "status"),
    [
        pytest.param({}, "author=x", pb.OK, id="empty-registers-match-all"),
        pytest.param({"author": "x"}, "author=x", pb.OK, id="match"),
        pytest.param({"author": "y"}, "author=x", pb.REGISTER_MISMATCH, id="mismatch"),
        pytest.param({"author": "y"}, "!author", pb.REGISTER_MISMATCH, id="excluded"),
    ],
)
def test_registers_are_checked_first(registers: dict[str, str], check: str, status: int) -> None:
    head = replace(LATER_SPOOL, registers=label_set(registers))
    assert plan(head, check_registers=parse_selector(check)).status == status
    expected = status if status != pb.OK else pb.WRONG_APPEND_OFFSET
    assert plan(head, check_registers=parse_selector(check), offset=7).status == expected


@pytest.mark.parametrize(
    ("change", "rolls"),
    [
        pytest.param({}, False, id="nothing"),
        pytest.param({"spool_begin": 100, "spool_end": 1124, "index_end": 1124}, False, id="length-reached"),
        pytest.param({"spool_begin": 100, "spool_end": 1125, "index_end": 1125}, True, id="length-passed"),
        pytest.param({"spool_begin": 0}, True, id="first-fragment"),
        pytest.param({"first_append_time": NOW - 65}, True, id="flush-boundary"),
        pytest.param({"spool_codec": pb.GZIP}, False, id="codec-of-a-filled-spool"),
        pytest.param({"spool_begin": 200, "spool_codec": pb.GZIP}, True, id="codec-of-an-empty-spool"),
        pytest.param({"spool_begin": 200, "index_begin": 200}, False, id="empty-spool-at-the-begin"),
    ],
)
def test_roll_rules(change: dict[str, Any], rolls: bool) -> None:
    """A spool rolls past its length, across a flush boundary, or if it is the journal's first."""
    spec = journal_spec("a/journal", length=1024, flush_interval_s=60)
    head = replace(LATER_SPOOL, **change)
    assert plan(head, spec) == AppendPlan(pb.OK, roll_to=head.spool_end if rolls else None)


def test_flush_boundaries_are_of_utc() -> None:
    """Two times belong to one spool if no multiple of the interval lies between them."""
    minute = 60 * 10**9
    assert not append_fsm.crossed_flush_boundary(120.0, 179.9, minute)
    assert append_fsm.crossed_flush_boundary(119.9, 120.0, minute)
    assert not append_fsm.crossed_flush_boundary(0.0, 1e9, 0)


def test_every_event_has_a_transition() -> None:
    open_states = [StreamState.CONTENT, StreamState.MARKED]
    assert set(TRANSITIONS) == set(product(open_states, StreamEvent))
    for state, text in TRANSITIONS.values():
        assert (state is StreamState.ROLL_BACK) == bool(text)


def test_only_marker_and_half_close_commit() -> None:
    """Try every stream of up to three events after some content."""
    committing = []
    for events in (events for count in range(4) for events in product(StreamEvent, repeat=count)):
        state = StreamState.CONTENT
        for event in events:
            state = TRANSITIONS.get((state, event), (StreamState.ROLL_BACK, ""))[0]
        if state is StreamState.COMMIT:
            committing.append([event for event in events if event is not StreamEvent.CHUNK])
    assert committing
    assert all(events == [StreamEvent.MARKER, StreamEvent.HALF_CLOSE] for events in committing)


@pytest.mark.parametrize(
    ("message", "event"),
    [
        pytest.param(pb.AppendRequest(), StreamEvent.MARKER, id="empty"),
        pytest.param(pb.AppendRequest(content=b"x"), StreamEvent.CHUNK, id="content"),
        pytest.param(pb.AppendRequest(journal="a/journal"), StreamEvent.FOREIGN, id="journal"),
        pytest.param(pb.AppendRequest(offset=3, content=b"x"), StreamEvent.MIXED, id="both"),
    ],
)
def test_classify(message: pb.AppendRequest, event: StreamEvent) -> None:
    assert classify(message, message.content) is event


@pytest.mark.parametrize("size", [1, 127, 128, 16_383, 16_384, 1 << 20, 1 << 21])
def test_content_of_any_size_is_a_chunk(size: int) -> None:
    """The sizes cross the boundaries of the varint that encodes the length."""
    content = bytes(size)
    assert classify(pb.AppendRequest(content=content), content) is StreamEvent.CHUNK
    mixed = pb.AppendRequest(content=content, do_not_proxy=True)
    assert classify(mixed, content) is StreamEvent.MIXED


def test_registers_union_replaces_and_subtract_needs_equal_values() -> None:
    registers = label_set({"author": "a", "both": ["1", "2"], "gone": "x"})
    request = pb.AppendRequest(
        union_registers=label_set({"author": "b"}), subtract_registers=label_set({"both": "1", "gone": "x"})
    )
    assert append_fsm.next_registers(registers, request) == label_set({"author": "b", "both": ["1", "2"]})


@pytest.mark.parametrize(
    ("suspend", "level", "step"),
    [
        pytest.param("SUSPEND_RESUME", Suspend.NONE, SuspendStep.PROCEED, id="resume-none"),
        pytest.param("SUSPEND_RESUME", Suspend.FULL, SuspendStep.RESUME, id="resume-full"),
        pytest.param("SUSPEND_NO_RESUME", Suspend.NONE, SuspendStep.PROCEED, id="no-resume-none"),
        pytest.param("SUSPEND_NO_RESUME", Suspend.PARTIAL, SuspendStep.REFUSE, id="no-resume-partial"),
        pytest.param("SUSPEND_KEEP", Suspend.PARTIAL, SuspendStep.PROCEED, id="keep-partial"),
        pytest.param("SUSPEND_KEEP", Suspend.FULL, SuspendStep.REFUSE, id="keep-full"),
        pytest.param("SUSPEND_NOW", Suspend.NONE, SuspendStep.TRY, id="now-none"),
        pytest.param("SUSPEND_IF_FLUSHED", Suspend.FULL, SuspendStep.REFUSE, id="if-flushed-full"),
    ],
)
def test_suspend_step(suspend: str, level: int, step: SuspendStep) -> None:
    assert suspend_step(level, pb.AppendRequest(suspend=suspend)) is step


@pytest.mark.parametrize(
    ("fragments", "ignore_age", "level"),
    [
        pytest.param([], False, Suspend.FULL, id="empty"),
        pytest.param([(10, 0)], True, Suspend.NONE, id="not-stored"),
        pytest.param([(10, NOW - 9)], False, Suspend.NONE, id="young"),
        pytest.param([(10, NOW - 9)], True, Suspend.PARTIAL, id="young-but-now"),
        pytest.param([(10, NOW - 100_000)], False, Suspend.PARTIAL, id="older-than-a-day"),
    ],
)
def test_suspend_level(fragments: list[tuple[int, int]], ignore_age: bool, level: int) -> None:
    assert suspend_level(fragments, journal_spec("a/journal"), ignore_age=ignore_age, now=NOW) == level
