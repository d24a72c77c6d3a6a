"""A user's program that must behave the same everywhere Spark runs: classic, on a cluster, on Connect.

It runs as a script with a settings file, in a Python without the source tree on its path, and writes its
results as JSON. Tests with their own session call :func:`observe`.
"""

from __future__ import annotations

import io
import json
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row, SparkSession

    from gazette_spark import DeltaSink, LagListener, LedgerEntry

APP_ID = "everywhere"
WAIT_S = 200
"""Maximum seconds for a query over a few kilobytes on a busy machine."""

MAIN, BROKEN, MISSING, WRITTEN = "main/", "broken", "missing", "written"
"""Journals below the prefix: those that are read, one whose last record is not valid JSON, a missing one, and
one that is written to."""

IDLE = "idle"
"""Journal of a stream that receives data only at the beginning and end of the program."""
BEAT_S = 4.0
"""Seconds without data after which that stream rewrites its newest ledger entry."""

MESSAGES, COPIED = "messages", "copied"
"""Journals for rows that are written exactly once."""
TRANSACTIONS = ("transactions-1", "transactions-2", "transactions-3")
"""Transaction journals, one for each query."""
FILLER_BYTES = 8 << 10
"""Bytes per row of a failing task: a few rows fill the buffers between Spark's processes and get through."""

TYPED = "id BIGINT, text STRING, _journal STRING, _offset BIGINT"


class Places:
    """DataFrames over the journals of one prefix."""

    def __init__(self, spark: SparkSession, settings: dict[str, Any]) -> None:
        self.spark = spark
        self.settings = settings

    def batch(self, journal: str, schema: str | None = None, **options: Any) -> DataFrame:
        return self._load(self.spark.read, journal, schema, options)

    def stream(self, journal: str, schema: str | None = None, **options: Any) -> DataFrame:
        return self._load(self.spark.readStream, journal, schema, options)

    def reader(self, reader: Any, **options: Any) -> Any:
        reader = reader.format("gazette").options(**self.enter())
        return reader.option("startingOffsets", "earliest").options(**options)

    def enter(self) -> dict[str, str]:
        """Return the options that name the broker and authenticate to it."""
        return {"brokerAddress": self.settings["endpoint"], **self.settings["enter"]}

    def _load(self, reader: Any, journal: str, schema: str | None, options: dict[str, Any]) -> DataFrame:
        reader = self.reader(reader, **options)
        if schema:
            reader = reader.schema(schema)
        loaded: DataFrame = reader.load(self.settings["prefix"] + journal)
        return loaded


def observe(spark: SparkSession, settings: dict[str, Any]) -> dict[str, Any]:
    """Run all reads, streams and deliberate failures; return the results, with rows as lists.

    Args:
        spark: Any session.
        settings: ``endpoint`` of a broker, ``enter``: options by which queries enter it, ``keys`` and
            ``tls``: contents by which this program's own client does, ``refused``: options that the broker
            refuses, ``prefix`` of its journals, ``directory`` for the table and query checkpoints, ``more``:
            the text that is appended between two runs of the stream, ``failures``: names of those to try;
            ``also``: what else to do, of :data:`ALSO`, ``rotating``: the option by which the stream that
            idles enters in another way.
    """
    places = Places(spark, settings)
    seen = {
        "raw": sorted(raw_row(row) for row in places.batch(MAIN, minPartitions=4).collect()),
        **streamed(places),
    }
    for name in settings["also"]:
        seen |= ALSO[name](places)
    return seen | {"errors": {name: error_of(FAILURES[name], places) for name in settings["failures"]}}


def raw_row(row: Row) -> list[Any]:
    return [row.journal, row.offset, bytes(row.value).decode()]


def typed(places: Places) -> dict[str, Any]:
    return {"typed": sorted(map(list, places.batch(MAIN, TYPED, format="json").collect()))}


