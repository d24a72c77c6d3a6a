"""Tests how a writer decides by the journal's registers, without a broker."""

from __future__ import annotations

import pytest

from gazette_spark.broker.api.append_fsm import next_registers, registers_match
from gazette_spark.errors import InvalidVersionError, LogFencedError, ProtocolError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import label_set
from gazette_spark.replicated_log._registers import (
    Change,
    LogRegisters,
    Step,
    author_check,
    check_author,
    check_of,
    next_step,
    union_of,
)

EMPTY = pb.LabelSet()
FRESH = LogRegisters()


def after(registers: pb.LabelSet, change: Change) -> pb.LabelSet:
    """Return the registers after a change's append, by the embedded broker's rules."""
    return next_registers(registers, pb.AppendRequest(union_registers=union_of(change)))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, LogRegisters()),
        ({"author": "me"}, LogRegisters("me")),
        ({"author": "me", "version": "12", "other": "x"}, LogRegisters("me", 12)),
    ],
)
def test_registers_are_read(values: dict[str, str], expected: LogRegisters) -> None:
    assert LogRegisters.of(label_set(values)) == expected


def test_a_version_that_is_no_number() -> None:
    """Another program may use this register, which must not count as version 0."""
    with pytest.raises(ProtocolError, match="'version': expected a number, got 'x1'"):
        LogRegisters.of(label_set({"version": "x1"}))


def test_a_new_log_is_at_version_0() -> None:
    first = Change("me", "", expected_version=0)
    assert next_step("a/log", first, FRESH, tried=False) is Step.APPEND
    assert LogRegisters.of(after(EMPTY, first)) == LogRegisters("me", 1)
    with pytest.raises(InvalidVersionError) as caught:
        next_step("a/log", Change("me", "", expected_version=3), FRESH, tried=False)
    assert (caught.value.expected, caught.value.actual) == (3, 0)


def test_a_version_behind_or_ahead_is_refused() -> None:
    found = LogRegisters("me", 4)
    assert next_step("a/log", Change("me", "me", expected_version=4), found, tried=False) is Step.APPEND
    for asked in (0, 3, 5):
        with pytest.raises(InvalidVersionError, match="at version 4, not"):
            next_step("a/log", Change("me", "me", expected_version=asked), found, tried=False)


def test_a_checkpoint_without_an_answer_is_looked_for() -> None:
    """After an attempt, the next version with the own name proves that it succeeded."""
    change = Change("me", "me", expected_version=4)
    done = LogRegisters("me", 5)
    assert next_step("a/log", change, done, tried=True) is Step.FIND
    with pytest.raises(InvalidVersionError):
        next_step("a/log", change, done, tried=False)
    with pytest.raises(InvalidVersionError):
        next_step("a/log", change, LogRegisters("other", 5), tried=True)


def test_a_take_over_without_an_answer_is_looked_for() -> None:
    """After an attempt, the own name proves success; a third name proves that another was faster."""
    change = Change("me", "old")
    assert next_step("a/log", change, LogRegisters("old", 2), tried=True) is Step.APPEND
    assert next_step("a/log", change, LogRegisters("me", 2), tried=True) is Step.FIND
    with pytest.raises(LogFencedError, match="writer third has taken the log over"):
        next_step("a/log", change, LogRegisters("third", 2), tried=True)


def test_lost_registers_fence_their_writer() -> None:
    """Empty registers match every check, so a writer that had set them must stop."""
    with pytest.raises(LogFencedError, match="all its brokers were lost"):
        next_step("a/log", Change("me", "me"), FRESH, tried=False)
    check_author("a/log", "me", label_set({"author": "me"}))
    with pytest.raises(LogFencedError, match="all its brokers were lost"):
        check_author("a/log", "me", EMPTY)


def test_a_lost_version_is_restored_and_never_changed() -> None:
    change = Change("me", "", restored=7)
    assert next_step("a/log", change, FRESH, tried=False) is Step.APPEND
    assert LogRegisters.of(after(EMPTY, change)) == LogRegisters("me", 7)
    with pytest.raises(InvalidVersionError, match="at version 8, not 7"):
        next_step("a/log", Change("me", "old", restored=7), LogRegisters("old", 8), tried=False)


@pytest.mark.parametrize("found", [FRESH, LogRegisters("old"), LogRegisters("old", 3)], ids=str)
def test_two_writers_cannot_both_change_what_they_found(found: LogRegisters) -> None:
    """Of two writers that read the same registers, the second is refused, even if they were empty."""
    values = {"author": found.author, "version": "" if found.version is None else str(found.version)}
    registers = label_set({name: value for name, value in values.items() if value})
    check = check_of(found)
    assert registers_match(registers, check)
    for change in (Change("one", found.author), Change("one", found.author, expected_version=found.number)):
        assert not registers_match(after(registers, change), check)


def test_entries_of_another_author_are_refused() -> None:
    registers = label_set({"author": "new", "version": "3"})
    assert registers_match(registers, author_check("new"))
    assert not registers_match(registers, author_check("old"))
