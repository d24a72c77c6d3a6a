"""No sequence of faults makes a reader lose, duplicate or reorder a byte."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gazette_spark.broker import EmbeddedBroker, Faults
from gazette_spark.broker.settings import ServingSettings
from gazette_spark.client import Client
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import journal_spec
from tests.rig.examples import examples

NAME = "faulty/journal"
CONTENT = b"".join(b"%07d\n" % number for number in range(4000))
FAULTS = Faults()

breaks = st.tuples(st.just("break"), st.integers(1, len(CONTENT)))
ends = st.tuples(st.just("end"), st.integers(0, len(CONTENT)))
refusals = st.tuples(st.just("refuse"), st.just(0))
orders = st.lists(st.one_of(breaks, ends, refusals), max_size=6)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    root = tmp_path_factory.mktemp("faulty")
    with (
        EmbeddedBroker(root, faults=FAULTS, serving=ServingSettings(chunk_bytes=777)) as broker,
        Client(broker.endpoint) as opened,
    ):
        opened.create_journals(journal_spec(NAME, length=1 << 12))
        for begin in range(0, len(CONTENT), 4000):
            opened.append(NAME, CONTENT[begin : begin + 4000])
        yield opened


@settings(
    max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(orders=orders, offset=st.integers(0, len(CONTENT) - 1))
def test_a_read_is_exact_whatever_fails(client: Client, orders: list[tuple[str, int]], offset: int) -> None:
    FAULTS.clear()
    for kind, after_bytes in orders:
        if kind == "break":
            FAULTS.fail(grpc.StatusCode.UNAVAILABLE, rpc="Read", after_bytes=after_bytes)
        elif kind == "end":
            FAULTS.end(after_bytes=after_bytes)
        else:
            FAULTS.answer(pb.Status.Name(pb.INSUFFICIENT_JOURNAL_BROKERS), rpc="Read")
    with client.read(NAME, offset=offset, end_offset=len(CONTENT), timeout_s=20) as reader:
        assert reader.read() == CONTENT[offset:]
