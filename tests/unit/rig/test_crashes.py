"""A seed determines a schedule that covers every event, and a failure is reported with its replay command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gazette_spark._ledger.entry import LedgerEntry
from gazette_spark.message.uuids import ACK_TXN, CONTINUE_TXN, OUTSIDE_TXN
from gazette_spark.offsets import JournalOffsets
from gazette_spark.spark_versions import arrow_schema
from gazette_spark.testing.oracle import OracleVerdict, split_records
from tests.rig.crashes import backfills
from tests.rig.crashes.__main__ import is_enough, parse, replay
from tests.rig.crashes.children import command_to_die
from tests.rig.crashes.journals import MessageWriter
from tests.rig.crashes.oracles import check, committed_rows
from tests.rig.crashes.outcomes import CRASHED, UnexpectedEndError, outcome
from tests.rig.crashes.points import BY_NAME, POINTS, reachable
from tests.rig.crashes.report import COLUMNS, summary
from tests.rig.crashes.scenario import Scenario
from tests.rig.crashes.schedules import (
    FEATURE_OF,
    KINDS,
    SIGKILLS,
    SINK_CRASHES,
    WEIGHTS,
    Kind,
    Settings,
    draw,
    fitting,
)
from tests.rig.crashes.sinks import SINKS, dead_table, fits
from tests.rig.crashes.tables import RAW, IcebergCrashTable
from tests.rig.iceberg import IcebergStream


def test_a_seed_is_a_schedule() -> None:
    settings = Settings(steps=30, kill_share=0.2)
    assert draw(7, settings) == draw(7, settings) != draw(8, settings)


@pytest.mark.parametrize("sink", SINKS)
def test_every_kind_and_point_comes_up(sink: str) -> None:
    steps = draw(1, Settings(steps=3000, kill_share=0.3, sinks=(sink,))).steps
    kills = {kind for kind in SIGKILLS if FEATURE_OF.get(kind, sink) == sink}
    kinds = {*fitting(sink), *kills}
    assert {step.kind for step in steps} == kinds
    assert set(KINDS) == set(get_args(Kind))
    for kind in ("crash", "kill"):
        wanted = {point.name for point in reachable(frozenset({sink}), by_kill=kind == "kill")}
        assert {step.point for step in steps if step.kind == kind} == wanted
    for kind in ("backfill", "kill backfill") if sink == "committed" else ():
        wanted = {point.name for point in backfills.points(by_kill=kind == "kill backfill")}
        assert {step.point for step in steps if step.kind == kind} == wanted
    alone = {name for step in steps if step.kind == "sink crashes" for name in step.point.split("|")}
    assert alone <= {point.name for point in reachable(frozenset({sink}), by_kill=False)}


def test_successive_seeds_take_the_kinds_of_sink_in_turn() -> None:
    assert {draw(seed, Settings(steps=1)).sink for seed in range(7, 7 + len(SINKS))} == SINKS.keys()
    assert {point.feature for point in POINTS if point.feature} < SINKS.keys()


def test_most_crashes_are_those_of_whole_queries() -> None:
    """This must be true even if each sink step has three batches and each third crash uses no failpoint."""
    assert 2 / 3 * WEIGHTS["crash"] > WEIGHTS["sink crashes"] * SINK_CRASHES * 3


def test_without_kills_no_child_process_is_needed() -> None:
    assert not SIGKILLS & {step.kind for step in draw(1, Settings(steps=1000)).steps}


def test_a_schedule_of_some_kinds_is_replayed_by_its_command() -> None:
    settings = Settings(1000, 0.1, frozenset({"zombie", "sink crashes"}), ("upsert", "dead letters"))
    kills = {kind for kind in SIGKILLS if kind not in FEATURE_OF}
    assert {step.kind for step in draw(1, settings).steps} == {"zombie", "sink crashes", *kills}
    given = parse(shlex.split(replay(7, settings))[3:])
    assert (given.seed, given.schedules) == (7, 1)
    only, sinks = frozenset(given.only), tuple(given.sinks)
    assert Settings(given.steps, given.kill_share, only, sinks) == settings


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_carried_out(kind: str) -> None:
    assert callable(getattr(Scenario, f"_{kind.replace(' ', '_')}"))


@pytest.mark.parametrize(
    ("point", "command"),
    [
        ("before the WAL", {"rename": r"before 2 /offsets/\d+"}),
        ("before the write", {"failpoint": "sink.before_write:2:kill_group"}),
        ("states written", {"task_failpoint": "scan.states_written:2:kill_group"}),
    ],
    ids=["rename", "failpoint", "failpoint of a task"],
)
def test_a_child_is_told_where_to_die(point: str, command: dict[str, str]) -> None:
    assert command_to_die(BY_NAME[point], 2) == command
    with pytest.raises(ValueError, match="in a task"):
        command_to_die(BY_NAME["in a task"], 1)


def test_endings_are_told_apart() -> None:
    assert outcome("FailpointError: failpoint 'sink.entry' was reached; it is") == CRASHED
    assert outcome("gazette_spark.errors.GapError: table t, app id") == "GapError"
    with pytest.raises(UnexpectedEndError, match="disk full"):
        outcome("java.io.IOException: disk full")


def record(**fields: Any) -> dict[str, Any]:
    numbers = dict.fromkeys(COLUMNS, 0)
    usual = {
        "seed": 3,
        "sink": "raw",
        "seconds_by_step": {"crash": 300, "restore": 9},
        "replay": "again",
        "cycles": 150,
        "retries": 50,
        "rows": 9,
        "versions": 4,
        "points": {},
        "failure": "",
    }
    return numbers | usual | fields


def test_the_summary_bounds_the_rate_of_failures() -> None:
    """The bound is the rule of three, over all crashes and kills."""
    text = summary([record(), record(sigkills=100, points={"before the WAL": 2})])
    assert "| queries ended by an exception | 300 | 60% | 2.0 |" in text
    assert "| drivers ended by SIGKILL | 100 | 20% | 0.0 |\n| sinks alone, within a batch | 100 | 20%" in text
    assert "no failure in 500 crashes: with 95 % confidence below 0.60%" in text


def test_the_summary_adds_up_by_kind_of_sink() -> None:
    text = summary([record(), record(sink="upsert", sigkills=9, lost=2), record(sigkills=1)])
    assert "| raw | 2 | 300 | 1 | 100 | 0 | 18 | 8 | 0 | 0 | 0 |" in text
    assert "| upsert | 1 | 150 | 9 | 50 | 0 | 9 | 4 | 2 | 0 | 0 |" in text
    assert "| all | 3 | 450 | 10 | 150 | 0 | 27 | 12 | 2 | 0 | 0 |" in text


def test_kills_are_ordered_with_a_share() -> None:
    """Without a share of kills, their number would never be reached."""
    assert parse(["--crashes", "1000", "--kills", "300", "--kill-share", "0.3"]).kills == 300
    with pytest.raises(SystemExit):
        parse(["--kills", "300", "--kill-share", "0"])


def test_schedules_go_on_until_there_were_so_many_crashes() -> None:
    given = parse(["--schedules", "1", "--crashes", "400", "--kills", "9", "--kill-share", "0.3"])
    assert not is_enough([record(), record()], given)
    assert not is_enough([record(sigkills=9)], given)
    assert is_enough([record(sigkills=9), record()], given)
    assert is_enough([record(failure="lost 1", cycles=0, retries=0)] * 10, given)


def test_the_summary_shows_how_to_run_a_failure_again() -> None:
    text = summary([record(), record(seed=17, failure="lost 1", replay="python -m x --seed 17")])
    assert "seed 17: lost 1\n  run it again: python -m x --seed 17" in text
    assert "confidence" not in text


TRUTH = {"a": b"".join(b"%d x\n" % number for number in range(30))}


def table_of(
    directory: Path, rows: list[tuple[Any, ...]], columns: str, truth: dict[str, bytes] = TRUTH
) -> None:
    """Write one version of a table, with an entry up to the end of the journal ``a``."""
    log = directory / "_delta_log"
    log.mkdir(parents=True)
    names = columns.split()
    table = pa.table({name: [row[at] for row in rows] for at, name in enumerate(names)})
    pq.write_table(table, directory / "part-0.parquet")
    end = (JournalOffsets({"a": len(truth["a"])}),)
    entry = LedgerEntry("app", 0, "q", 0, end, end, end, "0", None, mode="append")
    info = {"commitInfo": {"operation": "WRITE", "userMetadata": entry.to_json()}}
    lines = [info, {"add": {"path": "part-0.parquet"}}]
    (log / f"{0:020d}.json").write_text("\n".join(json.dumps(line) for line in lines))


def read(kind: str, directory: Path, truth: dict[str, bytes] = TRUTH) -> OracleVerdict:
    return check(kind, directory, truth, app_id="app", complete=True)


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        (lambda rows: rows, (0, 0, 0)),
        (lambda rows: rows[1:], (1, 0, 0)),
        (lambda rows: [*rows, rows[0]], (0, 1, 0)),
        (lambda rows: [*rows, ("a", 99)], (0, 0, 1)),
    ],
    ids=["exact", "lost", "doubled", "made up"],
)
def test_the_oracle_of_state_finds(
    tmp_path: Path, change: Callable[[list[Any]], list[Any]], counts: tuple[int, int, int]
) -> None:
    table_of(tmp_path / "table", change([("a", 0), ("a", 1), ("a", 2)]), "journal key")
    verdict = read("stateful", tmp_path / "table")
    assert (verdict.lost, verdict.duplicated, verdict.altered) == counts
    assert verdict.exact is (counts == (0, 0, 0))


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        (lambda rows: rows, (0, 0, 0)),
        (lambda rows: rows[1:], (1, 0, 0)),
        (lambda rows: [*rows, rows[0]], (0, 1, 0)),
        (lambda rows: [*rows, ("a", 4, b"1 x")], (0, 0, 1)),
    ],
    ids=["exact", "lost", "doubled", "not dead"],
)
def test_the_oracle_of_dead_letters_finds(
    tmp_path: Path, change: Callable[[list[Any]], list[Any]], counts: tuple[int, int, int]
) -> None:
    records = [("a", offset, value) for offset, value in split_records(TRUTH["a"])]
    table_of(tmp_path / "table", [row for row in records if fits(row[2])], "journal offset value")
    dead = change([row for row in records if not fits(row[2])])
    table_of(dead_table(tmp_path / "table"), dead, "journal offset raw")
    verdict = read("dead letters", tmp_path / "table")
    assert (verdict.lost, verdict.duplicated, verdict.altered) == counts
    assert verdict.exact is (counts == (0, 0, 0))


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        (lambda rows: rows, (0, 0, 0)),
        (lambda rows: rows[1:], (1, 0, 0)),
        (lambda rows: [*rows, rows[0]], (0, 1, 0)),
        (lambda rows: [*rows[1:], ("a", 0, b"9 x")], (0, 0, 1)),
    ],
    ids=["exact", "lost", "doubled", "altered"],
)
def test_the_oracle_of_iceberg_tables_finds(
    tmp_path: Path, change: Callable[[list[Any]], list[Any]], counts: tuple[int, int, int]
) -> None:
    table = IcebergCrashTable(tmp_path / "table")
    stream = IcebergStream(table.properties, app_id="app", schema=RAW)
    rows = change([("a", offset, value) for offset, value in split_records(TRUTH["a"])])
    columns = dict(zip(RAW.names, zip(*rows, strict=True), strict=True))
    batch = pa.RecordBatch.from_pydict(columns, schema=arrow_schema(RAW))
    stream.run(0, 0, 0)
    stream.run(1, 0, len(TRUTH["a"]), write=lambda: stream.files(batch))
    others: list[Callable[[], None]] = [table.optimize, partial(table.expire, 0.3), table.write_as_another]
    for by_another in (table.exists, *others):
        by_another()
        verdict = read("iceberg", tmp_path / "table")
        assert (verdict.lost, verdict.duplicated, verdict.altered) == counts
        assert verdict.exact is (counts == (0, 0, 0)), verdict


MESSAGES = b"".join(
    b'{"n":[%d,%d,%d,%d]}\n' % message
    for message in [
        (0, 1, 1001, 1),
        (1, 2, 1001, 1),
        (2, 1, 1001, 1),
        (3, 1, 1002, 2),
        (4, 2, 1000, 2),
        (5, 3, 1001, 0),
        (6, 1, 1003, 1),
    ]
)
"""One message committed and repeated, one rolled back, one outside transactions, and one still open."""


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        (lambda rows: rows, (0, 0, 0)),
        (lambda rows: rows[1:], (1, 0, 0)),
        (lambda rows: [*rows, rows[0]], (0, 1, 0)),
        (lambda rows: [*rows, (*rows[0][:3], 0)], (0, 0, 1)),
        (lambda rows: [*rows, ("a", *_record(1), 80)], (0, 0, 1)),
        (lambda rows: [*rows, ("a", *_record(2), 60)], (0, 0, 1)),
        (lambda rows: [*rows, ("a", *_record(6), 120)], (0, 0, 1)),
    ],
    ids=["exact", "lost", "doubled", "committed by another", "rolled back", "repeated", "open"],
)
def test_the_oracle_of_committed_messages_finds(
    tmp_path: Path, change: Callable[[list[Any]], list[Any]], counts: tuple[int, int, int]
) -> None:
    truth = {"a": MESSAGES}
    rows = [("a", *_record(0), _record(3)[0]), ("a", *_record(5), _record(5)[0])]
    table_of(tmp_path / "table", change(rows), "journal offset value _ack_offset", truth)
    verdict = read("committed", tmp_path / "table", truth)
    assert (verdict.lost, verdict.duplicated, verdict.altered) == counts
    assert verdict.exact is (counts == (0, 0, 0))


def _record(number: int) -> tuple[int, bytes]:
    return list(split_records(MESSAGES))[number]


def test_producers_do_all_that_producers_do() -> None:
    writer = MessageWriter(1)
    lines = [writer.next(number, "a") for number in range(400)]
    said = [tuple(json.loads(line)["n"]) for line in lines]
    rows = committed_rows({"a": b"".join(lines)}, {"a": sum(map(len, lines))})
    assert {flags for *_, flags in said} == {OUTSIDE_TXN, CONTINUE_TXN, ACK_TXN}
    repeated = [each for each in set(said) if said.count(each) > 1]
    assert {each[3] for each in repeated} >= {CONTINUE_TXN, ACK_TXN}
    assert len({each[1] for each in said}) > 8
    assert 100 < rows.total() < 300
    assert max(ack - offset for _, offset, _, ack in rows) > 600
