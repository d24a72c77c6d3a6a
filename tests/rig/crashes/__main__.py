"""Run random schedules of crashes: ``python -m tests.rig.crashes --schedules 10 --seed 1``.

Schedule number *i* has the seed ``--seed`` + *i*. Exit status 1 means that one failed; its seed and the
command that runs it again are printed. Each schedule leaves one line of JSON in ``--log``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from gazette_spark import EmbeddedBroker, local_spark
from gazette_spark.broker import StorageSettings
from gazette_spark.session import INTERPRETED
from gazette_spark.testing.oracle import OracleVerdict
from tests.rig.brokers import BrokerHandle
from tests.rig.class_archive import find_archive
from tests.rig.crashes.children import CrashChildren, Query
from tests.rig.crashes.journals import FileJournalSet
from tests.rig.crashes.oracles import check
from tests.rig.crashes.report import crashes, summary
from tests.rig.crashes.scenario import APP_ID, Scenario
from tests.rig.crashes.schedules import WEIGHTS, Settings, draw
from tests.rig.crashes.sinks import BUCKETS_VARIABLE, SINKS
from tests.rig.crashes.two_writers import records_coming, run_two_writers
from tests.rig.versitygw import (
    BUCKET,
    add_to_class_path,
    enter,
    running_versitygw,
    s3_client_jars,
    spark_settings,
)
from tests.rig.worker_python import write_worker_python

CONF = INTERPRETED | {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "1",
}

MOST_FAILURES = 10
"""Number of failed schedules after which no more are run to reach a number of crashes."""

READY_BESIDE = 1
"""Number of child processes that start while this process runs queries itself."""


def run_schedule(
    spark: SparkSession,
    root: Path,
    seed: int,
    settings: Settings,
    *,
    children: CrashChildren | None,
    broker: BrokerHandle,
) -> dict[str, Any]:
    """Run one schedule; return its line of the log, which includes any failure."""
    began = time.monotonic()
    schedule = draw(seed, settings)
    scenario = Scenario(
        spark,
        root / schedule.directory,
        sink=schedule.sink,
        children=children,
        broker=broker.endpoint,
        store=broker.file_root,
        seed=seed,
    )
    failure = ""
    verdict: OracleVerdict | None
    try:
        verdict = scenario.run(schedule.steps)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other schedules go on
        failure = f"{scenario.at}: {type(error).__name__}: {error}"
        verdict = getattr(error, "verdict", None)
    return {
        "seed": seed,
        "replay": replay(seed, settings),
        "sink": schedule.sink,
        "directory": schedule.directory,
        "steps": [str(step) for step in schedule.steps],
        "cycles": scenario.counts.cycles,
        "retries": scenario.counts.retries,
        "sigkills": scenario.counts.sigkills,
        "zombies": scenario.counts.zombies,
        "points": dict(scenario.counts.points),
        "endings": dict(scenario.counts.endings),
        "rows": verdict.rows if verdict else 0,
        "versions": verdict.versions if verdict else 0,
        "lost": verdict.lost if verdict else 0,
        "duplicated": verdict.duplicated if verdict else 0,
        "altered": verdict.altered if verdict else 0,
        "seconds_by_step": {kind: round(taken, 1) for kind, taken in scenario.counts.seconds.items()},
        "seconds": round(time.monotonic() - began, 1),
        "failure": failure,
    }


def replay(seed: int, settings: Settings) -> str:
    command = f"python -m tests.rig.crashes --schedules 1 --seed {seed} --steps {settings.steps}"
    only = ["--only", *sorted(settings.only)] if settings.only else []
    share = ["--kill-share", str(settings.kill_share)]
    return shlex.join([*command.split(), *share, "--sinks", *settings.sinks, *only])


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.rig.crashes", description=__doc__)
    parser.add_argument("--schedules", type=int, default=10, help="how many at least")
    parser.add_argument("--crashes", type=int, default=0, help="go on until there were so many")
    parser.add_argument("--kills", type=int, default=0, help="and so many SIGKILLs among them")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first one")
    parser.add_argument("--steps", type=int, default=20, help="steps of a schedule")
    parser.add_argument("--kill-share", type=float, default=0.1, help="share of steps that are SIGKILLs")
    parser.add_argument(
        "--only", choices=list(WEIGHTS), nargs="+", default=[], metavar="KIND", help="of the other steps"
    )
    parser.add_argument(
        "--sinks",
        choices=list(SINKS),
        nargs="+",
        default=list(SINKS),
        metavar="KIND",
        help="in turn",
    )
    parser.add_argument(
        "--two-writers",
        type=float,
        default=0,
        help="seconds that two processes write one table, at first; an Iceberg table with --sinks iceberg",
    )
    parser.add_argument("--s3", action="store_true", help="write the tables through a real S3 server")
    parser.add_argument("--log", type=Path, help="file that gets a line of JSON for each schedule")
    parser.add_argument("--sum-up", type=Path, nargs="+", help="run nothing, add up such files")
    parser.add_argument("--directory", type=Path, help="keep journals and tables there")
    given = parser.parse_args(arguments)
    if given.kills and not given.kill_share:
        parser.error("--kills needs a --kill-share above 0")
    return given


def main(arguments: Sequence[str]) -> int:
    given = parse(arguments)
    if given.sum_up:
        return _sum_up(given.sum_up)
    settings = Settings(given.steps, given.kill_share, frozenset(given.only), tuple(given.sinks))
    print(f"schedules from seed {given.seed} on", flush=True)  # noqa: T201 - a command
    archive = find_archive()
    os.environ.update(archive.environment() if archive else {})
    with ExitStack() as stack:
        root = given.directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crashes-")))
        root.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("PYSPARK_PYTHON", str(write_worker_python(root)))
        conf: dict[str, str] = {}
        if given.s3:
            # The buckets are folders, so the oracles read the tables' files as on a disk.
            os.environ[BUCKETS_VARIABLE] = str(root / "buckets")
            endpoint = stack.enter_context(running_versitygw(root / "buckets"))
            enter(endpoint)
            add_to_class_path(s3_client_jars())
            conf = spark_settings(endpoint)
        spark = local_spark(root / "spark", conf=CONF | conf)
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("OFF")  # These runs make queries fail on purpose.
        children = None
        if given.kill_share or given.two_writers:
            options = {"maxBytesPerTrigger": str(FileJournalSet.batch_bytes)}
            query = Query(APP_ID, "file_journals", options, conf=conf)
            children = stack.enter_context(CrashChildren(root / "children", query, ready=READY_BESIDE))
        broker = EmbeddedBroker(root / "broker", storage=StorageSettings(fsync=False))
        handle = BrokerHandle(stack.enter_context(broker).endpoint, broker.root)
        tables = root / "buckets" / BUCKET if given.s3 else root
        exact = _two_writers(children, tables, given) if given.two_writers and children else True
        records: list[dict[str, Any]] = []
        for seed in itertools.count(given.seed):
            if is_enough(records, given):
                break
            record = run_schedule(
                spark, tables / f"seed-{seed}", seed, settings, children=children, broker=handle
            )
            records.append(record)
            _tell(record, given.log)
            if not given.directory and not record["failure"]:
                shutil.rmtree(tables / f"seed-{seed}")
    print(summary(records))  # noqa: T201 - a command
    return 0 if exact and not any(record["failure"] for record in records) else 1


def is_enough(records: Sequence[dict[str, Any]], given: argparse.Namespace) -> bool:
    done = (
        (len(records), given.schedules),
        (sum(crashes(record) for record in records), given.crashes),
        (sum(record["sigkills"] for record in records), given.kills),
    )
    hopeless = sum(bool(record["failure"]) for record in records) >= max(MOST_FAILURES, given.schedules)
    return hopeless or all(count >= wanted for count, wanted in done)


def _sum_up(logs: Sequence[Path]) -> int:
    lines = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    print(summary(line for line in lines if "seed" in line))  # noqa: T201 - a command
    for line in lines:
        if "two_writers_s" in line:
            print(json.dumps(line))  # noqa: T201 - a command
    return 0


def _tell(record: dict[str, Any], log: Path | None) -> None:
    said = record["failure"] or "exact"
    print(  # noqa: T201 - a command
        f"seed {record['seed']}, {record['sink']} in {record['directory']!r}: "
        f"{record['cycles']} queries crashed, "
        f"{record['retries']} sinks alone, {record['sigkills']} SIGKILLs, "
        f"{record['zombies']} overtaken, {record['rows']} rows, {record['seconds']} s: {said}",
        flush=True,
    )
    if log:
        with log.open("a") as file:
            file.write(json.dumps(record) + "\n")


def _two_writers(children: CrashChildren, root: Path, given: argparse.Namespace) -> bool:
    """Run two processes that write one table, and report the result.

    Returns:
        Whether the table is exact and both have written.
    """
    root, journals = root / "two-writers", root / "two-writers" / "journals"
    journals.mkdir(parents=True)
    options = {"root": str(journals)}
    sink = "iceberg" if given.sinks == ["iceberg"] else "raw"
    with records_coming(journals, given.seed):
        held = run_two_writers(
            children, root, app_id=APP_ID, seconds=given.two_writers, options=options, sink=sink
        )
    truth = {file.name: file.read_bytes() for file in journals.iterdir()}
    verdict = check(sink, root / "table", truth, app_id=APP_ID, complete=False, checkpoints=held.checkpoints)
    record = {
        "two_writers_s": round(held.seconds, 1),
        "turns": held.turns,
        "defeats": held.defeats,
        "rows": verdict.rows,
        "entries": verdict.entries,
        "lost": verdict.lost,
        "duplicated": verdict.duplicated,
        "altered": verdict.altered,
        "violations": verdict.violations,
    }
    print(json.dumps(record), flush=True)  # noqa: T201 - a command
    if given.log:
        with given.log.open("a") as file:
            file.write(json.dumps(record) + "\n")
    return verdict.exact and held.turns > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
