"""Two processes that write one table under one app id, and keep restarting.

Each is a separate driver with separate query checkpoints. Whenever the sink ends its query because the other
has won, it restarts where the table ends, every other time with permission to trim its batches, so that it
can succeed although the other has moved on by then. Now and then the writer that is ahead is stopped
(SIGSTOP) until the other has written, and wakes up as a zombie. Records keep coming.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from gazette_spark._ledger.query_checkpoint import parse_query_id
from gazette_spark.testing import CrashChild
from gazette_spark.testing.oracle import read_versions
from tests.rig.crashes.children import CrashChildren
from tests.rig.crashes.outcomes import UnexpectedEndError
from tests.rig.crashes.sinks import SINKS
from tests.rig.crashes.tables import IcebergCrashTable

JOURNALS = ("a", "b", "c")

LONGEST_PAUSE_S = 2.0

LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class TwoWriters:
    """The results, apart from the table."""

    turns: int
    """Number of times that an entry of one writer follows an entry of the other."""
    defeats: dict[str, int]
    """Number of queries that the sink ended, by error."""
    seconds: float
    checkpoints: tuple[Path, ...]
    """Query checkpoints of all queries that ran."""


def run_two_writers(
    children: CrashChildren,
    root: Path,
    *,
    app_id: str,
    seconds: float,
    turns: int | None = None,
    options: Mapping[str, str] | None = None,
    sink: str = "raw",
) -> TwoWriters:
    """Run two drivers that write the table ``root / "table"`` for some time, then kill both.

    Args:
        children: Where they come from.
        root: Directory for table and query checkpoints.
        app_id: App id of the drivers.
        seconds: Maximum duration.
        turns: End it after this number of turns.
        options: Options of the source, beside those of the drivers.
        sink: ``raw`` or ``iceberg``.

    Raises:
        UnexpectedEndError: a driver failed.
    """
    children.get_ready(2)
    if SINKS[sink].iceberg:
        IcebergCrashTable(root / "table")  # Creates the catalog, which two drivers cannot do at once.
    began = time.monotonic()

    def writers() -> list[str]:
        return _writers(root, app_id, sink)

    pair = {
        name: children.start(
            until="fenced",
            options=dict(options or {}),
            table=str(root / "table"),
            checkpoint=str(root / name),
            outcomes=str(root / f"{name}.outcomes"),
            sink=sink,
        )
        for name in ("one", "two")
    }
    with pair["one"], pair["two"]:
        while time.monotonic() < began + seconds and (turns is None or _turns(writers()) < turns):
            _let_the_other_in(pair, writers, until=began + seconds)
    defeats = Counter(line for file in root.glob("*.outcomes") for line in file.read_text().split())
    return TwoWriters(
        _turns(writers()),
        dict(defeats),
        time.monotonic() - began,
        tuple(path.parent for path in root.glob("*/metadata")),
    )


@contextmanager
def records_coming(journals: Path, seed: int) -> Iterator[None]:
    """Append numbered records to journals that are files, in a separate thread."""
    stopped = threading.Event()
    for name in JOURNALS:
        (journals / name).touch()

    def append() -> None:
        rng = random.Random(seed)
        number = 0
        while not stopped.wait(rng.uniform(0, LONGEST_PAUSE_S)):
            for _ in range(rng.randint(1, 20)):
                with (journals / rng.choice(JOURNALS)).open("ab") as file:
                    file.write(b"record %d\n" % number)
                number += 1

    thread = threading.Thread(target=append, name="records", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _let_the_other_in(
    pair: Mapping[str, CrashChild], writers: Callable[[], list[str]], *, until: float
) -> None:
    """Stop the writer of the newest entry until the other has written, then resume it as a zombie."""
    time.sleep(LOOK_EVERY_S)
    _check_alive(pair)
    if not (before := writers()):
        return
    with pair[before[-1]].paused():
        while writers()[-1] == before[-1] and time.monotonic() < until:
            time.sleep(LOOK_EVERY_S)
            _check_alive(pair)


def _check_alive(pair: Mapping[str, CrashChild]) -> None:
    for name, child in pair.items():
        if not child.alive:
            raise UnexpectedEndError(f"writer {name} ended\n{child.log_end()}")


def _turns(writers: list[str]) -> int:
    return sum(a != b for a, b in pairwise(writers))


def _writers(root: Path, app_id: str, sink: str) -> list[str]:
    writer_of = {
        parse_query_id(path.read_text(), str(path)): path.parent.name.partition("-")[0]
        for path in root.glob("*/metadata")
    }
    if SINKS[sink].iceberg:
        entries = IcebergCrashTable(root / "table").entries(app_id)
    else:
        entries = [version.entry for version in read_versions(root / "table", app_id)]
    return [writer_of[entry.query_id] for entry in entries if entry]
