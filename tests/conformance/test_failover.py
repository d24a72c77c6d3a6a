"""Brokers of a real cluster fail: no byte is lost or repeated, and no user sees a data loss error."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gazette_spark import Client
from gazette_spark._planning import plan
from gazette_spark.client._read.heads import SettledHead
from gazette_spark.testing import MicroBatches
from tests.conformance.wire import wait_for
from tests.rig.brokers import DeployedBroker
from tests.rig.cluster import EmbeddedCluster
from tests.rig.failover import (
    BROKERS,
    HARMS,
    LEASE_S,
    REPLICATION,
    Cluster,
    RealCluster,
    RigCluster,
    Stream,
    World,
    fail_over,
    read_batch,
    stream_reader,
)

BUSY_S = 2.0
NEVER_S = 600
"""Seconds between two listings of the store by a member: longer than any test."""


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "IDLE_POLL_S", 0.0)


@pytest.fixture(
    params=["embedded", pytest.param("deployed", marks=pytest.mark.deployed_broker)],
)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Yield a fresh cluster of four brokers, because a failed test may leave brokers hung or dead."""
    if request.param == "embedded":
        with EmbeddedCluster(tmp_path, brokers=BROKERS, replication=REPLICATION) as embedded:
            yield RigCluster(embedded)
    else:
        with DeployedBroker(tmp_path, broker_args=[f"--etcd.lease={LEASE_S}s"]) as deployed:
            yield RealCluster(deployed)


def is_low(cluster: Cluster, ends: dict[str, int]) -> bool:
    for endpoint in cluster.endpoints:
        with Client(endpoint, timeout_s=30) as client:
            if any(head < ends[name] for name, head in client.write_heads(list(ends)).items()):
                return True
    return False


def test_a_replica_that_has_just_joined_misleads_nobody(cluster: Cluster, fresh_prefix: str) -> None:
    """E0: one of four brokers is killed while no writer appends; every broker still serves all bytes."""
    world = World(cluster, fresh_prefix, NEVER_S)
    stream = Stream(world)
    while sum(map(len, stream.query.table.values())) < sum(world.lines(world.acknowledged).values()):
        stream.step()
    stream.close()
    stored = {name: world.client.list_fragments(name) for name in world.names}
    assert all(found[-1].fragment.mod_time == 0 for found in stored.values())

    def look(_seconds: float) -> None:
        wait_for(lambda: is_low(cluster, world.acknowledged), "a replica that knows stored bytes only")
        check_ends(cluster, world, stream)

    cluster.kill(look)
    world.client.close()


def check_ends(cluster: Cluster, world: World, stream: Stream) -> None:
    expected = world.lines(world.acknowledged)
    for endpoint in cluster.endpoints:
        options = world.options() | {"brokerAddress": endpoint}
        assert read_batch(options) == expected
        again = MicroBatches(dict(stream.query.offset_log), set(stream.query.commit_log))
        for available_now in (False, True):
            run = again.start(partial(stream_reader, options), available_now=available_now)
            assert not run.batch()
            run.stop()
        with Client(endpoint, timeout_s=30) as client:
            assert client.highest_heads(world.names) == world.acknowledged
            settled = client.settled_heads(world.acknowledged)
            assert settled == {name: SettledHead(end) for name, end in world.acknowledged.items()}
            for name, end in world.acknowledged.items():
                assert len(client.read(name).read()) == end
                assert len(client.read(name, end_offset=end, timeout_s=10).read()) == end
            # For an offset past the end, the settled head is known immediately.
            beyond = {name: end + 1 for name, end in world.acknowledged.items()}
            assert client.settled_heads(beyond) == settled


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("cluster", "harm"),
    [pytest.param("embedded", harm, marks=[] if harm == "kill" else [pytest.mark.soak]) for harm in HARMS]
    + [
        pytest.param("deployed", harm, marks=[pytest.mark.deployed_broker, pytest.mark.soak])
        for harm in HARMS
    ],
    indirect=["cluster"],
)
def test_all_users_go_on(cluster: Cluster, fresh_prefix: str, harm: str) -> None:
    outcomes = fail_over(cluster, fresh_prefix, harm, busy_s=BUSY_S)
    print("\n".join([harm, *map(str, outcomes)]))  # noqa: T201 - shown by -rP, and with a failure
    assert [(each.user, each.lost, each.doubled, each.alarms) for each in outcomes] == [
        (each.user, 0, 0, ()) for each in outcomes
    ]
    assert all(each.records for each in outcomes)
