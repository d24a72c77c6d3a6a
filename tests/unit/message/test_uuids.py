"""Tests message UUIDs against values from Gazette's own code."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_spark.message.uuids import (
    ACK_TXN,
    CONTINUE_TXN,
    FLAG_BITS,
    MAX_CLOCK,
    OUTSIDE_TXN,
    TICK,
    Clock,
    ProducerId,
    build_uuid,
    new_producer_id,
    producer_number,
    producer_of,
    split_uuid,
    split_uuids,
    stamp,
    uuid_texts,
)

PRODUCER = ProducerId(bytes([1, 2, 3, 4, 5, 6]))
NOW = Clock.at(1_700_000_000_123_456_700)
VECTORS = [
    (NOW, OUTSIDE_TXN, "04c29687-833b-11ee-8000-010203040506"),
    (NOW, CONTINUE_TXN, "04c29687-833b-11ee-8001-010203040506"),
    (NOW, ACK_TXN, "04c29687-833b-11ee-8002-010203040506"),
    (NOW, FLAG_BITS, "04c29687-833b-11ee-83ff-010203040506"),
    (Clock(NOW + 15), CONTINUE_TXN, "04c29687-833b-11ee-bc01-010203040506"),
    (NOW.ticked(), ACK_TXN, "04c29691-833b-11ee-8002-010203040506"),
]
"""UUIDs made with Gazette's BuildUUID."""


@pytest.mark.parametrize(("clock", "flags", "text"), VECTORS)
def test_a_uuid_is_gazettes(clock: Clock, flags: int, text: str) -> None:
    assert str(build_uuid(PRODUCER, clock, flags)) == text
    assert split_uuid(uuid.UUID(text)) == (PRODUCER, clock, flags)


def test_clocks_tick_and_never_go_back() -> None:
    assert NOW == 2227086848019753072
    assert NOW.ticked() == 2227086848019753232
    assert NOW.unix_ns == 1_700_000_000_123_456_700
    assert NOW.updated(0) == NOW
    assert NOW.updated(NOW.unix_ns + 100) == NOW + 16
    with pytest.raises(ValueError, match="not -1"):
        Clock(-1)
    with pytest.raises(ValueError, match="64-bit number"):
        Clock(MAX_CLOCK).ticked()


def test_producer_ids_are_multicast_and_new() -> None:
    """The multicast bit keeps an id from equalling a network card's address."""
    ids = {new_producer_id() for _ in range(64)}
    assert len(ids) == 64
    assert all(len(each) == 6 and each[0] & 1 for each in ids)


@pytest.mark.parametrize(("producer", "flags"), [(b"short", 0), (bytes(6), FLAG_BITS + 1)])
def test_what_a_uuid_cannot_hold_is_refused(producer: bytes, flags: int) -> None:
    """A value that is too large must not overflow into the next field."""
    with pytest.raises(ValueError, match=r"6 bytes|10 bits"):
        build_uuid(ProducerId(producer), NOW, flags)


@given(
    st.binary(min_size=6, max_size=6),
    st.integers(min_value=0, max_value=MAX_CLOCK),
    st.integers(0, FLAG_BITS),
)
def test_a_uuid_holds_what_it_was_built_from(producer: bytes, clock: int, flags: int) -> None:
    built = build_uuid(ProducerId(producer), Clock(clock), flags)
    assert built.version == 1
    assert split_uuid(built) == (producer, clock, flags)


@given(st.lists(st.one_of(st.none(), st.uuids(), st.text(max_size=40)), max_size=20), st.booleans())
def test_columns_split_as_single_uuids_do(values: list[uuid.UUID | str | None], sliced: bool) -> None:
    column = pa.array([None if each is None else str(each) for each in values], pa.string())
    if sliced:
        column, values = column[1:], values[1:]
    found = split_uuids(column)
    for row, value in enumerate(values):
        want = split_uuid(value) if isinstance(value, uuid.UUID) else None
        got = (producer_of(int(found.producers[row])), int(found.clocks[row]), int(found.flags[row]))
        assert found.valid[row] == (want is not None)
        assert got == (want or (bytes(6), 0, 0))
    for value, text in zip(values, uuid_texts(found).to_pylist(), strict=True):
        if isinstance(value, uuid.UUID) and value.version == 1 and value.variant == uuid.RFC_4122:
            assert text == str(value)


def test_columns_take_binaries_and_capitals() -> None:
    """Protobuf stores a UUID as 16 bytes."""
    one = uuid.UUID(VECTORS[1][2])
    octets = split_uuids(pa.array([one.bytes, one.bytes[:15], None], pa.binary()))
    texts = [str(one).upper(), str(one).replace("-", "_"), str(one).replace("c", "g")]
    capitals = split_uuids(pa.array(texts))
    assert octets.valid.tolist() == capitals.valid.tolist() == [True, False, False]
    assert octets.clocks[0] == capitals.clocks[0] == NOW


def test_stamps_tick() -> None:
    texts = uuid_texts(stamp(PRODUCER, NOW, 3, CONTINUE_TXN)).to_pylist()
    clocks = [Clock(NOW + TICK * n) for n in range(3)]
    assert texts == [str(build_uuid(PRODUCER, clock, CONTINUE_TXN)) for clock in clocks]
    assert producer_of(producer_number(PRODUCER)) == PRODUCER