def streamed(places: Places) -> dict[str, Any]:
    """Stream into a table, append, and continue by the direct lane; return the ledger and Spark's report."""
    from gazette_spark import DeltaSink, NewTable, ingest

    directory, settings = places.settings["directory"], places.settings
    new_table = NewTable("journal STRING NOT NULL, offset BIGINT, value BINARY COMMENT 'a record'")
    sink = DeltaSink(APP_ID, path=f"{directory}/table", new_table=new_table, compact_every=2)
    runs: list[dict[str, Any]] = []
    progress: list[str] = []
    how: dict[str, Any] = {"checkpoint": f"{directory}/checkpoint", "availableNow": True}
    for _ in range(2):
        if not runs:
            query = sink.start(places.stream(MAIN, maxBytesPerTrigger="8k"), lane="spark", **how)
        else:
            reader = places.reader(places.spark.readStream, maxBytesPerTrigger="8k")
            query = ingest(reader.option("path", settings["prefix"] + MAIN), sink, spark=places.spark, **how)
        if not query.awaitTermination(WAIT_S):
            raise TimeoutError(f"the stream has not ended within {WAIT_S} s")
        progress += [*map(str, query.recentProgress), str(query.lastProgress), str(query.status), repr(query)]
        entry = sink.ledger(places.spark)
        runs.append({"batch": entry.batch_id, "read_through": dict(entry.read_through)} if entry else {})
        if len(runs) == 1:
            append(places, f"{MAIN}a", settings["more"])
    table = places.spark.read.format("delta").load(f"{directory}/table")
    return {"runs": runs, "progress": progress, "table": sorted(map(raw_row, table.collect()))}


def append(places: Places, journal: str, content: str, **enter: str) -> None:
    """Append by a separate client, which uses the keys unless a token is given."""
    from gazette_spark import Client
    from gazette_spark.client import TlsOptions

    settings = places.settings
    tls = TlsOptions(**{part: content.encode() for part, content in settings["tls"].items()})
    identity: Any = enter or {"auth_keys": settings["keys"]}
    with Client(settings["endpoint"], tls=tls, **identity) as client:
        client.append(settings["prefix"] + journal, content.encode())


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {WAIT_S} s in vain: {what}")
        time.sleep(0.1)


def idle_sink(places: Places) -> DeltaSink:
    from gazette_spark import DeltaSink
    from gazette_spark._delta.heartbeat import Heartbeat

    sink = DeltaSink(IDLE, path=f"{places.settings['directory']}/of-idle/table")
    sink._heartbeat = Heartbeat(BEAT_S)
    return sink


def idling(places: Places) -> dict[str, Any]:
    """Keep a stream idle during other work; its token may be in a rotating file."""
    settings, sink = places.settings, idle_sink(places)
    token_file: dict[str, str] = settings["rotating"]
    settings["first_token"] = {name: Path(path).read_text() for name, path in token_file.items()}
    append(places, IDLE, "first\n")
    sink.start(
        # The driver gives tasks no bytes of a range in two pieces, so they authenticate with their own token.
        places.stream(IDLE, minPartitions="2", **token_file),
        checkpoint=f"{settings['directory']}/of-idle/checkpoint",
        query_name=IDLE,
        processingTime="0 seconds",
    )
    log = Path(f"{settings['directory']}/of-idle/table/_delta_log")

    def is_written() -> bool:
        return log.exists() and (entry := sink.ledger(places.spark)) is not None and entry.batch_id > 0

    wait_until("the first record", is_written)
    return {}


