"""Carries out a schedule with a real query and a real table, and asks an oracle after every step.

The journals are files (:mod:`tests.rig.file_source`) or a broker's. The query runs in this process's Spark
or, to be killed, in a child's. After each step the table must be exact up to its recorded offsets, and the
query must have ended in a way that the step explains: a query checkpoint that continues the table is never
refused; any other may be, and is then replaced by a new one that resumes from the table. At the end
everything is read, and every record must be there once.

A query with state is bound to its checkpoint. A new checkpoint and a copy must therefore be refused, with the
alternatives named, and the query continues with the checkpoint of the table's newest entry. A RESTORE is
undone.

Runs into an Iceberg table alternate between the direct lane and the format. Its snapshots also expire.

A query of committed messages also loses its state files. If both these and its checkpoint are lost, it must
not resume: it reads everything again and trims what the table has. In between, backfills fill its table from
brokers or from their store, and crash; then a new query continues where they left the table.
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from gazette_spark import DeltaSink, IcebergSink, LedgerEntry, ingest
from gazette_spark._delta.files import clear_unfinished
from gazette_spark._ledger.decision import BOUND_ADVICE
from gazette_spark._ledger.query_checkpoint import parse_query_id
from gazette_spark.errors import GazetteError, JournalRecreatedError, SinkError
from gazette_spark.failpoints import FailpointError, calling
from gazette_spark.testing.oracle import OracleVerdict
from tests.rig.crashes.backfills import died, fill, is_of_task
from tests.rig.crashes.children import END_WITHIN_S, CrashChildren, command_to_die
from tests.rig.crashes.journals import FileJournalSet, MessageJournals
from tests.rig.crashes.oracles import check
from tests.rig.crashes.outcomes import CRASHED, ENDED, RECREATED, UnexpectedEndError, outcome
from tests.rig.crashes.points import BY_NAME
from tests.rig.crashes.schedules import Step
from tests.rig.crashes.sinks import SINKS, iceberg_sink, location
from tests.rig.crashes.tables import DeltaCrashTable, IcebergCrashTable, crash_table
from tests.rig.crashing_formats import CRASHING_FORMATS
from tests.rig.crashing_source import CrashingGazette
from tests.rig.file_source import FileJournals

APP_ID = "crashes"

DEADLINE_S = 300
"""Maximum seconds for a run of a query; a few seconds are usual."""

LONGEST_DELAY_S = 4.0
"""Maximum seconds before a kill at a random moment."""

WriteBatch = Callable[[DataFrame, int], None]


@dataclass(eq=False)
class TableInexactError(GazetteError):
    """The oracle found lost, duplicate or altered rows, or a ledger that does not match the rows."""

    verdict: OracleVerdict

    def __str__(self) -> str:
        shown = self.verdict
        return (
            f"lost {shown.lost}, duplicated {shown.duplicated}, altered {shown.altered}; "
            f"{'; '.join(shown.violations[:5])}"
        )


@dataclass(slots=True)
class Counts:
    cycles: int = 0
    """Number of query runs that an exception ended, each followed by another run."""
    retries: int = 0
    """Number of sink calls ended by an exception, each followed by a new sink with the same batch."""
    sigkills: int = 0
    zombies: int = 0
    """Number of second writers that overtook a first one."""
    points: Counter[str] = field(default_factory=Counter)
    """Number of crashes and kills, by point."""
    endings: Counter[str] = field(default_factory=Counter)
    """Number of queries in this process, by outcome."""
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Duration of the steps in seconds, including the oracle, by kind."""

    @property
    def crashes(self) -> int:
        """All crashes, without overtaken writers."""
        return self.cycles + self.retries + self.sigkills


def our_sink(scenario: Scenario, checkpoint: Path) -> DeltaSink | IcebergSink:
    """Return the sink under test, as a new process would create it."""
    if SINKS[scenario.sink].iceberg:
        return iceberg_sink(APP_ID, scenario.table)
    on_overlap = "trim" if checkpoint in scenario.trims else "fail"
    kind = SINKS[scenario.sink]
    sink = kind.sink(APP_ID, str(scenario.table), str(checkpoint), on_overlap=on_overlap)
    return kind.with_lane(sink, str(scenario.table), direct=scenario.direct)


