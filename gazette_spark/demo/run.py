"""Runs the demo: sets up a broker, journals, writers and the query, then reports what it showed."""

from __future__ import annotations

import random
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from gazette_spark.client import Client
from gazette_spark.demo.child import QueryProcess
from gazette_spark.demo.events import JOURNALS, Int64s
from gazette_spark.demo.plan import Plan
from gazette_spark.demo.proof import Proof, compare
from gazette_spark.demo.scenario import Scenario, ScenarioTimes, Screen
from gazette_spark.demo.settings import APP_ID, Settings
from gazette_spark.demo.writers import Writers
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journals import journal_spec
from gazette_spark.testing.table_watch import ledger_heads

FINISH_S = 180.0
"""Time for the query to stop and to read the whole table."""

KILLS = 2
"""Number of kills of the query."""

FRAGMENT_LENGTH = 4 << 20
"""Small, so that a short run persists several fragments of each journal and reads them back."""

CODECS = ("SNAPPY", "GZIP", "ZSTANDARD", "NONE")
"""One codec for each journal."""

MAX_BYTES_PER_TRIGGER = 8 << 20
"""Keeps batches small, so that a backlog takes several and a kill has something to interrupt."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The user's options."""

    seconds: float
    rate: float
    broker: str | None = None
    """Address of a deployed broker; None starts an embedded one."""


@dataclass(frozen=True, slots=True)
class Report:
    """Result of the demo."""

    proof: Proof
    times: ScenarioTimes
    appended_bytes: int
    ledger: dict[str, int]
    """Offset of each journal in the last entry of the table's ledger."""


def run_demo(options: DemoOptions, directory: Path, screen: Screen) -> Report:
    """Run the demo in an empty ``directory``.

    Raises:
        GazetteError: the broker failed, or the query did by itself (``QueryDiedError``).
    """
    with ExitStack() as stack:
        endpoint, fragment_root = stack.enter_context(open_broker(options.broker, directory))
        client = stack.enter_context(Client(endpoint))
        journals = stack.enter_context(new_journals(client, deployed=options.broker is not None))
        screen.say(f"broker {endpoint}: four new journals, {journals[0]} and its siblings")
        settings = Settings(endpoint, journals, fragment_root, str(directory), MAX_BYTES_PER_TRIGGER)
        settings.save(directory / "settings.json")
        writers = stack.enter_context(Writers(client, journals, options.rate))
        command = [sys.executable, "-m", "gazette_spark.demo.query", str(directory / "settings.json")]
        child = stack.enter_context(QueryProcess(command, directory / "query.log"))
        plan = Plan(options.seconds, tuple(random.uniform(0, 2) for _ in range(KILLS)))  # noqa: S311
        times = Scenario(plan, options.rate, settings, writers=writers, child=child, screen=screen).run()
        screen.say("comparing every event with the table")
        child.finish(FINISH_S)
        return make_report(settings, writers, times)


def make_report(settings: Settings, writers: Writers, times: ScenarioTimes) -> Report:
    """Compare the appended events with the query process's summary of the table."""
    table = pa.ipc.open_file(str(settings.rows)).read_all()

    def column(name: str) -> Int64s:
        values: Int64s = table[name].to_numpy()
        return values

    return Report(
        proof=compare(*writers.columns(), column("id"), column("cents")),
        times=times,
        appended_bytes=writers.size_bytes,
        ledger=ledger_heads(settings.ledger.read_text(), APP_ID),
    )


@contextmanager
def open_broker(address: str | None, directory: Path) -> Iterator[tuple[str, str]]:
    """Give a broker's endpoint, and the directory of its ``file://`` stores if that is known."""
    if address is not None:
        yield address, ""
        return
    from gazette_spark.broker.embedded import EmbeddedBroker

    root = directory / "broker"
    root.mkdir()
    with EmbeddedBroker(root) as broker:
        yield broker.endpoint, str(root)


@contextmanager
def new_journals(client: Client, *, deployed: bool) -> Iterator[list[str]]:
    """Create the journals; on a deployed broker under a fresh name, and remove them at the end.

    There they have no store, as we cannot know one: their bytes stay with the brokers.
    """
    prefix = f"gazette-spark-demo-{uuid.uuid4().hex[:8]}/" if deployed else "shop/"
    stores = () if deployed else ("file:///",)
    specs = [
        journal_spec(prefix + name, codec=codec, length=FRAGMENT_LENGTH, stores=stores)
        for name, codec in zip(JOURNALS, CODECS, strict=True)
    ]
    client.create_journals(*specs)
    names = [spec.name for spec in specs]
    try:
        yield names
    finally:
        if deployed:
            delete_journals(client, names)


def delete_journals(client: Client, names: list[str]) -> None:
    """Delete journals at their present revisions."""
    found = [client.get_journal(name) for name in names]
    client.apply(
        [
            pb.ApplyRequest.Change(delete=each.spec.name, expect_mod_revision=each.mod_revision)
            for each in found
        ]
    )