def awoken(places: Places) -> dict[str, Any]:
    """Append a record to the idle stream, once its entry was rewritten and its first token has expired."""
    from gazette_spark.errors import AuthError

    sink = idle_sink(places)
    (query,) = (each for each in places.spark.streams.active if each.name == IDLE)

    def is_refused(token: str) -> bool:
        try:
            append(places, IDLE, "", token=token)
        except AuthError:
            return True
        return False

    def entry() -> LedgerEntry:
        if query.exception() is not None or (found := sink.ledger(places.spark)) is None:
            raise RuntimeError(f"the stream has ended: {query.exception()}")
        return found

    wait_until("a beat", lambda: entry().txn_version > entry().batch_id)
    for token in places.settings["first_token"].values():
        wait_until("the first token to expire", partial(is_refused, token))
    before = entry().batch_id
    append(places, IDLE, "second\n")
    wait_until("the second record", lambda: entry().batch_id > before)
    query.stop()
    table = places.spark.read.format("delta").load(f"{places.settings['directory']}/of-idle/table")
    return {"idle": sorted(bytes(row.value).decode() for row in table.collect())}


def written(places: Places) -> dict[str, Any]:
    rows = places.spark.range(0, 20, 1, 2).selectExpr("concat('row ', id) AS value")
    journal = places.settings["prefix"] + WRITTEN
    rows.write.format("gazette").options(**places.enter()).mode("append").save(journal)
    return {"written": sorted(bytes(row.value).decode() for row in places.batch(WRITTEN).collect())}


def committed(places: Places) -> dict[str, Any]:
    directory, prefix = places.settings["directory"], places.settings["prefix"]
    streaming, writing = (
        places.enter()
        | {"deliveryGuarantee": "exactly_once", "transactionJournal": prefix + journal}
        | {"path": prefix + MESSAGES}
        for journal in TRANSACTIONS[:2]
    )
    writer = places.stream(f"{MAIN}a").select("value").writeStream.format("gazette").options(**streaming)
    ended(writer.option("checkpointLocation", f"{directory}/of-writer"))
    rows = places.spark.range(1000, 1020, 1, 2).selectExpr("concat('{\"id\":', id, '}') AS value")
    rows.write.format("gazette").options(**writing).mode("append").save()

    reading = {"isolationLevel": "read_committed", "format": "json"}
    states = {"stateLocation": f"{directory}/states", "maxBytesPerTrigger": "9k"}
    found = places.stream(MESSAGES, "id BIGINT, _ack_offset BIGINT", **reading, **states)
    batches = found.writeStream.format("parquet").option("path", f"{directory}/messages")
    ended(batches.option("checkpointLocation", f"{directory}/of-reader"))
    streamed = places.spark.read.parquet(f"{directory}/messages")
    at_once = places.batch(MESSAGES, "id BIGINT, _ack_offset BIGINT", **reading)
    return {"messages": [sorted(map(list, frame.collect())) for frame in (streamed, at_once)]}


