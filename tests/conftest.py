"""Brokers, clients and a Spark session for all tests.

A test that takes ``broker`` runs twice: on the embedded broker and on the real one. Both start once
a run, so a test uses journals under its own ``fresh_prefix``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.rig import examples
from tests.rig.brokers import BrokerHandle, DeployedBroker
from tests.rig.class_archive import find_archive
from tests.rig.native import require_library, without_library
from tests.rig.object_store import ObjectStore, running_object_store
from tests.rig.worker_python import write_worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gazette_spark.broker import EmbeddedBroker
    from gazette_spark.client import Client

pytest_plugins = ["gazette_spark.testing.pytest_plugin"]

BROKERS = ["embedded", pytest.param("deployed", marks=pytest.mark.deployed_broker)]

CHECKED = [Path(__file__).parent / "unit", Path(__file__).parent / "property"]
"""Folders with the tests of ``make check``; those marked as slow wait for ``make test``."""

CHECKPOINTING = "org.apache.spark.sql.execution.streaming.checkpointing"

SMALL_TABLES = {
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    # VACUUM lists a directory in this many tasks, 10,000 by default.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    # On a local disk, the default manager runs `readlink` or `chmod` dozens of times for each batch.
    "spark.sql.streaming.checkpointFileManagerClass": f"{CHECKPOINTING}.FileSystemBasedCheckpointFileManager",
}
"""Settings that limit a query over a few rows to a few tasks, and a batch to few processes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that choose how many tests run."""
    parser.addoption("--soak", action="store_true", help="run what `make soak` adds to `make test`, too")
    duration = (
        "how long soak kills hosts of the application stream-sum, each kind of host in a test of its own"
    )
    parser.addoption("--stream-sum-minutes", type=float, default=20, metavar="N", help=duration)


def pytest_configure(config: pytest.Config) -> None:
    """Choose Hypothesis's profile, and configure faster starts of Spark, also in subprocesses.

    The JVMs use the class data archive if there is one, and Python workers use the compiled PySpark.
    """
    examples.configure(config, soak=config.getoption("--soak"))
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    if archive := find_archive():
        os.environ.update(archive.environment())
    if "PYSPARK_PYTHON" not in os.environ:
        made = tempfile.TemporaryDirectory(prefix="worker-python-")
        config.add_cleanup(made.cleanup)
        os.environ["PYSPARK_PYTHON"] = str(write_worker_python(Path(made.name)))


def pytest_report_header(config: pytest.Config) -> str:
    """Print how to draw the same examples again, before any is drawn."""
    return examples.seed_line(config)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Repeat the seed after a failure, because ``-q`` shows no header."""
    if exitstatus:
        terminalreporter.line(examples.seed_line(config))


@pytest.fixture(
    params=[
        pytest.param(False, id="some seconds"),
        pytest.param(True, id="for long", marks=[pytest.mark.soak, pytest.mark.timeout(0)]),
    ]
)
def stream_minutes(request: pytest.FixtureRequest) -> float:
    """Duration for which Go's chunker writes streams and hosts are killed, in minutes."""
    lasts: bool = request.param
    return float(request.config.getoption("--stream-sum-minutes")) if lasts else 0.2


@pytest.fixture(scope="session")
def deployed_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedBroker]:
    """The real broker, started once; a missing binary fails with the build command."""
    with DeployedBroker(tmp_path_factory.mktemp("deployed")) as broker:
        yield broker


@pytest.fixture(scope="session")
def embedded_broker(gazette_broker: EmbeddedBroker) -> BrokerHandle:
    """The embedded broker, started once, with the features that tests of all brokers use."""
    return BrokerHandle(gazette_broker.endpoint, gazette_broker.root)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """A real S3 server, started once; a missing server fails with the command to fetch it."""
    with running_object_store(tmp_path_factory.mktemp("s3")) as store:
        yield store


