"""Tests how a shard's status is resolved, in Gazette's order, and how shards are started and stopped."""

from __future__ import annotations

import errno
import gc
import queue
import threading
import weakref
from typing import cast

import pytest

from gazette_spark.consumer.application import ResolveArgs
from gazette_spark.consumer.assignments import RestartPolicy
from gazette_spark.consumer.resolver import (
    RunningShard,
    RunningShards,
    needs_restart,
    resolve_status,
    unmet,
)
from gazette_spark.consumer.specs import shard_spec
from gazette_spark.protocol import consumer_pb2 as pc
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol import recoverylog_pb2 as pr
from tests.rig.still_host import StillHost, StillShard

SPEC = shard_spec("shard-one", ["a/one", "a/two"])
HERE = pb.ProcessSpec.ID(zone="local", suffix="here")
THERE = pb.ProcessSpec.ID(zone="local", suffix="there")


@pytest.mark.parametrize(
    ("spec", "primary", "may_proxy", "expected"),
    [
        (None, HERE, True, pc.SHARD_NOT_FOUND),
        (None, None, False, pc.SHARD_NOT_FOUND),
        (SPEC, None, False, pc.NO_SHARD_PRIMARY),
        (SPEC, THERE, False, pc.NOT_SHARD_PRIMARY),
        (SPEC, THERE, True, pc.OK),
        (SPEC, HERE, False, pc.OK),
    ],
    ids=["hidden", "unknown", "no-primary", "passed-on-already", "elsewhere", "here"],
)
def test_the_first_reason_counts(
    spec: pc.ShardSpec | None, primary: pb.ProcessSpec.ID | None, may_proxy: bool, expected: int
) -> None:
    assert resolve_status(spec, primary, HERE, may_proxy=may_proxy) == expected


def test_only_offsets_of_sources_are_waited_for() -> None:
    asked = ResolveArgs("shard-one", read_through={"a/one": 10, "a/two": 0, "b/other": 99})
    assert unmet({"a/one": 9}, asked, SPEC) == {"a/one": 10}
    assert unmet({"a/one": 10}, asked, SPEC) == {}
    assert unmet({}, asked, SPEC) == {"a/one": 10}


def test_a_shard_starts_again_for_what_it_read_once() -> None:
    """Sources and the ring size are read only at the start."""
    assert not needs_restart(
        SPEC, shard_spec("shard-one", ["a/one", "a/two"], max_txn_s=9, labels={"ab": "c"})
    )
    assert needs_restart(SPEC, shard_spec("shard-one", ["a/one"]))
    assert needs_restart(SPEC, shard_spec("shard-one", ["a/one", "a/two"], ring_buffer_size=1))


def test_a_shard_that_has_ended_is_forgotten() -> None:
    """Many shards may pass through a process, which must not keep what they have buffered."""
    lock = threading.RLock()
    shards = RunningShards(lambda spec, _after: cast(RunningShard, StillShard(spec)), lock, None)
    shards.follow(SPEC.id, SPEC)
    ended = weakref.ref(shards.by_id()[SPEC.id])
    shards.follow(SPEC.id, None)
    gc.collect()
    assert ended() is None
    assert shards.stop() == []


def test_hints_that_cannot_be_stored_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the shard would be listed, but never start."""

    class FullDisk(dict[str, pr.FSMHints]):
        def __setitem__(self, key: str, hints: pr.FSMHints) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    host = StillHost("http://localhost:1")
    monkeypatch.setattr(host, "_hints", FullDisk())
    spec = shard_spec("shard-two", [], recovery_log_prefix="logs")
    hints = pc.ApplyRequest.Change(upsert=spec, primary_hints=pr.FSMHints(log="logs/shard-two"))
    with pytest.raises(OSError, match="No space left"):
        host.apply([pc.ApplyRequest.Change(upsert=SPEC), hints])
    assert host.list_shards().shards == []


def test_a_shard_that_cannot_be_restarted_is_tried_again() -> None:
    """A machine may temporarily be out of threads."""
    errors = iter([None, RuntimeError("can't start new thread"), None])
    started = queue.SimpleQueue[StillShard]()

    def start(spec: pc.ShardSpec, _after: RunningShard | None) -> RunningShard:
        if (error := next(errors)) is not None:
            raise error
        started.put(shard := StillShard(spec))
        return cast(RunningShard, shard)

    shards = RunningShards(start, threading.RLock(), RestartPolicy(0.01, 0.01))
    shards.follow(SPEC.id, SPEC)
    started.get().primary_loop.set_exception(ValueError("boom"))
    second = started.get(timeout=30)
    assert shards.by_id()[SPEC.id] is cast(RunningShard, second)
    shards.close()