def faltering(directory: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that fails task 0 once, after its rows, and delays task 1 until it has a copy."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time
        from pathlib import Path

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        task, attempt = context.partitionId(), context.attemptNumber()
        Path(f"{directory}/attempt-{task}-{attempt}").touch()
        yield from batches
        deadline = time.monotonic() + 100
        while (task, attempt) == (1, 0) and not Path(f"{directory}/attempt-1-1").exists():
            if time.monotonic() > deadline:
                raise TimeoutError("Spark starts no copy")
            time.sleep(0.1)
        if (task, attempt) == (0, 0):
            raise RuntimeError("the first attempt fails")

    return run


def copied(places: Places) -> dict[str, Any]:
    directory, prefix = places.settings["directory"], places.settings["prefix"]
    options = {"deliveryGuarantee": "exactly_once", "transactionJournal": prefix + TRANSACTIONS[2]}
    value = f"concat('{{\"id\":', id, ',\"filler\":\"', repeat('x', {FILLER_BYTES}), '\"}}') AS value"
    # Rows must reach the writer one by one, including those of a failed attempt.
    places.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    rows = places.spark.range(0, 40, 1, 2).selectExpr(value).mapInArrow(faltering(directory), "value string")
    writer = rows.write.format("gazette").options(**places.enter(), **options)
    writer.mode("append").save(prefix + COPIED)
    found = places.batch(COPIED, "id BIGINT", isolationLevel="read_committed", format="json").collect()
    return {
        "copied": sorted(row.id for row in found),
        "tried": sorted(path.name for path in Path(directory).glob("attempt-*")),
        "all": places.batch(COPIED).count(),
    }


def ended(writer: Any) -> None:
    query = writer.trigger(availableNow=True).start()
    if not query.awaitTermination(WAIT_S):
        raise TimeoutError(f"the stream has not ended within {WAIT_S} s")


def shown(places: Places) -> dict[str, Any]:
    frame = places.batch(MAIN)
    texts = [repr(frame)]
    for mode in ("extended", "cost", "formatted"):
        printed = io.StringIO()
        with redirect_stdout(printed):
            frame.explain(mode)
        texts.append(printed.getvalue())
    texts += [error_of(read_with(secret), places) for secret in places.settings["refused"]]
    return {"shown": texts, "pages": pages_of(places.spark)}


def read_with(secret: dict[str, str]) -> Callable[[Places], None]:
    def attempt(places: Places) -> None:
        enter = {name: text for name, text in places.enter().items() if not name.startswith("auth.")}
        read = places.spark.read.format("gazette").options(**enter, **secret)
        read.load(places.settings["prefix"] + MAIN).collect()

    return attempt


def pages_of(spark: SparkSession) -> dict[str, str]:
    """Return the pages of the session's UI and the responses of its REST API, by path."""
    context = getattr(spark, "sparkContext", None) if "connect" not in type(spark).__module__ else None
    if context is None or context.uiWebUrl is None:
        return {}
    root = f"{context.uiWebUrl}/"
    app = f"api/v1/applications/{context.applicationId}"
    paths = ["environment/", "SQL/", "StreamingQuery/", "jobs/", "stages/", "executors/"]
    paths += [f"SQL/execution/?id={number}" for number in range(6)]
    paths += [f"{app}/{what}" for what in ("environment", "sql?details=true", "stages", "jobs")]
    found = {}
    for path in paths:
        with urllib.request.urlopen(root + path, timeout=WAIT_S) as response:
            found[path] = response.read().decode()
    return found


def choices(places: Places) -> dict[str, Any]:
    from gazette_spark import LagListener

    listener = LagListener()
    places.spark.streams.addListener(listener)
    try:
        return options_of_the_sink(places, listener)
    finally:
        places.spark.streams.removeListener(listener)  # A client of Spark Connect would not exit otherwise.


def formatted(places: Places) -> dict[str, Any]:
    directory = places.settings["directory"]
    commits = Path(f"{directory}/of-formatted/commits")
    for _ in range(2):
        sizes = places.stream(MAIN, maxBytesPerTrigger="8k").selectExpr(
            "journal", "offset", "length(value) AS size"
        )
        writer = sizes.writeStream.format("gazette_delta").option("path", f"{directory}/formatted")
        ended(writer.option("appId", "formatted").option("checkpointLocation", str(commits.parent)))
        last = max(int(path.name) for path in commits.glob("[0-9]*"))
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)
    rows = places.spark.read.format("delta").load(f"{directory}/formatted").collect()
    return {"formatted": sorted(list(row) for row in rows)}


WINDOW = 100
"""Length of a window in seconds, where an offset counts as one second."""


def windowed(places: Places) -> dict[str, Any]:
    """Count by windows; Spark emits closed windows in a batch in which no offset changes."""
    from gazette_spark import DeltaSink

    directory = places.settings["directory"]
    rows = (
        places.stream(MAIN)
        .selectExpr("journal", "timestamp_seconds(offset) AS time")
        .withWatermark("time", "0 seconds")
    )
    kept = rows.selectExpr(f"window(time, '{WINDOW} seconds') AS span", "journal")
    counts = kept.groupBy("span", "journal").count()
    shown = counts.selectExpr("journal", "unix_seconds(span.start) AS start", "count")
    sink = DeltaSink("windows", path=f"{directory}/windows")
    query = sink.start(shown, checkpoint=f"{directory}/of-windows", availableNow=True)
    if not query.awaitTermination(WAIT_S):
        raise TimeoutError(f"the stream has not ended within {WAIT_S} s")
    found = places.spark.read.format("delta").load(f"{directory}/windows").collect()
    return {"windows": sorted(list(row) for row in found)}


