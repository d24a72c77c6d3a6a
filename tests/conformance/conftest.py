"""The brokers under test, and a bare connection to one.

A test that takes ``broker`` runs the same assertions on the embedded broker, on one broker of an embedded
cluster, and on the real one. ``pytest.mark.brokers`` names the brokers of `make test`, by the subject of a
file or of a test; `make soak` runs the test on the others, too:

=======================  ====================================  ===========================
subject                  mark                                  brokers of `make test`
=======================  ====================================  ===========================
broker                   none                                  embedded, cluster, deployed
client, Go's client      ``brokers("embedded", "deployed")``   embedded, deployed
command, planner, table  ``brokers("embedded")``               embedded
=======================  ====================================  ===========================

A mark of a test comes before the mark of its file: some tests of the command run on the real broker.
Of the files about gazctl, only ``test_gazctl.py`` runs on the real broker by default.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gazette_spark.client._transport import retry
from tests.conformance.command import SPECS, Command
from tests.conformance.wire import Wire, spec
from tests.rig.brokers import BrokerHandle

BROKERS = ["embedded", "cluster", pytest.param("deployed", marks=pytest.mark.deployed_broker)]

KINDS = {"embedded", "cluster", "deployed"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark a test as soak on each broker that ``pytest.mark.brokers`` does not name."""
    for item in items:
        mark = item.get_closest_marker("brokers")
        if mark is None:
            continue
        kind = _broker_kind(item)
        assert set(mark.args) <= KINDS, f"{item.nodeid}: no such broker among {mark.args}"
        if kind and kind not in mark.args:
            item.add_marker(pytest.mark.soak)


def _broker_kind(item: pytest.Item) -> str | None:
    """Return the kind of broker a test runs on, or None without a parameter ``broker``."""
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("broker") if callspec is not None else None


@pytest.fixture(scope="session")
def cluster_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerHandle]:
    """Yield the first of three embedded brokers, each of which replicates every journal.

    This broker is primary of a third of the journals, proxies appends to the others, and serves reads of all,
    whatever the replication in a spec.
    """
    from tests.rig.cluster import EmbeddedCluster

    root = tmp_path_factory.mktemp("cluster")
    # Otherwise a replica that stores its copy a second later restores files that a test has just removed.
    with EmbeddedCluster(root, brokers=3, replication=3, pulse_interval_s=60.0) as cluster:
        yield BrokerHandle(cluster.endpoints[0], root)


@pytest.fixture(params=BROKERS)
def broker(request: pytest.FixtureRequest) -> BrokerHandle:
    handle: BrokerHandle = request.getfixturevalue(f"{request.param}_broker")
    return handle


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses between a client's tries to a hundredth, without changing their number."""
    monkeypatch.setattr(retry, "BACKOFF_S", tuple(pause_s / 100 for pause_s in retry.BACKOFF_S))
    monkeypatch.setattr(retry, "BACKOFF_MAX_S", retry.BACKOFF_MAX_S / 100)


@pytest.fixture
def wire(broker: BrokerHandle) -> Iterator[Wire]:
    with Wire(broker.endpoint) as opened:
        yield opened


@pytest.fixture
def journal(wire: Wire, journal_name: str) -> str:
    wire.create(spec(journal_name))
    return journal_name


@pytest.fixture
def run(broker: BrokerHandle) -> Command:
    return Command(broker.endpoint)


@pytest.fixture
def orders(run: Command, fresh_prefix: str) -> str:
    done = run("apply", stdin=SPECS.format(prefix=fresh_prefix))
    assert done.exit_code == 0, done.stderr
    return f"{fresh_prefix}orders"