class Scenario:
    """Journals, a table, and the current query checkpoint, which may not continue it. Used by one thread."""

    def __init__(
        self,
        spark: SparkSession,
        root: Path,
        *,
        sink: str = "raw",
        make_sink: Callable[[Scenario, Path], DeltaSink | IcebergSink] = our_sink,
        children: CrashChildren | None = None,
        broker: str = "",
        store: Path | None = None,
        seed: int = 0,
    ) -> None:
        """Create two empty journals.

        Args:
            spark: Runs the queries of this process.
            root: Directory for journals, table and query checkpoints; made if need be.
            sink: Kind of the query and its sink; see :data:`tests.rig.crashes.sinks.SINKS`.
            make_sink: Makes the writer of one run.
            children: Where child processes come from; without them a schedule with kills fails.
            broker: Endpoint of a broker, for a kind of query that reads messages.
            store: Directory where that broker stores fragments.
            seed: Seed of the messages.
        """
        spark.dataSource.register(FileJournals)
        spark.dataSource.register(CrashingGazette)
        for crashing in CRASHING_FORMATS:
            spark.dataSource.register(crashing)
        self.spark = spark
        self.table = root / "table"
        self.sink = sink
        self.counts = Counts()
        self.at = "the beginning"
        """Current step, for reports."""
        self.trims: set[Path] = set()
        """Checkpoints whose queries repeat records that the table already contains."""
        self._root = root
        self._kind = SINKS[sink]
        self._journals = (
            MessageJournals(root, broker, seed=seed, store=store)
            if self._kind.committed
            else FileJournalSet(root)
        )
        self._contents = crash_table(sink, spark, self.table)
        self._make_sink = make_sink
        self._children = children
        self._crash_file = root / "crash"
        self.direct = False
        """Whether tasks write the files of this run: in every other run, if the kind of query allows it,
        and in no run that trims."""
        self._checkpoints: list[Path] = []
        self._streams: dict[tuple[int, bool], DataFrame] = {}
        self._fits = True
        """Whether the newest checkpoint must continue the table."""
        self._error = ""
        """Text of the error that ended the last run, if any."""
        self._new_checkpoint()

    def run(self, steps: tuple[Step, ...]) -> OracleVerdict:
        """Carry out a schedule.

        Returns:
            The oracle's final verdict.

        Raises:
            TableInexactError: the table is not exact after a step.
            UnexpectedEndError: a query ended in a way that no step accounts for.
        """
        for number, step in enumerate(steps):
            self.at = f"step {number}, {step}"
            self.carry_out(step)
        self.at = "the end"
        return self.finish()

    def carry_out(self, step: Step) -> None:
        began = time.monotonic()
        self._journals.append(step.records)
        getattr(self, f"_{step.kind.replace(' ', '_')}")(step)
        if self._contents.exists():
            self.check()
            if self._kind.bound:
                self._keep_newest()
        self.counts.seconds[step.kind] += time.monotonic() - began

    def finish(self) -> OracleVerdict:
        if not self._fits:
            self._new_checkpoint()
        ended = self._run_main()
        if ended != ENDED:
            raise UnexpectedEndError(f"the last run ended with {ended}")
        return self.check(complete=True)

    def check(self, *, complete: bool = False) -> OracleVerdict:
        """Check the table with the oracle.

        Raises:
            TableInexactError: something is wrong.
        """
        truth = self._journals.truth()
        checkpoints = self._checkpoints
        verdict = check(
            self.sink, self.table, truth, app_id=APP_ID, complete=complete, checkpoints=checkpoints
        )
        if not verdict.exact:
            raise TableInexactError(verdict)
        return verdict

    # The steps.

    def _run(self, step: Step) -> None:
        self._accept(self._run_main())

    def _crash(self, step: Step) -> None:
        point = BY_NAME[step.point]
        assert point.raises is not None
        with self._armed(point.raises, step.nth):
            ended = self._run_main()
        if ended == CRASHED:
            self.counts.cycles += 1
            self.counts.points[point.name] += 1
        self._accept(ended, CRASHED)

    def _sink_crashes(self, step: Step) -> None:
        """Kill the sink on each batch and recreate it, as a restarted query does; Spark continues."""

        def write(df: DataFrame, batch_id: int) -> None:
            for name in step.point.split("|"):
                self._die(df, batch_id, name)
            self._make_sink(self, self._checkpoints[-1])(df, batch_id)

        self._accept(self._run_query(self._checkpoints[-1], self._journals.batch_bytes, write))

    def _die(self, df: DataFrame, batch_id: int, name: str) -> None:
        """Crash a new sink at a point; a batch that the table already has does not reach all of them."""
        failpoint = BY_NAME[name].raises
        assert failpoint is not None
        with self._armed(failpoint, 1), suppress(FailpointError):
            self._make_sink(self, self._checkpoints[-1])(df, batch_id)
            return
        self.counts.retries += 1
        self.counts.points[f"{name}, sink alone"] += 1

    def _kill(self, step: Step) -> None:
        command = command_to_die(BY_NAME[step.point], step.nth)
        status = self._crash_children().run(**self._command(), **command)
        if status != 0:
            self.counts.sigkills += 1
            self.counts.points[step.point] += 1

    def _random_kill(self, step: Step) -> None:
        version = self._contents.version()
        with self._crash_children().start(until="killed", **self._command()) as child:
            if step.fraction < 0.6:
                child.wait_until(lambda: self._contents.version() > version, END_WITHIN_S)
            self._journals.append(step.records)
            child.kill_after(step.fraction * LONGEST_DELAY_S)
            if "Traceback" in child.log_end():
                raise UnexpectedEndError(child.log_end())
        self.counts.sigkills += 1
        self.counts.points["random moment"] += 1

    def _backfill(self, step: Step) -> None:
        """Crash a backfill, perhaps complete another one, and start a new query where the table ends."""
        point = BY_NAME[step.point]
        assert point.raises is not None
        is_killed = is_of_task(point) and step.fraction < 0.5
        with self._armed(point.raises, step.nth, ":kill" if is_killed else ""):
            died = self._fill(step)
        if died:
            self.counts.cycles += 1
            what = "backfill, worker killed" if is_killed else "backfill"
            self.counts.points[f"{step.point}, {what}"] += 1
            if round(step.fraction * 100) % 3 and self._fill(step):
                raise UnexpectedEndError("a backfill died that was not told to")
        self._new_checkpoint()

    def _fill(self, step: Step, *, stored: bool = True) -> bool:
        """Run a backfill, from the store if the step says so; return whether it crashed."""
        sink = self._kind.sink(APP_ID, str(self.table))
        self.direct = not self.direct
        options, schema = self._batch_options(step, stored=stored), self._journals.schema
        try:
            fill(self.spark, sink, options, schema, self._crash_file, direct=self.direct)
        except Exception as error:
            if not died(error):
                raise
            return True
        return False

    def _kill_backfill(self, step: Step) -> None:
        command = command_to_die(BY_NAME[step.point], step.nth)
        status = self._crash_children().run(
            table=str(self.table),
            backfill=self._batch_options(step),
            schema=self._journals.schema,
            sink=self.sink,
            **command,
        )
        if status != 0:
            self.counts.sigkills += 1
            self.counts.points[f"{step.point}, backfill"] += 1
        self._new_checkpoint()

    def _batch_options(self, step: Step, *, stored: bool = True) -> dict[str, str]:
        assert isinstance(self._journals, MessageJournals)
        return self._journals.batch_options(stored=stored and round(step.fraction * 100) % 2 == 0)

    def _lose_checkpoint(self, step: Step) -> None:
        if self._kind.bound:
            self._mislay_checkpoint()
            return
        shutil.rmtree(self._checkpoints[-1], ignore_errors=True)
        self._new_checkpoint()
        if self._kind.committed and step.fraction < 0.5:
            self._lose_states(step)
            self._check_states_are_missed()
        self._accept(self._run_main())

    def _mislay_checkpoint(self) -> None:
        """Start a query that is bound to its checkpoint with a new one, then restore the old one."""
        started = self._newest() is not None
        new = self._root / f"new-{uuid.uuid4().hex[:8]}"
        self._checkpoints.insert(0, new)
        ended = self._run_query(new, self._journals.batch_bytes)
        if started:
            self._must_be_refused(ended)
            self._accept(self._run_main())

    def _lose_states(self, step: Step) -> None:
        assert isinstance(self._journals, MessageJournals)
        self._journals.lose_states(min(1, 2 * step.fraction))

    def _check_states_are_missed(self) -> None:
        if self._journals.can_resume(self._newest()):
            return
        sink = DeltaSink(APP_ID, path=location(self.table))
        reader = sink.resume(self._reader(self._journals.batch_bytes), self.spark)
        query = sink.start(reader.load(), checkpoint=str(self._root / "refused"), availableNow=True)
        try:
            query.awaitTermination(DEADLINE_S)
        except StreamingQueryException as error:
            if "stateLocation does not have the states" in str(error):
                return
            raise
        raise UnexpectedEndError("a query without states went on where the table ends")

    def _recreate(self, step: Step) -> None:
        """Delete and recreate the journals, first with other records, then with their own.

        No query may accept the other records: neither one that continues from a checkpoint, nor a new one,
        nor a backfill. Over the stored fragments, which have the same bytes, every query continues.
        """
        assert isinstance(self._journals, MessageJournals)
        newest = self._newest()
        is_read = newest is not None and any(newest.read_through.values())
        with self._journals.replaced():
            if is_read and self._run_replaced(step) != RECREATED:
                raise UnexpectedEndError(f"other records were taken for the table's: {self._error}")
        self.counts.points["a journal was created again"] += is_read
        self._accept(self._run_main())

    def _run_replaced(self, step: Step) -> str:
        if step.fraction < 0.3:
            try:
                self._fill(step, stored=False)
            except JournalRecreatedError:
                return RECREATED
            return ENDED
        copy = self._copy(own_id=True) if step.fraction > 0.6 and self._fits else None
        if copy is None:
            copy = self._root / f"new-{uuid.uuid4().hex[:8]}"
            self._checkpoints.insert(0, copy)
        return self._run_query(copy, self._journals.batch_bytes)

    def _stale_checkpoint(self, step: Step) -> None:
        own_id = not self._kind.bound or step.fraction < 0.5  # A backup has the query's id.
        continues, copy = self._fits, self._copy(own_id=own_id)
        self._accept(self._run_main())
        if copy is None:
            return
        version = self._contents.version()
        self._journals.append(step.records)
        if self._kind.committed and step.fraction < 0.5:
            self.trims.add(copy)
        ended = self._run_query(copy, self._journals.batch_bytes * 3)
        if continues and copy in self.trims and ended != ENDED:
            raise UnexpectedEndError(f"a stale checkpoint that may trim ended with {ended} {self._error}")
        self._accept(ended, may_refuse=True)
        wrote = self._contents.version() > version
        if not self._kind.bound:
            self._fits = self._fits and not wrote
        elif own_id and not self._wrote_newest(copy):
            self._must_be_refused(ended)
        elif wrote:  # The copy was not behind: no batch came after it.
            self._checkpoints.append(copy)

    def _zombie(self, step: Step) -> None:
        """Run a copy of the checkpoint to the end during a batch, so that the first writer loses."""
        overtook: list[tuple[Path | None, str]] = []

        def overtake() -> None:
            copy = self._copy(own_id=True)
            ended = self._run_query(copy, self._journals.batch_bytes * 3) if copy else ENDED
            overtook.append((copy, ended))

        if self._kind.is_format:
            self.direct = False  # The next run takes the direct lane, which commits in this process.
        with calling(step.point, overtake, step.nth):
            ended = self._run_main()
        if not overtook:
            self._accept(ended)
            return
        self.counts.zombies += 1
        self.counts.points[f"overtaken at {step.point}"] += 1
        ((copy, successor),) = overtook
        self._accept(ended, may_refuse=True)
        self._accept(successor, may_refuse=True)
        self._fits = False
        if copy is not None and step.fraction < 0.5:  # The winner continues.
            self._checkpoints.append(copy)
            self._fits = successor == ENDED and ended != ENDED

    def _restore(self, step: Step) -> None:
        if self._contents.exists():
            version, before = self._contents.version() - 1, self._newest()
            self._contents.restore(APP_ID, step.fraction)
            if not self._kind.bound:
                self._fits = False
            elif self._newest() != before:
                self._undo_restore(version)

    def _undo_restore(self, version: int) -> None:
        """Check that a query bound to its checkpoint is refused, then bring the table back to a version.

        If the query had not completed the undone batches, it runs them again, and nothing is lost.
        """
        newest, done = self._newest(), _completed(self._checkpoints[-1])
        ended = self._run_main()
        if ended == ENDED and done <= (newest.batch_id if newest else -1):
            return
        if ended == ENDED:
            raise UnexpectedEndError(
                f"a query with state has completed batch {done}, and goes on after {newest}"
            )
        assert isinstance(self._contents, DeltaCrashTable)
        self._contents.restore_version(version)

    def _optimize(self, step: Step) -> None:
        if self._contents.exists():
            self._contents.optimize()

    def _expire(self, step: Step) -> None:
        assert isinstance(self._contents, IcebergCrashTable)
        if self._contents.exists():
            self._contents.expire(step.fraction)

    def _roll(self, step: Step) -> None:
        assert isinstance(self._contents, DeltaCrashTable)
        if self._contents.exists():
            self._contents.roll()

    def _property(self, step: Step) -> None:
        if self._contents.exists():
            self._contents.set_property(str(step.fraction))

    def _other_writer(self, step: Step) -> None:
        if self._contents.exists():
            self._contents.write_as_another()

    def _new_journal(self, step: Step) -> None:
        self._journals.create(f"j{len(self._journals.names())}")

    # Runs of the query.

    def _run_main(self) -> str:
        return self._run_query(self._checkpoints[-1], self._journals.batch_bytes)

    def _run_query(self, checkpoint: Path, batch_bytes: int, write: WriteBatch | None = None) -> str:
        resumes = not self._has_batches(checkpoint) and self._resumes(checkpoint)
        self.direct = not self.direct and checkpoint not in self.trims
        self._error = ""
        try:
            query = self._start(checkpoint, batch_bytes, write, resumes=resumes)
            if not query.awaitTermination(DEADLINE_S):
                query.stop()
                raise UnexpectedEndError(f"the query did not end within {DEADLINE_S} s")
            ended = ENDED
        except StreamingQueryException as error:
            self._error = str(error)
            ended = outcome(self._error)
        except SinkError as error:
            self._error = f"{type(error).__name__}: {error}"
            ended = outcome(self._error)
        self.counts.endings[ended] += 1
        return ended

    def _start(
        self, checkpoint: Path, batch_bytes: int, write: WriteBatch | None, *, resumes: bool
    ) -> StreamingQuery:
        if self._kind.iceberg and self.direct:
            sink = self._make_sink(self, checkpoint)
            assert isinstance(sink, IcebergSink)
            reader = self._reader(batch_bytes)
            reader = sink.resume(reader) if resumes else reader
            return ingest(reader, sink, checkpoint=str(checkpoint), spark=self.spark, availableNow=True)
        rows = self._stream(checkpoint, batch_bytes, resumes=resumes)
        if self._kind.is_format:
            clear_unfinished(self.spark, str(checkpoint))
            return self._kind.start_format(
                rows, APP_ID, str(self.table), str(checkpoint), str(self._crash_file), availableNow=True
            )
        if write is None:
            sink = self._make_sink(self, checkpoint)
            assert isinstance(sink, DeltaSink)
            mode, root = self._kind.output_mode, str(checkpoint)
            return sink.start(rows, checkpoint=root, output_mode=mode, lane="spark", availableNow=True)
        clear_unfinished(self.spark, str(checkpoint))  # As the sink does.
        writer = rows.writeStream.foreachBatch(write).outputMode(self._kind.output_mode)
        writer = writer.trigger(availableNow=True)
        return writer.option("checkpointLocation", str(checkpoint)).start()

    def _stream(self, checkpoint: Path, batch_bytes: int, *, resumes: bool) -> DataFrame:
        """Return the rows as a stream; with a checkpoint, the reader's options do not matter."""
        reader = self._reader(batch_bytes)
        if self._kind.iceberg:
            return (iceberg_sink(APP_ID, self.table).resume(reader) if resumes else reader).load()
        sink = self._kind.sink(APP_ID, str(self.table))
        if not self._has_batches(checkpoint):
            if resumes:
                reader = sink.resume(reader, self.spark)
            return self._kind.load(reader, sink, direct=self.direct)
        key = batch_bytes, self.direct and self._kind.direct
        if key not in self._streams:
            self._streams[key] = self._kind.load(reader, sink, direct=self.direct)
        return self._streams[key]

    def _reader(self, batch_bytes: int) -> Any:
        journals, crash_file = self._journals, str(self._crash_file)
        options = {**journals.options(), "maxBytesPerTrigger": batch_bytes, "crashFile": crash_file}
        reader = self.spark.readStream.format(journals.format).options(**options)
        return reader.schema(journals.schema) if journals.schema else reader

    def _resumes(self, checkpoint: Path) -> bool:
        """Return whether a new query continues where the table ends; otherwise it reads everything again."""
        can = self._journals.can_resume(self._newest())
        if not can:
            self.trims.add(checkpoint)
        return can

    def _command(self) -> dict[str, Any]:
        if not self._fits:
            self._new_checkpoint()
        checkpoint = self._checkpoints[-1]
        resume = self._has_batches(checkpoint) or self._resumes(checkpoint)
        lane = {}
        if self._kind.iceberg:
            self.direct = not self.direct
            lane = {"direct": self.direct}
        return lane | {
            "table": str(self.table),
            "checkpoint": str(checkpoint),
            "format": self._journals.format,
            "schema": self._journals.schema,
            "options": self._journals.options(),
            "sink": self.sink,
            "resume": resume,
            "on_overlap": "trim" if checkpoint in self.trims else "fail",
        }

    def _crash_children(self) -> CrashChildren:
        if self._children is None:
            raise ValueError("a schedule with kills needs child processes")
        return self._children

    def _armed(self, failpoint: str, nth: int, action: str = "") -> AbstractContextManager[None]:
        """Raise an exception at a failpoint, in this process or in the source's processes.

        Args:
            failpoint: Its name.
            nth: Which time.
            action: Of the source's processes, in place of an exception: a colon and its name.
        """
        ordered = self._source_crash(f"{failpoint}:{nth}{action}")
        if failpoint.startswith(("source.", "scan.")) or (self._kind.is_format and not self._kind.direct):
            return ordered

        def crash() -> None:
            raise FailpointError(failpoint)

        here = calling(failpoint, crash, nth)
        # If lanes alternate, the run reaches the point in this process or in one of the format's.
        return both(here, ordered) if self._kind.is_format else here

    @contextmanager
    def _source_crash(self, text: str) -> Iterator[None]:
        self._crash_file.write_text(text)
        try:
            yield
        finally:
            self._crash_file.unlink()

    def _accept(self, ended: str, *expected: str, may_refuse: bool = False) -> None:
        """Check how a run ended; abandon a checkpoint that was rightly refused."""
        if ended in (ENDED, *expected):
            return
        if ended == RECREATED:
            raise UnexpectedEndError(f"a journal with the table's bytes was refused: {self._error}")
        if self._fits and not may_refuse:
            raise UnexpectedEndError(f"a checkpoint that continues the table ended with {ended}")
        if not may_refuse:
            self._new_checkpoint()

    def _must_be_refused(self, ended: str) -> None:
        if ended not in ("OverlapError", "GapError") or BOUND_ADVICE not in self._error:
            raise UnexpectedEndError(f"a query with state and a strange checkpoint: {ended} {self._error}")

    def _keep_newest(self) -> None:
        self._fits = True
        if self._newest() is not None and not self._wrote_newest(self._checkpoints[-1]):
            self._checkpoints.append([each for each in self._checkpoints if self._wrote_newest(each)][-1])

    def _wrote_newest(self, checkpoint: Path) -> bool:
        newest, about = self._newest(), checkpoint / "metadata"
        if newest is None or not about.exists():
            return False
        return parse_query_id(about.read_text(), str(about)) == newest.query_id

    def _newest(self) -> LedgerEntry | None:
        entries = self._contents.entries(APP_ID)
        return entries[-1] if entries else None

    # Files.

    def _new_checkpoint(self) -> None:
        """Switch to a checkpoint that does not exist yet, so that its query resumes from the table."""
        self._checkpoints.append(self._root / f"checkpoint-{len(self._checkpoints)}")
        self._fits = True

    def _copy(self, *, own_id: bool) -> Path | None:
        """Copy the newest checkpoint, or return None if there is none."""
        original = self._checkpoints[-1]
        if not self._has_batches(original):
            return None
        copy = shutil.copytree(original, self._root / f"copy-{uuid.uuid4().hex[:8]}")
        if own_id:  # Spark stops the older of two queries with the same id.
            (copy / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
            (copy / ".metadata.crc").unlink(missing_ok=True)
        self._checkpoints.insert(-1, copy)
        if original in self.trims:
            self.trims.add(copy)
        return copy

    def _has_batches(self, checkpoint: Path) -> bool:
        return (checkpoint / "offsets" / "0").exists()


@contextmanager
def both(first: AbstractContextManager[None], second: AbstractContextManager[None]) -> Iterator[None]:
    with first, second:
        yield


def _completed(checkpoint: Path) -> int:
    """Return the last batch that a query has completed, -1 if none."""
    return max((int(file.name) for file in checkpoint.glob("commits/*") if file.name.isdigit()), default=-1)