def options_of_the_sink(places: Places, listener: LagListener) -> dict[str, Any]:
    from gazette_spark import DeadLetters, DeltaSink, JournalOffsets, Upsert

    directory, spark = places.settings["directory"], places.spark

    def table(name: str) -> list[list[Any]]:
        rows = spark.read.format("delta").load(f"{directory}/{name}").collect()
        return sorted([list(row) for row in rows], key=str)

    def run(sink: DeltaSink, rows: DataFrame, checkpoint: str) -> str:
        query = sink.start(rows, checkpoint=f"{directory}/of-{checkpoint}", availableNow=True)
        if not query.awaitTermination(WAIT_S):
            raise TimeoutError(f"the stream has not ended within {WAIT_S} s")
        return str(query.id)

    upsert = Upsert(("id",), leave_out=("_journal", "_offset"))
    merging = DeltaSink("merged", path=f"{directory}/merged", upsert=upsert, on_overlap="trim", audit=True)
    for checkpoint in ("merged-1", "merged-2"):  # All of the second one is trimmed.
        run(merging, places.stream(MAIN, TYPED, format="json"), checkpoint)

    letters = DeadLetters(path=f"{directory}/letters")
    parting = DeltaSink("parted", path=f"{directory}/parted", dead_letters=letters, target_file_bytes=1 << 20)
    schema = f"{TYPED}, _corrupt_record STRING, _record BINARY"
    query_id = run(parting, places.stream(BROKEN, schema, format="json"), "parted")

    name = places.settings["prefix"] + BROKEN
    spark.sql(f"CREATE TABLE delta.`{directory}/adopted` ({TYPED}) USING delta").collect()
    adopting = DeltaSink("adopted", path=f"{directory}/adopted")
    adopting.adopt(JournalOffsets({name: 0}))
    rows = adopting.resume(places.reader(spark.readStream, format="json", mode="DROPMALFORMED"))
    run(adopting, rows.schema(TYPED).load(name), "adopted")

    deadline = time.monotonic() + WAIT_S
    while (lag := listener.lag(query_id)) is None and time.monotonic() < deadline:
        time.sleep(0.1)  # Spark notifies listeners asynchronously, after the query has returned.
    return {
        "merged": table("merged"),
        "merged_entries": merging.ledger(spark).audit is not None,  # type: ignore[union-attr]  # It has written an entry.
        "parted": table("parted"),
        "letters": [
            [row.offset, bytes(row.raw).decode()]
            for row in spark.read.format("delta").load(letters.path).collect()
        ],
        "adopted": table("adopted"),
        "lag": lag.total_bytes if lag else None,
    }


def unknown_option(places: Places) -> None:
    places.batch(MAIN, startingOfsets="earliest").collect()


def bad_value(places: Places) -> None:
    to_nowhere(places, places.stream(MAIN, maxBytesPerTrigger="much"), "bad-value")


def missing_journal(places: Places) -> None:
    name = places.settings["prefix"] + MISSING
    places.batch(MAIN, startingOffsets=json.dumps({name: 7})).collect()


def malformed_record(places: Places) -> None:
    places.batch(BROKEN, TYPED, format="json", mode="FAILFAST").collect()


def malformed_record_in_a_stream(places: Places) -> None:
    to_nowhere(places, places.stream(BROKEN, TYPED, format="json", mode="FAILFAST"), "broken")


def table_of_another_query(places: Places) -> None:
    from gazette_spark import DeltaSink

    directory = places.settings["directory"]
    sink = DeltaSink(APP_ID, path=f"{directory}/table")
    query = sink.start(places.stream(MAIN), checkpoint=f"{directory}/again", availableNow=True)
    query.awaitTermination(WAIT_S)


