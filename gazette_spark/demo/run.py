"""Runs broker, writers and a query, kills the query, and compares the table with the appended events.

Two commands share this program. ``gazette-spark demo`` writes for some seconds and kills the query twice.
``gazette-spark quickstart`` serves the lag page and runs until the user ends it; then ``verify`` compares the
table with the journals once more.

:func:`decide` is the script:

======== ======================================================= =============
state    condition of the next step                              step
======== ======================================================= =============
starting the table exists                                        START_WRITING
writing  a kill is due, and the query is in mid-flight           KILL
writing  the user ends the demo; or the time is up, and all      STOP_WRITING
         kills are done or the backlog suffices for the others
draining a kill is missing, and the query is in mid-flight       KILL
draining the ledger is at every write head                       FINISH
======== ======================================================= =============

A query is in mid-flight if its current run has committed rows and has planned a batch that is not finished.
Killing it while it starts would prove little.
"""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path
from typing import Protocol

from gazette_spark._ledger.positions import now_ms
from gazette_spark.client import Client
from gazette_spark.demo.events import JOURNALS, Writers
from gazette_spark.demo.proof import Proof, compare
from gazette_spark.errors import GazetteError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.journal_specs import journal_spec
from gazette_spark.spark_start import log_tail
from gazette_spark.testing.crash import CrashChild
from gazette_spark.testing.table_watch import TableWatch, batch_in_flight, ledger_heads

APP_ID = "gazette-spark-demo"
"""App id under which the query writes to the table."""

MAX_BYTES_PER_TRIGGER = 8 << 20
"""Maximum bytes of a batch. Batches are small, so that a backlog takes several of them, which a kill can
interrupt."""

FRAGMENT_LENGTH = 4 << 20
"""Length of fragments. It is small, so that a short run stores several fragments of each journal and reads
them back."""

CODECS = ("SNAPPY", "GZIP", "ZSTANDARD", "NONE")
"""One codec for each journal."""

BATCHES_PER_KILL = 3
"""Number of batches of backlog for each kill. A run that is killed commits one batch and dies in the next
one; the third is a reserve."""

KILLS_WITHIN_S = 60.0
"""Kills come within the first half of the writing time or, if it is shorter, of this time."""

POLL_S = 0.05
"""Seconds between two checks of the table and the query checkpoint."""

STALL_S = 240.0
"""Seconds after which a running query that commits nothing has failed."""

START_STALL_S = 420.0
"""The same limit for the first start, when Spark may have to download Delta's jars."""

FINISH_S = 180.0
"""Maximum seconds for the query to stop and to read the whole table."""

QUERY = Path(__file__).with_name("query.py")

Wait = Callable[[float], bool]
"""Function that waits for some seconds. It returns True immediately if the user wants to end the demo."""


class Screen(Protocol):
    """Output of the demo's progress."""

    def say(self, text: str) -> None:
        """Show one line."""

    def show(self, phase: str, appended_rows: int, table_rows: int) -> None:
        """Show the current state. This is called often."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The user's options."""

    seconds: float
    """Writing time in seconds; infinite if only the user ends the demo."""
    rate: float
    """Events per second in all journals together."""
    kills: int
    broker: str | None = None
    """Address of a deployed broker; None starts an embedded one."""
    has_lag_page: bool = False
    """Whether to serve the lag page and run ``verify`` at the end."""
    query: Path = QUERY


@dataclass(frozen=True, slots=True)
class DemoReport:
    """Result of the demo."""

    proof: Proof
    kills: int
    table_commits: int
    appended_bytes: int
    writing_s: float
    drained_s: float
    """Seconds from the first append until the last byte was in the table, including kills and restarts."""
    ledger: dict[str, int]
    """Offset of each journal in the last entry of the table's ledger."""
    verify_exit_code: int = 0


@dataclass(eq=False)
class QueryDiedError(GazetteError):
    """The query's process ended, or stopped making progress, without a request to stop."""

    problem: str
    log_tail: str = ""
    """Last lines of the process's log."""

    def __str__(self) -> str:
        return self.problem


