"""The oracle catches incorrect sinks; otherwise its verdicts on our sink would prove nothing.

Each broken sink is one that people write in practice. Each goes through a scenario that our sink passes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from delta.tables import DeltaTable as Delta
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from gazette_spark import LedgerEntry
from gazette_spark._ledger.decision import Write, decide
from gazette_spark._ledger.entry import Batch, LedgerState
from gazette_spark._ledger.query_checkpoint import offsets_path, parse_offsets
from gazette_spark.failpoints import FAILPOINT_VARIABLE, failpoint
from tests.spark.conftest import APP_ID, FileStream

WriteBatch = Callable[[DataFrame, int], None]


def appended(df: DataFrame, stream: FileStream, **options: str | int) -> None:
    df.write.format("delta").mode("append").options(**options).save(str(stream.table))


def ours(stream: FileStream) -> WriteBatch:
    return stream.sink()


def batch_id_only(stream: FileStream) -> WriteBatch:
    """Delta's recipe for foreachBatch: a stable app id, with the batch id as its version."""

    def write(df: DataFrame, batch_id: int) -> None:
        appended(df, stream, txnAppId=APP_ID, txnVersion=batch_id)
        failpoint("sink.after_write")

    return write


def query_id_as_app_id(stream: FileStream) -> WriteBatch:
    """The same with a new app id for each query checkpoint, as in Delta's streaming sink."""
    app_id = str(uuid.uuid4())

    def write(df: DataFrame, batch_id: int) -> None:
        appended(df, stream, txnAppId=app_id, txnVersion=batch_id)
        failpoint("sink.after_write")

    return write


def no_txn(stream: FileStream) -> WriteBatch:
    """Append without a transaction number."""

    def write(df: DataFrame, batch_id: int) -> None:
        appended(df, stream)
        failpoint("sink.after_write")

    return write


def two_commits(stream: FileStream) -> WriteBatch:
    """Commit the rows, then the ledger; offsets are compared correctly."""

    def write(df: DataFrame, batch_id: int) -> None:
        end = planned(stream, batch_id)
        begin = planned(stream, batch_id - 1) if batch_id else ()
        batch = Batch("t", APP_ID, "q", batch_id, begin, end)  # type: ignore[arg-type]  # Positions of one kind.
        entry = newest_entry(stream)
        state = LedgerState(entry, previous=entry.parent if entry else None)
        decision = decide(state, batch, attempt=uuid.uuid4().hex)
        if isinstance(decision, Write):
            appended(df, stream)
            failpoint("sink.after_write")
            nothing = df.limit(0)
            appended(
                nothing, stream, txnAppId=APP_ID, txnVersion=batch_id, userMetadata=decision.entry.to_json()
            )

    return write


def planned(stream: FileStream, batch_id: int) -> object:
    """Return where a batch ends according to the query checkpoint."""
    path = offsets_path(str(stream.checkpoint), batch_id)
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - a path as Spark has it
        return parse_offsets(file.read(), path)


def newest_entry(stream: FileStream) -> LedgerEntry | None:
    return stream.sink().ledger(stream.spark) if Delta.isDeltaTable(stream.spark, str(stream.table)) else None


def crash_after_the_write(
    stream: FileStream, make: Callable[[FileStream], WriteBatch], monkeypatch: object
) -> None:
    """Crash between the write of a batch and Spark's record of it, then continue."""
    assert isinstance(monkeypatch, pytest.MonkeyPatch)
    stream.append(12)
    monkeypatch.setenv(FAILPOINT_VARIABLE, "sink.after_write:2:raise")
    with pytest.raises(StreamingQueryException, match=r"sink\.after_write"):
        stream.run_batches(make(stream), maxBytesPerTrigger=50)
    monkeypatch.delenv(FAILPOINT_VARIABLE)
    stream.run_batches(make(stream), maxBytesPerTrigger=50)


def lose_the_checkpoint(
    stream: FileStream, make: Callable[[FileStream], WriteBatch], monkeypatch: object
) -> None:
    """Start again without a query checkpoint, with batches of another size."""
    stream.append(12)
    stream.run_batches(make(stream), maxBytesPerTrigger=50)
    stream.lose_checkpoint()
    stream.append(12)
    resumed = stream.sink().resume_offsets(stream.spark) or "earliest"
    stream.run_batches(make(stream), maxBytesPerTrigger=90, startingOffsets=resumed)


SCENARIOS = [
    pytest.param(crash_after_the_write, id="crash after the write"),
    pytest.param(lose_the_checkpoint, id="checkpoint lost"),
]

MUTANTS = [
    pytest.param(batch_id_only, lose_the_checkpoint, "lost", id="batch id only loses rows"),
    pytest.param(
        query_id_as_app_id,
        lose_the_checkpoint,
        "duplicated",
        id="query id as app id doubles rows",
        marks=pytest.mark.soak,
    ),
    pytest.param(
        no_txn, crash_after_the_write, "duplicated", id="no txn doubles rows", marks=pytest.mark.soak
    ),
    pytest.param(  # test_crashes catches it in every run.
        two_commits, crash_after_the_write, "duplicated", id="two commits double rows", marks=pytest.mark.soak
    ),
]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_our_sink_passes(
    stream: FileStream, scenario: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario(stream, ours, monkeypatch)
    assert stream.assert_exact().rows in (12, 24)


@pytest.mark.parametrize(("make", "scenario", "fault"), MUTANTS)
def test_the_oracle_catches_a_broken_sink(
    stream: FileStream,
    make: Callable[[FileStream], WriteBatch],
    scenario: Callable[..., None],
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oracle counts lost and duplicate rows, and detects rows that disagree with recorded offsets."""
    scenario(stream, make, monkeypatch)
    verdict = stream.verdict()
    assert getattr(verdict, fault) > 0
    assert any(violation.startswith("I4") for violation in verdict.violations)


@pytest.mark.soak
def test_the_oracle_sees_two_commits_even_without_a_crash(stream: FileStream) -> None:
    """Rows and offsets in separate commits disagree at the version in between."""
    stream.append(12)
    stream.run_batches(two_commits(stream), maxBytesPerTrigger=50)
    verdict = stream.verdict()
    assert (verdict.lost, verdict.duplicated, verdict.altered) == (0, 0, 0)
    assert {violation[:2] for violation in verdict.violations} == {"I4"}
