"""Tests that changes are applied in batches, and that an error lists what was done before it."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_spark.client import Client
from gazette_spark.client._list.apply import CHANGES_PER_APPLY, apply_in_batches
from gazette_spark.errors import (
    EtcdTransactionFailedError,
    PartialApplyError,
    ProtocolError,
    UnavailableError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import journal_spec
from gazette_spark.testing.stub_broker import Fail, StubBroker
from tests.unit.client.listings import applied

Change = pb.ApplyRequest.Change


def deletions(count: int) -> list[Change]:
    return [Change(delete=f"many/{index:04}", expect_mod_revision=-1) for index in range(count)]


def sizes(stub: StubBroker) -> list[int]:
    return [len(request.changes) for request in stub.requests("Apply")]


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [
        pytest.param(0, 10, [], id="nothing"),
        pytest.param(10, 10, [10], id="just one batch"),
        pytest.param(129, 128, [128, 1], id="one too many for etcd"),
        pytest.param(7, 3, [3, 3, 1], id="a rest"),
        pytest.param(129, 0, [129], id="all at once"),
        pytest.param(0, 0, [], id="nothing at once"),
    ],
)
def test_batches(stub: StubBroker, client: Client, count: int, size: int, expected: list[int]) -> None:
    stub.script("Apply", *([applied(revision)] for revision in range(5, 5 + len(expected))), [applied(99)])
    changes = deletions(count)
    assert client.apply_in_batches(changes, size) == (4 + len(expected) if expected else 0)
    assert sizes(stub) == expected
    assert [each for request in stub.requests("Apply") for each in request.changes] == changes


def test_the_default_size_is_one_that_etcd_takes(stub: StubBroker, client: Client) -> None:
    """Etcd rejects a transaction of 129 changes."""
    stub.script("Apply", [applied(5)])
    client.apply_in_batches(deletions(129))
    assert sizes(stub) == [CHANGES_PER_APPLY, 129 - CHANGES_PER_APPLY]


def test_partial_success_is_told(stub: StubBroker, client: Client) -> None:
    stub.script("Apply", [applied(5)], [applied(6)], [pb.ApplyResponse(status=pb.ETCD_TRANSACTION_FAILED)])
    with pytest.raises(PartialApplyError, match="the first 20 of 35 changes were applied") as caught:
        client.apply_in_batches(deletions(35), 10)
    error = caught.value
    assert (error.batch, error.applied, error.changes, error.revision) == (2, 20, 35, 6)
    assert isinstance(error.cause, EtcdTransactionFailedError)
    assert sizes(stub) == [10, 10, 10]
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), type(copy.cause)) == (str(error), EtcdTransactionFailedError)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(
            pb.ApplyResponse(status=pb.ETCD_TRANSACTION_FAILED), EtcdTransactionFailedError, id="race"
        ),
        pytest.param(Fail(text="Socket closed"), UnavailableError, id="connection lost"),
    ],
)
def test_a_failure_of_the_first_batch_is_raised_as_it_is(
    stub: StubBroker, client: Client, answer: pb.ApplyResponse | Fail, expected: type[Exception]
) -> None:
    """There is no partial success to report."""
    stub.script("Apply", [answer])
    with pytest.raises(expected):
        client.apply_in_batches(deletions(35), 10)
    assert sizes(stub) == [10]


BAD = {
    "neither": Change(),
    "both": Change(upsert=journal_spec("a/journal"), delete="a/journal"),
    "delete at revision 0": Change(delete="a/journal"),
    "delete at revision -2": Change(delete="a/journal", expect_mod_revision=-2),
    "upsert at revision -2": Change(upsert=journal_spec("a/journal"), expect_mod_revision=-2),
    "bad spec": Change(upsert=pb.JournalSpec(name="a/journal")),
    "bad name": Change(delete="a//journal", expect_mod_revision=-1),
}
"""Changes that every broker rejects."""


@pytest.mark.parametrize("name", BAD)
def test_a_bad_change_anywhere_is_found_before_anything_is_sent(
    stub: StubBroker, client: Client, name: str
) -> None:
    stub.script("Apply", [applied(5)])
    changes: Sequence[Change] = [*deletions(12), BAD[name]]
    with pytest.raises(ProtocolError, match=r"Changes\[12\]"):
        client.apply(changes)
    with pytest.raises(ProtocolError, match=r"Changes\[12\]"):
        client.apply_in_batches(changes, 10)
    assert sizes(stub) == []


def test_a_negative_size_is_refused(stub: StubBroker, client: Client) -> None:
    """A size of 0 means one batch for all changes."""
    with pytest.raises(ProtocolError, match=r"batch size \(-1"):
        client.apply_in_batches(deletions(3), -1)
    assert sizes(stub) == []


def test_etcd_refusing_the_size_of_a_transaction_is_explained(stub: StubBroker, client: Client) -> None:
    """Operators configure the limit in Etcd, so the client cannot check it in advance."""
    text = "etcdserver: too many operations in txn request"
    stub.script("Apply", [Fail(grpc.StatusCode.UNKNOWN, text)])
    with pytest.raises(
        ProtocolError, match="129 changes are too many for one transaction; apply them in batches"
    ):
        client.apply(deletions(129))


@given(count=st.integers(0, 60), size=st.integers(0, 20), fails_at=st.integers(0, 60))
def test_any_size_applies_each_change_once(count: int, size: int, fails_at: int) -> None:
    changes = deletions(count)
    done: list[list[Change]] = []

    def apply(batch: Sequence[Change]) -> int:
        assert 0 < len(batch) <= (size or count)
        if len(done) == fails_at:
            raise EtcdTransactionFailedError("a/journal")
        done.append(list(batch))
        return len(done)

    batches = -(-count // (size or max(count, 1)))
    if fails_at >= batches:
        assert apply_in_batches(changes, size, apply) == batches
        applied_changes = count
    elif fails_at == 0:
        with pytest.raises(EtcdTransactionFailedError):
            apply_in_batches(changes, size, apply)
        applied_changes = 0
    else:
        with pytest.raises(PartialApplyError) as caught:
            apply_in_batches(changes, size, apply)
        error = caught.value
        assert (error.batch, error.revision, error.changes) == (fails_at, fails_at, count)
        applied_changes = error.applied
    assert [each for batch in done for each in batch] == changes[:applied_changes]