@pytest.fixture
def object_store(s3_server: ObjectStore) -> ObjectStore:
    """An empty bucket on the real S3 server."""
    s3_server.empty()
    return s3_server


@pytest.fixture(scope="module", params=["native", "python"])
def native_library(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run each test of a module with and without the native library."""
    if request.param == "native":
        require_library()
        yield
    else:
        with without_library():
            yield


@pytest.fixture(params=BROKERS)
def broker(request: pytest.FixtureRequest) -> BrokerHandle:
    handle: BrokerHandle = request.getfixturevalue(f"{request.param}_broker")
    return handle


@pytest.fixture
def journal_name(fresh_prefix: str) -> str:
    """The name of a journal that does not exist and that no other test uses."""
    return f"{fresh_prefix}journal"


@pytest.fixture
def client(broker: BrokerHandle) -> Iterator[Client]:
    from gazette_spark.client import Client

    with Client(broker.endpoint, timeout_s=30) as opened:
        yield opened


@pytest.fixture(scope="session")
def delta_spark_conf() -> dict[str, str]:
    """Settings of the plugin's session: queries over few rows, without code generation."""
    from gazette_spark.session import INTERPRETED

    return INTERPRETED | SMALL_TABLES


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark with Delta: one JVM for all tests of a worker, without code generation."""
    from tests.rig.warm_python import WarmPython

    with WarmPython(tmp_path_factory.mktemp("python")) as python:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYSPARK_PYTHON", str(python.script))
            session = request.getfixturevalue("delta_spark")
        yield session


# This hook must run first: xdist reads the groups in its own hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out soak tests; mark tests of ``make check``, tests that need a JVM, and groups of one worker.

    tests/spark, tests/notebooks and every user of ``spark`` need a JVM. Those that do not use ``spark`` start
    their own JVMs.
    """
    if not config.getoption("--soak"):
        soak = [item for item in items if item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=soak)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
    # Paths are compared once per file, not for each of ten thousand tests.
    in_checked = cache(lambda path: any(map(path.is_relative_to, CHECKED)))
    for item in items:
        if in_checked(item.path) and not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.checked)
            parameters = getattr(getattr(item, "callspec", None), "params", {})
            if "deployed" in parameters.values() or "deployed_broker" in getattr(item, "fixturenames", ()):
                # `make test` builds the real broker at the same time, so such a test fails now and then.
                raise pytest.UsageError(f"{item.nodeid}: make check has no real broker; use gazette_client")
        shared = not {"spark", "delta_spark"}.isdisjoint(getattr(item, "fixturenames", ()))
        if shared or item.path.parent.name in ("spark", "notebooks"):
            item.add_marker(pytest.mark.spark)
            if not shared:
                item.add_marker(pytest.mark.own_jvm)
        file = item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(_group(item.path) if shared else file))
    # The longest tests run first, so that all workers end together: shared JVMs, JVMs of single tests,
    # properties.
    items.sort(
        key=lambda item: (
            not item.get_closest_marker("spark"),
            bool(item.get_closest_marker("own_jvm")),
            not item.nodeid.startswith("tests/property/"),
        )
    )


def _group(path: Path) -> str:
    """Return the xdist group of a file that uses the session ``spark``: one for the sinks, one for the rest.

    A query over few rows keeps one core busy, so two sessions halve the time on two cores. The slower group
    decides how long the run takes, so both get the same amount of work.
    """
    sinks = ("test_sink", "test_ingest", "test_consumer")
    return "spark: sink" if path.stem.startswith(sinks) else "spark"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, pytest.TestReport]:
    """Attach the end of the broker's log to the report of a failed test."""
    report: pytest.TestReport = yield
    used = getattr(item, "funcargs", {})
    broker = used.get("broker") or used.get("deployed_broker")
    if report.failed and isinstance(broker, BrokerHandle) and (tail := broker.log_tail()):
        report.sections.append(("broker log", tail))
    return report