class DemoStep(Enum):
    """Next step of the demo."""

    WAIT = auto()
    START_WRITING = auto()
    KILL = auto()
    STOP_WRITING = auto()
    FINISH = auto()


@dataclass(frozen=True, slots=True)
class DemoScript:
    """Script of the demo."""

    seconds: float
    """Seconds for which the writers append. They continue longer if the kills take longer."""
    pauses_s: tuple[float, ...]
    """One entry for each kill: seconds between the first commit of a run and its kill, so that kills hit
    batches at different moments."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of the demo at one moment. Times are seconds since an event; None if it has not happened."""

    table_exists: bool = False
    writing_s: float | None = None
    """Seconds since the writers began."""
    committed_s: float | None = None
    """Seconds since this run of the query committed its first rows."""
    in_flight: bool = False
    """Whether a batch is planned but not finished."""
    kills: int = 0
    """Number of kills so far."""
    backlog_batches: float = 0.0
    """Number of full batches that are appended but not in the table."""
    user_ends: bool = False
    """Whether the user wants to end the demo, so that the remaining kills are skipped."""
    stopped: bool = False
    """Whether the writers have ended."""
    drained: bool = False
    """Whether the ledger's offsets equal the write heads."""


def decide(seen: Observation, script: DemoScript) -> DemoStep:
    """Return the next step."""
    # The table exists after the query's first commit. Before that, a kill would interrupt nothing.
    if seen.writing_s is None:
        return DemoStep.START_WRITING if seen.table_exists else DemoStep.WAIT
    missing = 0 if seen.user_ends else len(script.pauses_s) - seen.kills
    if missing and seen.in_flight and seen.committed_s is not None:
        # Kills are spread over the first half, so that each restart has time to commit rows before the next
        # kill.
        due_s = min(script.seconds, KILLS_WITHIN_S) * (seen.kills + 1) / (2 * len(script.pauses_s))
        # Once the writers have stopped, a pause might outlast the backlog.
        pause_s = 0.0 if seen.stopped else script.pauses_s[seen.kills]
        if seen.writing_s >= due_s and seen.committed_s >= pause_s:
            return DemoStep.KILL
    # After the writers have ended, a ledger at every write head means that nothing is left to read.
    if seen.stopped:
        return DemoStep.FINISH if seen.drained else DemoStep.WAIT
    # A kill that is still to come needs batches to interrupt, so without a backlog the writers continue.
    is_over = seen.writing_s >= script.seconds and seen.backlog_batches >= missing * BATCHES_PER_KILL
    return DemoStep.STOP_WRITING if is_over or seen.user_ends else DemoStep.WAIT


def run_demo(options: DemoOptions, directory: Path, screen: Screen, wait: Wait) -> DemoReport | None:
    """Run the demo in an empty ``directory``; None if the user ended it before the table's first commit.

    Raises:
        GazetteError: the broker failed, or the query ended by itself (``QueryDiedError``).
    """
    # Everything ends in reverse order: first the query and the writers, then their client, and the broker
    # last.
    with ExitStack() as stack:
        endpoint, fragment_root = options.broker, ""
        if endpoint is None:
            from gazette_spark.broker.embedded import EmbeddedBroker

            (directory / "broker").mkdir()
            broker = stack.enter_context(EmbeddedBroker(directory / "broker"))
            endpoint, fragment_root = broker.endpoint, str(directory / "broker")
        client = stack.enter_context(Client(endpoint))
        journals = stack.enter_context(new_journals(client, deployed=options.broker is not None))
        screen.say(f"broker   {endpoint}, with {', '.join(journals)}")
        if options.has_lag_page:
            page = stack.enter_context(lag_page(client, directory / "table"))
            screen.say(f"lag page {page}")
        writers = stack.enter_context(Writers(client, journals, options.rate))
        arguments = [str(directory), endpoint, fragment_root, *journals]

        def start_query() -> CrashChild:
            child = CrashChild(options.query, arguments, log=directory / "query.log")
            return stack.enter_context(child)

        report = stream(options, directory, writers, start_query, screen=screen, wait=wait)
        if report is not None and options.has_lag_page:
            command = ["verify", str(directory / "table"), "--broker", endpoint]
            screen.say(f"$ gazette-spark {' '.join(command)}")
            python = [sys.executable, "-m", "gazette_spark.cli"]
            code = subprocess.run([*python, *command], check=False).returncode
            report = replace(report, verify_exit_code=code)
        return report


