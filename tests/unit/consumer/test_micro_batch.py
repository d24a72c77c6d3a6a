"""Tests what a micro-batch reads for which shard, and what its results commit."""

from __future__ import annotations

import pytest

from gazette_spark.consumer.micro_batch import (
    FAILED,
    INTENT,
    LEAST_BATCH_BYTES,
    PACE,
    SOURCE,
    Plan,
    Result,
    batch_bytes,
    plan,
    settle,
)
from gazette_spark.consumer.specs import shard_spec
from gazette_spark.protocol import consumer_pb2 as pc

FAR = 1 << 40


def checkpoint(*intents: str, **sources: int) -> pc.Checkpoint:
    made = pc.Checkpoint(ack_intents=dict.fromkeys(intents, b"ack"))
    for journal, offset in sources.items():
        made.sources[journal].read_through = offset
    return made


def planned(
    shards: dict[str, dict[str, int]],
    checkpoints: dict[str, pc.Checkpoint],
    heads: dict[str, int],
    limit: int = FAR,
) -> Plan:
    specs = [shard_spec(shard_id, sources) for shard_id, sources in shards.items()]
    return plan(specs, checkpoints, heads, dict.fromkeys(shards, limit))


def reads(found: Plan) -> list[tuple[str, int, int, tuple[str, ...]]]:
    return [(each.journal, each.begin, each.until, each.shards) for each in found.reads]


def test_shards_at_one_place_share_a_read() -> None:
    found = planned(
        {"even": {"left": 0}, "with": {"left": 0, "right": 0}, "behind": {"left": 0}, "fresh": {"left": 7}},
        {"even": checkpoint(left=50), "with": checkpoint(left=50, right=9), "behind": checkpoint(left=20)},
        {"left": 100, "right": 9},
    )
    assert reads(found) == [
        ("left", 7, 100, ("fresh",)),
        ("left", 20, 100, ("behind",)),
        ("left", 50, 100, ("even", "with")),
    ]
    assert found.journals == {"behind": {"left"}, "even": {"left"}, "fresh": {"left"}, "with": {"left"}}


def test_other_states_of_producers_are_another_place() -> None:
    """The shards have different open transactions, so the same bytes mean different messages."""
    pending = checkpoint(left=50)
    pending.sources["left"].producers.add(id=b"\x01" * 6).state.begin = 20
    found = planned(
        {"one1": {"left": 0}, "two2": {"left": 0}},
        {"one1": checkpoint(left=50), "two2": pending},
        {"left": 60},
    )
    assert sorted(each.shards for each in found.reads) == [("one1",), ("two2",)]


def test_a_read_is_as_long_as_its_most_modest_shard_allows() -> None:
    """The limit counts from the begin of each read."""
    specs = [shard_spec("quick", ["left"]), shard_spec("slow", ["left"])]
    found = plan(specs, {}, {"left": 100}, {"quick": 60, "slow": 30})
    assert reads(found) == [("left", 0, 30, ("quick", "slow"))]


@pytest.mark.parametrize(
    ("heads", "problem"),
    [
        pytest.param({"right": 100}, "'left'.*does not exist", id="gone"),
        pytest.param(
            {"left": 49, "right": 100},
            "'both'.*'left'.*read up to offset 50.*ends at 49.*under another id",
            id="shorter",
        ),
    ],
)
def test_a_source_that_cannot_go_on_fails_its_shards_only(heads: dict[str, int], problem: str) -> None:
    found = planned(
        {"both": {"left": 0, "right": 0}, "other": {"right": 0}}, {"both": checkpoint(left=50)}, heads
    )
    assert reads(found) == [("right", 0, 100, ("other",))]
    assert [each.shard for each in found.failures.values()] == ["both"]
    with pytest.raises(Exception, match=problem):
        raise found.failures["both"]


def test_a_least_offset_past_the_end_is_waited_for() -> None:
    """A shard may begin at an offset that has not been written yet."""
    found = planned({"late": {"left": 500}}, {}, {"left": 100})
    assert found == Plan()


def source(shard: str, journal: str, read_through: int) -> Result:
    data = pc.Checkpoint.Source(read_through=read_through).SerializeToString()
    return Result(shard, SOURCE, journal, data=data)


def test_a_checkpoint_is_of_all_sources_and_this_transactions_intents() -> None:
    """Intents of all tasks of a shard are joined; those of earlier transactions are dropped."""
    found = planned(
        {"both": {"left": 0, "right": 0}}, {"both": checkpoint("old", right=9)}, {"left": 100, "right": 9}
    )
    settled = settle(
        found,
        {"both": checkpoint("old", right=9)},
        [
            source("both", "left", 100),
            Result("both", INTENT, "out", data=b"first"),
            Result("both", INTENT, "out", data=b"second"),
            Result("both", PACE, "", "0.5"),
            Result("both", PACE, "", "0.25"),
        ],
    )
    expected = checkpoint(left=100, right=9)
    expected.ack_intents["out"] = b"firstsecond"
    assert settled.checkpoints == {"both": expected}
    assert settled.failures == {}
    assert settled.paces == {"both": 200.0}
    assert [(each.journal, each.intent) for each in settled.intents] == [("out", b"firstsecond")]


def test_nothing_is_committed_of_a_shard_that_failed() -> None:
    found = planned({"good": {"left": 0}, "poor": {"left": 0}}, {}, {"left": 100})
    settled = settle(
        found,
        {},
        [
            source("good", "left", 100),
            source("poor", "left", 100),
            Result("poor", INTENT, "out", data=b"ack"),
            Result("poor", FAILED, "finalize_txn", "KeyError: 1"),
            Result("poor", FAILED, "publishing", "later"),
        ],
    )
    assert settled.checkpoints.keys() == {"good"}
    assert (settled.failures["poor"].step, settled.failures["poor"].cause) == ("finalize_txn", "KeyError: 1")


def test_a_read_without_a_result_fails_the_shard() -> None:
    """Without the offset up to which a task read, its messages would be read again."""
    found = planned({"both": {"left": 0, "right": 0}}, {}, {"left": 100, "right": 50})
    settled = settle(found, {}, [source("both", "left", 100)])
    assert settled.checkpoints == {}
    assert "'right'" in str(settled.failures["both"])


def test_a_shard_that_got_no_further_commits_nothing() -> None:
    """The journal may end inside a message."""
    found = planned({"half": {"left": 0}}, {"half": checkpoint(left=50)}, {"left": 60})
    assert settle(found, {"half": checkpoint(left=50)}, [source("half", "left", 50)]).checkpoints == {}


@pytest.mark.parametrize(
    ("pace", "expected"),
    [
        pytest.param(None, LEAST_BATCH_BYTES, id="unknown"),
        pytest.param(1000.0, LEAST_BATCH_BYTES, id="slow"),
        pytest.param(float(1 << 20), 5 << 20, id="known"),
        pytest.param(float(1 << 30), 64 << 20, id="fast"),
    ],
)
def test_a_shard_reads_as_much_as_it_can_consume_in_its_longest_transaction(
    pace: float | None, expected: int
) -> None:
    """The shard's journals share the bytes."""
    spec = shard_spec("both", ["left", "right"], max_txn_s=10)
    assert batch_bytes(spec, pace, 64 << 20) == expected
