"""Schedules that kill writers of an Iceberg table, and let other programs change it, without Spark.

A driver is a process that does what Spark and the format do for each batch: it writes the batch's end into a
query checkpoint, has the files written, commits them, and writes Spark's record of the batch. It is killed at
a point of the commit, or at a random moment. After each step the table must have each row of the journal up
to the ledger's end exactly once.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from pyiceberg.table.snapshots import Operation

from gazette_spark import IcebergSink, JournalOffsets
from gazette_spark._data_files.checkpoint_reader import CheckpointReader
from gazette_spark._ledger.file_batches import FileBatches
from gazette_spark.errors import SinkError
from gazette_spark.failpoints import FAILPOINT_VARIABLE
from tests.rig.iceberg import NAME, ROWS, IcebergStream, catalog_properties, rows

POINTS = ("sink.entry", "sink.before_write", "sink.after_write", "sink.return")

LONGEST_BATCH = 5

DEADLINE_S = 120

REFUSED = 3
"""Exit code of a driver whose batch was refused."""

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])


class Checkpoint:
    def __init__(self, root: Path) -> None:
        self.root = root

    def create(self, query: str, begin: int) -> None:
        """Start a query: its first batch pins where it starts."""
        (self.root / "offsets").mkdir(parents=True)
        (self.root / "commits").mkdir()
        (self.root / "metadata").write_text(json.dumps({"id": query}))
        self.plan(0, JournalOffsets({"a": begin}, "pinned"))

    def plan(self, batch_id: int, end: JournalOffsets) -> None:
        """Write a batch's end, atomically."""
        text = "\n".join(["v1", json.dumps({"batchTimestampMs": time.time_ns() // 1_000_000}), end.to_json()])
        unfinished = self.root / f"unfinished-{os.getpid()}"
        unfinished.write_text(text)
        unfinished.rename(self.root / "offsets" / str(batch_id))

    def end(self, batch_id: int) -> int:
        line = (self.root / "offsets" / str(batch_id)).read_text().splitlines()[-1]
        return JournalOffsets.from_json(line).read_through["a"]

    def last(self, folder: str) -> int:
        """Return the last batch that is planned, or recorded as complete; -1 if there is none."""
        return max((int(path.name) for path in (self.root / folder).iterdir()), default=-1)


def drive(properties: Mapping[str, str], root: str, batches: int, seed: int, failpoint: str) -> None:
    """Run batches of a query, as a restarted driver does."""
    os.environ[FAILPOINT_VARIABLE] = failpoint
    draw, checkpoint = random.Random(seed), Checkpoint(Path(root))
    stream = IcebergStream(properties)
    reader = CheckpointReader(root, lambda url: (_ for _ in ()).throw(ValueError(url)))
    for _ in range(batches):
        batch_id = checkpoint.last("offsets")
        if batch_id == checkpoint.last("commits"):
            batch_id += 1
            end = checkpoint.end(batch_id - 1) + draw.randint(0, LONGEST_BATCH)
            checkpoint.plan(batch_id, JournalOffsets({"a": end}))
        begin, end = checkpoint.end(max(batch_id - 1, 0)), checkpoint.end(batch_id)
        written = stream.files(rows("a", begin, end))
        batches_of = FileBatches(stream.table, stream.app_id, stream.allowed)
        try:
            batches_of.commit_planned(reader, root, batch_id, None, written)
        except SinkError:
            os._exit(REFUSED)
        (checkpoint.root / "commits" / str(batch_id)).touch()


class IcebergCrashes:
    def __init__(self, root: Path, seed: int) -> None:
        self.properties = catalog_properties(root)
        self.draw = random.Random(seed)
        self.done: Counter[str] = Counter()
        """Number of times that each step was carried out, and that drivers died or were refused."""
        self._root = root
        self._stream = IcebergStream(self.properties)
        self._stream.table.prepare(ROWS)
        self._queries = 0
        self._checkpoint = self._new_query(0)
        self._foreign = 0

    def run(self, steps: int) -> None:
        kinds: list[Callable[[], None]] = [
            *[self._crash] * 5,
            *[self._random_kill] * 3,
            self._lose_checkpoint,
            self._copied_checkpoint,
            self._two_drivers,
            self._roll_back,
            self._expire,
            self._others,
        ]
        for _ in range(steps):
            step = self.draw.choice(kinds)
            step()
            self.done[step.__name__.strip("_")] += 1
            self.check()
        if self._drive(2) != 0:
            self._checkpoint = self._new_query(self._end())
            assert self._drive(2) == 0
        self.check()

    @property
    def crashes(self) -> int:
        """Number of drivers that were killed during their work."""
        return self.done["killed"]

    def check(self) -> None:
        """Compare the table with the journal: each row up to the ledger's end must be there once."""
        entry = self._stream.entry()
        expected = [*range(entry.read_through["a"])] if entry else []
        contents = self._stream.contents()
        if entry is None and contents.get("a"):
            # A rollback led to a snapshot of another writer, and the ledger's earlier summaries have expired.
            self._adopt(len(contents["a"]))
            expected = [*range(len(contents["a"]))]
        assert contents.get("a", []) == expected, f"{contents.get('a')} {entry}"

    def _end(self) -> int:
        entry = self._stream.entry()
        return entry.read_through["a"] if entry else 0

    def _new_query(self, begin: int) -> Checkpoint:
        self._queries += 1
        checkpoint = Checkpoint(self._root / f"checkpoint-{self._queries}")
        checkpoint.create(f"query-{self._queries}", begin)
        return checkpoint

    def _start(self, checkpoint: Checkpoint, batches: int, failpoint: str = "") -> multiprocessing.Process:
        arguments = (self.properties, str(checkpoint.root), batches, self.draw.randrange(1 << 30), failpoint)
        process = _processes.Process(target=drive, args=arguments)
        process.start()
        return process  # type: ignore[return-value] # Of another context, with the same methods.

    def _finish(self, process: multiprocessing.Process) -> int:
        process.join(DEADLINE_S)
        code = process.exitcode
        assert code in (0, REFUSED, -signal.SIGKILL), f"a driver ended with {code}"
        if code:
            self.done["refused" if code == REFUSED else "killed"] += 1
        return code

    def _drive(self, batches: int, failpoint: str = "") -> int:
        """Run the query; one that is refused starts again where the table ends."""
        code = self._finish(self._start(self._checkpoint, batches, failpoint))
        if code == REFUSED:
            self._checkpoint = self._new_query(self._end())
        return code

    def _crash(self) -> None:
        self._drive(3, f"{self.draw.choice(POINTS)}:{self.draw.randint(1, 3)}:kill")

    def _random_kill(self) -> None:
        process = self._start(self._checkpoint, 100)
        time.sleep(self.draw.random() * 1.5)
        process.kill()
        if self._finish(process) == REFUSED:
            self._checkpoint = self._new_query(self._end())

    def _lose_checkpoint(self) -> None:
        shutil.rmtree(self._checkpoint.root)
        self._checkpoint = self._new_query(self._end())
        self._drive(2)

    def _copied_checkpoint(self) -> None:
        """Leave a copy of the checkpoint behind, then run it with other batches; it must add no duplicate."""
        self._queries += 1
        copy = Checkpoint(self._root / f"checkpoint-{self._queries}")
        shutil.copytree(self._checkpoint.root, copy.root)
        self._drive(2)
        self._finish(self._start(copy, 3))
        self._drive(1)

    def _two_drivers(self) -> None:
        self._queries += 1
        copy = Checkpoint(self._root / f"checkpoint-{self._queries}")
        shutil.copytree(self._checkpoint.root, copy.root)
        processes = [self._start(self._checkpoint, 3), self._start(copy, 3)]
        codes = [self._finish(process) for process in processes]
        if codes[0] == REFUSED:
            self._checkpoint = self._new_query(self._end())

    def _roll_back(self) -> None:
        """Make an earlier snapshot the current one, sometimes during a driver's commit."""
        table = self._stream.load()
        current = table.current_snapshot()
        known = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
        ancestors = []
        while current is not None and current.parent_snapshot_id in known:
            current = known[current.parent_snapshot_id]
            # A rewrite by pyiceberg creates two snapshots, and its rows are missing in the first one.
            if current.summary is None or current.summary.operation != Operation.DELETE:
                ancestors.append(current)
        if not ancestors:
            return
        target = self.draw.choice(ancestors[:3])
        process = self._start(self._checkpoint, 2) if self.draw.random() < 0.3 else None
        try:
            table = self._stream.load()
            table.manage_snapshots().set_current_snapshot(snapshot_id=target.snapshot_id).commit()
        finally:
            code = self._finish(process) if process else 0
        if code == REFUSED:
            self.check()
            self._checkpoint = self._new_query(self._end())

    def _expire(self) -> None:
        # On a busy machine, drivers may be killed before the first commit.
        if self._stream.load().current_snapshot() is not None:
            self._stream.expire()

    def _others(self) -> None:
        self._foreign += 1
        if self.draw.random() < 0.7:
            self._stream.append_foreign(self._foreign)
        else:
            table = self._stream.load()
            if (contents := table.scan().to_arrow()).num_rows:
                table.overwrite(contents)

    def _adopt(self, end: int) -> None:
        sink = IcebergSink("orders", table=NAME.identifier, catalog=NAME.catalog, properties=self.properties)
        sink.adopt(JournalOffsets({"a": end}))
        self.done["adopted"] += 1
        self._checkpoint = self._new_query(end)