def stream(  # noqa: C901, PLR0912, PLR0915 - the whole run, in order
    options: DemoOptions,
    directory: Path,
    writers: Writers,
    start_query: Callable[[], CrashChild],
    *,
    screen: Screen,
    wait: Wait,
) -> DemoReport | None:
    """Run the query and the writers by the script of :func:`decide`; compare the table at the end."""
    script = DemoScript(options.seconds, tuple(random.uniform(0, 2) for _ in range(options.kills)))  # noqa: S311
    log, watch = directory / "query.log", TableWatch(directory / "table")
    query, table = start_query(), watch.state
    seen = Observation()
    last_news = time.monotonic()
    writing_since = committed_since = None
    writing_s, data_commits_before = 0.0, 0
    while True:
        # Observe from outside everything on which the decision depends. Files of the table's log and of the
        # query checkpoint appear complete, so they can be read at any moment, even just after a kill.
        now = time.monotonic()
        before, table = table, watch.look()
        if table != before:
            last_news = now
        # Count only a commit of this run, not of the killed one: before that, the query is starting, and a
        # kill would interrupt nothing.
        if committed_since is None and table.data_commits > data_commits_before:
            committed_since = now
        heads = ledger_heads(table.metadata, APP_ID)
        backlog_bytes = sum(writers.heads.values()) - sum(heads.values())
        seen = replace(
            seen,
            table_exists=table.commits > 0,
            writing_s=None if writing_since is None else now - writing_since,
            committed_s=None if committed_since is None else now - committed_since,
            in_flight=batch_in_flight(directory / "checkpoint") is not None,
            backlog_batches=backlog_bytes / MAX_BYTES_PER_TRIGGER,
            # The heads move until the writers have stopped.
            drained=seen.stopped and heads == writers.heads,
        )
        phase = "waiting for the rest to reach the table" if seen.stopped else "writing"
        if committed_since is None and seen.kills:
            phase = "waiting for the query to start again"
        elif committed_since is None:
            phase = f"waiting for {'the first rows' if seen.table_exists else 'Spark to start the query'}"
        screen.show(phase, writers.rows, table.rows)
        match decide(seen, script):
            case DemoStep.START_WRITING:
                writers.start()
                writing_since = time.monotonic()
                hint = "; Ctrl-C ends it" if options.has_lag_page else ""
                screen.say(f"the query is up; four writers append {options.rate:,.0f} events a second{hint}")
            case DemoStep.KILL:
                query.kill()
                batch, table = batch_in_flight(directory / "checkpoint"), watch.look()
                seen = replace(seen, kills=seen.kills + 1)
                where = "between two batches" if batch is None else f"in the middle of batch {batch}"
                screen.say(
                    f"kill {seen.kills}: SIGKILL to the query {where}, {table.rows:,} rows in the table; "
                    "starting it again"
                )
                # Read the table again after the kill, because the last commit may have come between the
                # previous read and the kill.
                data_commits_before, committed_since, last_news = table.data_commits, None, time.monotonic()
                query = start_query()
            case DemoStep.STOP_WRITING:
                writers.stop()
                writing_s = seen.writing_s or 0.0
                seen = replace(seen, stopped=True)
                screen.say(f"{writers.rows:,} events appended; the query catches up")
            case DemoStep.FINISH:
                break
        # If the query fails or makes no progress for some time, end the demo with the last lines of its log.
        if not query.alive:
            code = query.wait(1)
            problem = f"the query's process ended by itself with exit code {code}"
            raise QueryDiedError(problem, log_tail(log))
        if writers.error is not None:
            raise writers.error
        limit_s = STALL_S if seen.table_exists else START_STALL_S
        if time.monotonic() - last_news > limit_s:
            raise QueryDiedError(f"the query committed nothing for {limit_s:g} s", log_tail(log))
        if seen.user_ends:
            time.sleep(POLL_S)  # The wait now ends at once, but the query needs the processor.
        elif wait(POLL_S):
            if writing_since is None:
                screen.say("ended before the table's first commit: there is nothing to verify")
                return None
            seen = replace(seen, user_ends=True)
    screen.say("comparing every event with the table")
    return DemoReport(
        proof=prove(directory, query, writers),
        kills=seen.kills,
        table_commits=table.commits,
        appended_bytes=sum(writers.heads.values()),
        writing_s=writing_s,
        drained_s=seen.writing_s or 0.0,
        ledger=heads,
    )


