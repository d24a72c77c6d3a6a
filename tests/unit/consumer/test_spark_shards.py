"""Tests that the driver of the Spark host reports how far each shard has read, and wakes waiting callers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from gazette_spark.client import Client
from gazette_spark.consumer.application import ResolveArgs
from gazette_spark.consumer.examples.word_count import WordCount
from gazette_spark.consumer.spark import SparkHost
from gazette_spark.consumer.spark_shards import SparkShards
from gazette_spark.consumer.specs import shard_spec
from gazette_spark.errors import ClosedError, MissingPackageError, OptionError, ShardFailedError
from gazette_spark.protocol import consumer_pb2 as pc
from tests.unit.consumer.test_micro_batch import checkpoint

WAIT_S = 20


@pytest.fixture
def client() -> Iterator[Client]:
    """A client that is never called."""
    with Client("http://localhost:1") as made:
        yield made


@pytest.fixture
def shards(client: Client) -> SparkShards:
    specs = [shard_spec("idle", ["left"], disable=True), shard_spec("runs", ["left", "right"])]
    return SparkShards("/prefix", specs, client)


class Waiter(threading.Thread):
    def __init__(self, shards: SparkShards, **read_through: int) -> None:
        super().__init__(daemon=True)
        self._shards = shards
        self._args = ResolveArgs("runs", read_through=read_through, timeout_s=WAIT_S)
        self.status: pc.Status | None = None
        self.start()

    def run(self) -> None:
        self.status = self._shards.table.resolve(self._args).status

    def answer(self) -> pc.Status | None:
        self.join(WAIT_S)
        return self.status


def test_a_caller_waits_for_the_table_then_for_its_offsets(shards: SparkShards) -> None:
    waiter = Waiter(shards, left=20, elsewhere=5)
    assert [each.status[0].code for each in shards.table.list_shards().shards if each.status] == [
        pc.ReplicaStatus.IDLE
    ]
    assert shards.running() == []
    shards.opened({"runs": checkpoint(left=10)})
    (shard,) = shards.running()
    assert shard.status.code == pc.ReplicaStatus.PRIMARY
    assert shard.progress().read_through == {"left": 10, "right": 0}
    assert waiter.status is None
    shards.committed({"runs": checkpoint("out", "gone", left=20, right=3)}, {"out": 77, "gone": None})
    assert waiter.answer() == pc.OK
    assert shard.progress() == ({"left": 20, "right": 3}, {"out": 77})
    assert shards.checkpoints()["runs"].sources["right"].read_through == 3


def test_a_failed_shard_answers_and_begins_again_where_it_was(shards: SparkShards) -> None:
    shards.opened({})
    shards.committed({"runs": checkpoint("out", left=10)}, {"out": 50})
    waiter = Waiter(shards, left=20)
    (shard,) = shards.running()
    shard.fail(ShardFailedError("runs", "finalize_txn", "KeyError: 1"))
    assert waiter.answer() == pc.SHARD_STOPPED
    assert shards.running() == []
    (status,) = shards.table.list_shards().shards[1].status
    assert status.code == pc.ReplicaStatus.FAILED
    assert "finalize_txn: KeyError: 1" in status.errors[0]
    assert list(shards.table.unassign(["runs", "idle"], only_failed=True).shards) == ["runs"]
    (again,) = shards.running()
    assert again is not shard
    assert again.progress() == ({"left": 10, "right": 0}, {})


def test_a_disabled_shard_runs_once_it_is_enabled(shards: SparkShards) -> None:
    shards.opened({"idle": checkpoint(left=4)})
    assert shards.table.resolve(ResolveArgs("idle")).status == pc.NO_SHARD_PRIMARY
    enabled = pc.ApplyRequest.Change(expect_mod_revision=-1, upsert=shard_spec("idle", ["left"]))
    assert shards.table.apply([enabled]).status == pc.OK
    with shards.table.resolve(ResolveArgs("idle")) as found:
        assert found.status == pc.OK
        assert found.store is None
        assert found.shard is not None
        assert found.shard.progress().read_through == {"left": 4}
        with pytest.raises(ClosedError, match="in tasks"):
            found.shard.json_store()


def test_a_report_of_an_ended_assignment_is_not_the_next_ones(shards: SparkShards) -> None:
    """A failure counts only for the assignment that the micro-batch was planned for."""
    shards.opened({})
    (planned,) = shards.running()
    shards.table.unassign(["runs"])
    planned.fail(ShardFailedError("runs", "reading", "too late"))
    assert [shard.status.code for shard in shards.running()] == [pc.ReplicaStatus.PRIMARY]


def test_the_end_of_the_query_is_the_end_of_waiting(shards: SparkShards) -> None:
    shards.opened({})
    waiter = Waiter(shards, left=1)
    shards.table.close()
    assert waiter.answer() == pc.SHARD_STOPPED


def test_two_shards_of_one_id_are_refused(client: Client) -> None:
    with pytest.raises(OptionError, match="specs with different ids"):
        SparkShards("/prefix", [shard_spec("same", ["left"]), shard_spec("same", ["right"])], client)


def test_a_host_without_pandas_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes before the query starts, not from Spark in the first batch."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match=r"Pandas >= .* must be .*: pip install .*\[applications\]"):
        SparkHost(WordCount(), SparkSession.__new__(SparkSession), [], checkpoint="/c", state="/s", broker={})
