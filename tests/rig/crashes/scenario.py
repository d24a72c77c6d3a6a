"""Carries out a schedule: a real query, a real table, an oracle after every step.

The journals are files (:mod:`tests.rig.file_source`), the query runs in this process's Spark or,
to be killed, in a child's. After a step the table has to be exact up to what it records, and the query must
have ended in a way that the step accounts for: a query checkpoint that continues the table is never refused,
one that does not may be, and is then replaced by a new one that resumes from the table. In the end everything
is read, and every record must be there once.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from gazette_spark.errors import GazetteError
from gazette_spark.failpoints import FailpointError, calling
from gazette_spark.sink import DeltaSink
from gazette_spark.testing.oracle import Verdict, check_table
from tests.rig.crashes.children import END_WITHIN_S, CrashChildren, command_to_die
from tests.rig.crashes.outcomes import CRASHED, ENDED, UnexpectedEndError, outcome
from tests.rig.crashes.points import BY_NAME
from tests.rig.crashes.schedules import Step
from tests.rig.file_source import FileJournals

APP_ID = "crashes"

SMALL_BATCH_BYTES = 40
"""A few records of each journal: some batches a step."""

DEADLINE_S = 300
"""Longest run of a query; seconds on a machine that is not busy."""

LONGEST_DELAY_S = 4.0
"""A kill at a random moment comes that late at most."""

WriteBatch = Callable[[DataFrame, int], None]


@dataclass(eq=False)
class TableInexactError(GazetteError):
    """The oracle found rows lost, doubled or altered, or a ledger that does not match the rows."""

    verdict: Verdict

    def __str__(self) -> str:
        shown = self.verdict
        return (
            f"lost {shown.lost}, duplicated {shown.duplicated}, altered {shown.altered}; "
            f"{'; '.join(shown.violations[:5])}"
        )


@dataclass(slots=True)
class Counts:
    """What a scenario has come through."""

    cycles: int = 0
    """Runs of the query that an exception ended, each followed by another run."""
    retries: int = 0
    """Calls of the sink that an exception ended, each followed by one of a new sink with the same batch."""
    sigkills: int = 0
    zombies: int = 0
    """Second writers that overtook a first one."""
    points: Counter[str] = field(default_factory=Counter)
    """Crashes and kills, by point."""
    endings: Counter[str] = field(default_factory=Counter)
    """Queries in this process, by the way they ended."""


def our_sink(scenario: Scenario, checkpoint: Path) -> WriteBatch:
    """Return the writer under test, as a fresh process would make it."""
    return DeltaSink(APP_ID, path=str(scenario.table), checkpoint=str(checkpoint))


class Scenario:
    """Journals, a table, and the query checkpoint that continues it, or may not. Used by one thread."""

    def __init__(
        self,
        spark: SparkSession,
        root: Path,
        *,
        make_sink: Callable[[Scenario, Path], WriteBatch] = our_sink,
        children: CrashChildren | None = None,
    ) -> None:
        """Make two empty journals.

        Args:
            spark: Runs the queries of this process.
            root: Directory for journals, table and query checkpoints; made if need be.
            make_sink: Makes the writer of one run.
            children: Where child processes come from; without them a schedule with kills fails.
        """
        spark.dataSource.register(FileJournals)
        self.spark = spark
        self.table = root / "table"
        self.counts = Counts()
        self.at = "the beginning"
        """Current step, for reports."""
        self._root = root
        self._journals = root / "journals"
        self._journals.mkdir(parents=True)
        self._make_sink = make_sink
        self._children = children
        self._crash_file = root / "crash"
        self._checkpoints: list[Path] = []
        self._streams: dict[int, DataFrame] = {}
        self._written = 0
        self._fits = True
        """Whether the newest checkpoint must continue the table."""
        self._new_checkpoint()
        for name in ("a", "b"):
            (self._journals / name).touch()

    def run(self, steps: tuple[Step, ...]) -> Verdict:
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
        """Carry out one step and check the table."""
        self._append(step.records)
        getattr(self, f"_{step.kind.replace(' ', '_')}")(step)
        if self.table.exists():
            self.check()

    def finish(self) -> Verdict:
        """Read everything and check that it is there."""
        if not self._fits:
            self._new_checkpoint()
        ended = self._run_main()
        if ended != ENDED:
            raise UnexpectedEndError(f"the last run ended with {ended}")
        return self.check(complete=True)

    def check(self, *, complete: bool = False) -> Verdict:
        """Ask the oracle.

        Raises:
            TableInexactError: something is wrong.
        """
        truth = {file.name: file.read_bytes() for file in self._journals.iterdir()}
        verdict = check_table(
            self.table, truth, app_id=APP_ID, complete=complete, checkpoints=self._checkpoints
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
        """Kill the sink on each batch and make it again, as by a restarted query; Spark goes on."""

        def write(df: DataFrame, batch_id: int) -> None:
            for name in step.point.split("|"):
                self._die(df, batch_id, name)
            self._make_sink(self, self._checkpoints[-1])(df, batch_id)

        self._accept(self._run_query(self._checkpoints[-1], SMALL_BATCH_BYTES, write))

    def _die(self, df: DataFrame, batch_id: int, name: str) -> None:
        """Have a new sink die at a point; a batch that the table has does not come by all of them."""
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
        versions = self._versions()
        with self._crash_children().start(until="killed", **self._command()) as child:
            if step.fraction < 0.6:
                child.wait_until(lambda: self._versions() > versions, END_WITHIN_S)
            self._append(step.records)
            child.kill_after(step.fraction * LONGEST_DELAY_S)
            if "Traceback" in child.log_end():
                raise UnexpectedEndError(child.log_end())
        self.counts.sigkills += 1
        self.counts.points["random moment"] += 1

    def _lose_checkpoint(self, step: Step) -> None:
        shutil.rmtree(self._checkpoints[-1], ignore_errors=True)
        self._new_checkpoint()
        self._accept(self._run_main())

    def _stale_checkpoint(self, step: Step) -> None:
        """Have a copy of the checkpoint stay behind, then run it with larger batches."""
        copy = self._copy(own_id=True)
        self._accept(self._run_main())
        if copy is None:
            return
        versions = self._versions()
        self._append(step.records)
        self._accept(self._run_query(copy, SMALL_BATCH_BYTES * 3), may_refuse=True)
        self._fits = self._fits and self._versions() == versions

    def _zombie(self, step: Step) -> None:
        """Have a copy of the checkpoint run to the end in the middle of a batch: the first writer loses."""
        overtook: list[tuple[Path | None, str]] = []

        def overtake() -> None:
            copy = self._copy(own_id=True)
            ended = self._run_query(copy, SMALL_BATCH_BYTES * 3) if copy else ENDED
            overtook.append((copy, ended))

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
        if copy is not None and step.fraction < 0.5:  # The winner goes on instead.
            self._checkpoints.append(copy)
            self._fits = successor == ENDED and ended != ENDED

    def _restore(self, step: Step) -> None:
        if versions := self._versions():
            self._sql(f"RESTORE TABLE {{t}} TO VERSION AS OF {int(step.fraction * versions)}")
            self._fits = False

    def _optimize(self, step: Step) -> None:
        self._sql("OPTIMIZE {t}")

    def _roll(self, step: Step) -> None:
        """Have Delta write a checkpoint of its log every other commit."""
        self._sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.checkpointInterval' = '2')")

    def _property(self, step: Step) -> None:
        self._sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('note' = '{step.fraction}')")

    def _other_writer(self, step: Step) -> None:
        """Commit as another app id of the sink would."""
        if self._versions():
            nothing = self.spark.read.format("delta").load(str(self.table)).limit(0)
            options: dict[str, Any] = {"txnAppId": "gazette_spark/other", "txnVersion": self._written}
            metadata = json.dumps({"app_id": "other", "format_version": 1})
            writer = nothing.write.format("delta").mode("append").options(**options)
            writer.option("userMetadata", metadata).save(str(self.table))

    def _new_journal(self, step: Step) -> None:
        (self._journals / f"j{len(list(self._journals.iterdir()))}").touch()

    # Runs of the query.

    def _run_main(self) -> str:
        return self._run_query(self._checkpoints[-1], SMALL_BATCH_BYTES)

    def _run_query(self, checkpoint: Path, batch_bytes: int, write: WriteBatch | None = None) -> str:
        """Run a query up to the journals' present ends; return how it ended."""
        writer = self._stream(checkpoint, batch_bytes).writeStream
        writer = writer.foreachBatch(write or self._make_sink(self, checkpoint)).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            if not query.awaitTermination(DEADLINE_S):
                query.stop()
                raise UnexpectedEndError(f"the query did not end within {DEADLINE_S} s")
            ended = ENDED
        except StreamingQueryException as error:
            ended = outcome(str(error))
        self.counts.endings[ended] += 1
        return ended

    def _stream(self, checkpoint: Path, batch_bytes: int) -> DataFrame:
        """Return the journals as a stream; where there is a checkpoint its options do not matter."""
        if not (checkpoint / "offsets" / "0").exists():
            sink = DeltaSink(APP_ID, path=str(self.table))
            return sink.resume(self._reader(batch_bytes), self.spark).load()
        if batch_bytes not in self._streams:
            self._streams[batch_bytes] = self._reader(batch_bytes).load()
        return self._streams[batch_bytes]

    def _reader(self, batch_bytes: int) -> Any:
        options = {**self._options(), "maxBytesPerTrigger": batch_bytes, "crashFile": str(self._crash_file)}
        return self.spark.readStream.format("file_journals").options(**options)

    def _options(self) -> dict[str, Any]:
        return {"root": str(self._journals), "maxBytesPerTrigger": str(SMALL_BATCH_BYTES)}

    def _command(self) -> dict[str, Any]:
        """Return what a child has to know; it gets a checkpoint that continues the table."""
        if not self._fits:
            self._new_checkpoint()
        return {
            "table": str(self.table),
            "checkpoint": str(self._checkpoints[-1]),
            "options": self._options(),
        }

    def _crash_children(self) -> CrashChildren:
        if self._children is None:
            raise ValueError("a schedule with kills needs child processes")
        return self._children

    def _armed(self, failpoint: str, nth: int) -> AbstractContextManager[None]:
        """Have an exception raised at a failpoint, in this process or in the source's."""
        if failpoint.startswith("source."):
            return self._source_crash(f"{failpoint}:{nth}")

        def crash() -> None:
            raise FailpointError(failpoint)

        return calling(failpoint, crash, nth)

    @contextmanager
    def _source_crash(self, text: str) -> Iterator[None]:
        self._crash_file.write_text(text)
        try:
            yield
        finally:
            self._crash_file.unlink()

    def _accept(self, ended: str, *expected: str, may_refuse: bool = False) -> None:
        """Check how a run ended; a checkpoint that was refused as it may be is given up."""
        if ended in (ENDED, *expected):
            return
        if self._fits and not may_refuse:
            raise UnexpectedEndError(f"a checkpoint that continues the table ended with {ended}")
        if not may_refuse:
            self._new_checkpoint()

    # Files.

    def _append(self, records: int) -> None:
        """Append numbered records to the journals in turn."""
        names = sorted(file.name for file in self._journals.iterdir())
        for _ in range(records):
            line = b"record %d %s\n" % (self._written, b"x" * (self._written % 7))
            with (self._journals / names[self._written % len(names)]).open("ab") as file:
                file.write(line)
            self._written += 1

    def _new_checkpoint(self) -> None:
        """Go on with a checkpoint that does not exist yet, so that its query resumes from the table."""
        self._checkpoints.append(self._root / f"checkpoint-{len(self._checkpoints)}")
        self._fits = True

    def _copy(self, *, own_id: bool) -> Path | None:
        """Copy the newest checkpoint as it is, None if there is no checkpoint."""
        original = self._checkpoints[-1]
        if not (original / "offsets" / "0").exists():
            return None
        copy = shutil.copytree(original, self._root / f"copy-{uuid.uuid4().hex[:8]}")
        if own_id:  # Spark stops the older of two queries with one id.
            (copy / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
            (copy / ".metadata.crc").unlink(missing_ok=True)
        self._checkpoints.insert(-1, copy)
        return copy

    def _versions(self) -> int:
        return len(list((self.table / "_delta_log").glob("*.json")))

    def _sql(self, statement: str) -> None:
        """Run a statement on the table, written ``{t}``, if there is a table."""
        if self._versions():
            self.spark.sql(statement.format(t=f"delta.`{self.table}`")).collect()