def prove(directory: Path, query: CrashChild, writers: Writers) -> Proof:
    """Let the query stop and read the table, and compare the table with every appended event.

    The comparison does not trust the ledger: it looks up each event by its id and amount.
    """
    from pyarrow import feather

    # Use a file, not a signal: then the query ends between two batches, and its process still has a session
    # to read the table.
    (directory / "finish").touch()
    try:
        code = query.wait(FINISH_S)
    except TimeoutError:
        problem = f"the query's process did not end within {FINISH_S:g} s"
        raise QueryDiedError(problem, log_tail(directory / "query.log")) from None
    if code != 0:
        problem = f"the query's process failed with exit code {code}"
        raise QueryDiedError(problem, log_tail(directory / "query.log"))
    rows = feather.read_table(directory / "rows.arrow")
    return compare(*writers.columns(), rows["id"].to_numpy(), rows["cents"].to_numpy())


@contextmanager
def new_journals(client: Client, *, deployed: bool) -> Iterator[list[str]]:
    """Create the journals; on a deployed broker under a unique prefix, and delete them at the end.

    On a deployed broker the journals have no store, because the demo does not know one. Their bytes stay on
    the brokers.
    """
    prefix = f"gazette-spark-demo-{uuid.uuid4().hex[:8]}/" if deployed else "shop/"
    stores = () if deployed else ("file:///",)
    names = [prefix + name for name in JOURNALS]
    client.create_journals(
        *(
            journal_spec(name, codec=codec, length=FRAGMENT_LENGTH, stores=stores)
            for name, codec in zip(names, CODECS, strict=True)
        )
    )
    try:
        yield names
    finally:
        # Delete them at the revisions that were just read, so that a change by others in between raises an
        # error instead of being lost.
        if deployed:
            journals = client.journals_named(names).values()
            client.apply(
                [
                    pb.ApplyRequest.Change(delete=journal.spec.name, expect_mod_revision=journal.mod_revision)
                    for journal in journals
                ]
            )


@contextmanager
def lag_page(client: Client, table: Path) -> Iterator[str]:
    """Serve the lag page of a table on any free port, and yield its address."""
    from gazette_spark.lag.api import Api
    from gazette_spark.lag.feeds import Feed, HeadFeed, TableFeed
    from gazette_spark.lag.history import Evaluator, History, HistoryOptions
    from gazette_spark.lag.monitor import Monitor
    from gazette_spark.lag.rules import Thresholds
    from gazette_spark.lag.server import LagService

    history = History(HistoryOptions())
    monitor = Monitor("gazette", history, Evaluator(history, Thresholds(), expire_cache_s=0))
    api = Api(monitor, now_ms, socket.gethostname(), {"cluster": {}})
    feeds: list[Feed] = [HeadFeed(client), TableFeed(str(table))]
    with LagService(api, feeds, listen="127.0.0.1:0", interval_s=2) as service:
        yield service.address