def to_nowhere(places: Places, rows: DataFrame, checkpoint: str) -> None:
    writer = rows.writeStream.format("noop").trigger(availableNow=True)
    writer.start(checkpointLocation=f"{places.settings['directory']}/{checkpoint}").awaitTermination(WAIT_S)


FAILURES: dict[str, Callable[[Places], None]] = {
    attempt.__name__: attempt
    for attempt in (
        unknown_option,
        bad_value,
        missing_journal,
        malformed_record,
        malformed_record_in_a_stream,
        table_of_another_query,
    )
}


def error_of(attempt: Callable[[Places], None], places: Places) -> str:
    """Return the error of a call, as the last line of a traceback shows it."""
    try:
        attempt(places)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test is to see it.
        return f"{type(error).__module__}.{type(error).__qualname__}: {error}"
    return "no error"


def conflict(places: Places) -> dict[str, Any]:
    """Commit twice concurrently under one transaction id; return whether the loser's error is recognized."""
    from gazette_spark._delta.writers import CONFLICTS, load_conflict_classes

    directory = Path(places.settings["directory"])
    path = f"{directory}/contended"
    places.spark.range(1).write.format("delta").save(path)
    load_conflict_classes(places.spark)

    def wait_for_both(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Wait until both writes are running, and so have read the table."""
        for batch in batches:
            (directory / f"running-{batch['id'][0]}").touch()
            deadline = time.monotonic() + WAIT_S
            while len(list(directory.glob("running-*"))) < 2:
                if time.monotonic() > deadline:
                    raise TimeoutError("the other write does not run")
                time.sleep(0.05)
            yield batch

    def write(number: int) -> Exception | None:
        rows = places.spark.range(number, number + 1, 1, 1).mapInArrow(wait_for_both, "id bigint")
        ids = {"txnAppId": "contended", "txnVersion": "1"}
        try:
            rows.write.format("delta").mode("append").options(**ids).save(path)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test is to see it.
            return error
        return None

    with ThreadPoolExecutor(2) as threads:
        errors = [error for error in threads.map(write, (1, 2)) if error]
    return {"conflict": len(errors) == 1 and isinstance(errors[0], CONFLICTS)}


ALSO: dict[str, Callable[[Places], dict[str, Any]]] = {
    "written": written,
    "committed": committed,
    "copied": copied,
    "idling": idling,
    "awoken": awoken,
    "shown": shown,
    "typed": typed,
    "conflict": conflict,
    "choices": choices,
    "formatted": formatted,
    "windowed": windowed,
}
"""Optional steps of a run besides reading, streaming and failing."""


def imported(spark: SparkSession) -> list[dict[str, Any]]:
    """Return, for each task of a small job, its host and the location of the imported package."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import json
        import os
        import sys

        import pyarrow as pa
        import pyspark

        import gazette_spark
        import pyspark_gazette
        from gazette_spark.source import GazetteDataSource

        for _ in batches:
            pass
        seen = {
            "cwd": os.getcwd(),  # noqa: PTH109
            "files": [gazette_spark.__file__, pyspark_gazette.__file__],
            "same": pyspark_gazette.DefaultSource is GazetteDataSource,
            "path": sys.path,
            "pyspark": pyspark.__file__,
        }
        yield pa.RecordBatch.from_pydict({"seen": [json.dumps(seen)]})

    tasks = spark.range(0, 4, 1, 4).mapInArrow(look, "seen string").collect()
    return [json.loads(row.seen) for row in tasks]


def main(settings: dict[str, Any]) -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    spark = (builder.remote(settings["remote"]) if settings["remote"] else builder).getOrCreate()
    seen = observe(spark, settings) | {"imported": imported(spark)}
    import gazette_spark

    modules = {"cwd": str(Path.cwd()), "files": [gazette_spark.__file__], "path": sys.path}
    seen |= {"driver": modules, "session": type(spark).__module__}
    Path(settings["result"]).write_text(json.dumps(seen))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
