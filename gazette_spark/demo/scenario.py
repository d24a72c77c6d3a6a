"""The scenario itself: looks at the query and the writers, decides, acts, until the table holds everything.

Everything waits under a deadline: a query that shows nothing new for a while fails the demo with the
end of its log.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Protocol

from gazette_spark.demo.child import QueryProcess
from gazette_spark.demo.plan import Observation, Plan, Step, decide
from gazette_spark.demo.settings import APP_ID, Settings
from gazette_spark.demo.writers import Writers
from gazette_spark.testing.table_watch import TableState, TableWatch, batch_in_flight, ledger_heads

POLL_S = 0.02
"""Time between two looks at the table and the checkpoint."""

STALL_S = 240.0
"""A running query that commits nothing for this long has failed."""

START_STALL_S = 420.0
"""The same timeout for the query's first start, when Spark may have to download Delta's jar."""


@dataclass(frozen=True, slots=True)
class Progress:
    """State of the demo, for a progress bar."""

    phase: str
    appended_rows: int
    table_rows: int
    expected_rows: int
    """Expected number of appended rows, an estimate; at least ``appended_rows``."""


class Screen(Protocol):
    """Output of the demo's progress."""

    def say(self, text: str) -> None:
        """Show one line."""

    def show(self, progress: Progress) -> None:
        """Show how far things are; called often."""


@dataclass(frozen=True, slots=True)
class ScenarioTimes:
    """Times and counts of a scenario."""

    kills: int
    table_commits: int
    writing_s: float
    drained_s: float
    """Seconds from the first append until the last byte was in the table, kills and restarts included."""


class Scenario:
    """One run of the demo. Used by one thread."""

    def __init__(
        self,
        plan: Plan,
        rate: float,
        settings: Settings,
        *,
        writers: Writers,
        child: QueryProcess,
        screen: Screen,
    ) -> None:
        self._plan = plan
        self._rate = rate
        self._settings = settings
        self._writers = writers
        self._child = child
        self._screen = screen
        self._watch = TableWatch(settings.table)
        self._seen = Observation()
        self._writing_since: float | None = None
        self._committed_since: float | None = None
        self._writing_s = 0.0
        self._at_start_of_run = TableState()
        self._last_news = (time.monotonic(), TableState())

    def run(self) -> ScenarioTimes:
        """Run until the table holds everything; the query still runs then.

        Raises:
            QueryDiedError: it ended by itself, or made no progress.
            GazetteError: an append failed.
        """
        self._child.start()
        while (step := decide(self._look(), self._plan)) is not Step.FINISH:
            self._act(step)
            self._check()
            time.sleep(POLL_S)
        return ScenarioTimes(
            kills=self._seen.kills,
            table_commits=self._watch.state.commits,
            writing_s=self._writing_s,
            drained_s=_since(self._writing_since) or 0.0,
        )

    def _look(self) -> Observation:
        table = self._watch.look()
        if not self._seen.table_exists:
            for line in self._child.downloads():
                self._screen.say(line)
        if self._committed_since is None and table.data_commits > self._at_start_of_run.data_commits:
            self._committed_since = time.monotonic()
        if table != self._last_news[1]:
            self._last_news = (time.monotonic(), table)
        self._seen = replace(
            self._seen,
            table_exists=table.commits > 0,
            writing_s=_since(self._writing_since),
            committed_s=_since(self._committed_since),
            in_flight=batch_in_flight(self._settings.checkpoint) is not None,
            backlog_batches=self._backlog_bytes(table) / self._settings.max_bytes_per_trigger,
            drained=self._seen.stopped and ledger_heads(table.metadata, APP_ID) == self._writers.heads,
        )
        self._screen.show(self._progress(table))
        return self._seen

    def _backlog_bytes(self, table: TableState) -> int:
        return self._writers.size_bytes - sum(ledger_heads(table.metadata, APP_ID).values())

    def _progress(self, table: TableState) -> Progress:
        phase = "draining" if self._seen.stopped else "writing"
        if self._committed_since is None:
            phase = "starting" if self._seen.kills == 0 else "restarting"
        expected = 0 if self._seen.stopped else int(self._rate * self._plan.seconds)
        return Progress(phase, self._writers.rows, table.rows, max(expected, self._writers.rows))

    def _act(self, step: Step) -> None:
        match step:
            case Step.START_WRITING:
                self._writers.start()
                self._writing_since = time.monotonic()
                self._screen.say(f"the query is up; four writers append {self._rate:,.0f} events a second")
            case Step.KILL:
                self._kill()
            case Step.STOP_WRITING:
                self._writers.stop()
                self._writing_s = _since(self._writing_since) or 0.0
                self._seen = replace(self._seen, stopped=True)
                self._screen.say(f"{self._writers.rows:,} events appended; the query catches up")

    def _kill(self) -> None:
        self._child.kill()
        batch = batch_in_flight(self._settings.checkpoint)
        table = self._watch.look()
        self._seen = replace(self._seen, kills=self._seen.kills + 1)
        self._at_start_of_run, self._committed_since = table, None
        self._last_news = (time.monotonic(), table)
        where = "between two batches" if batch is None else f"in the middle of batch {batch}"
        self._screen.say(
            f"kill {self._seen.kills}: SIGKILL to the query {where}, {table.rows:,} rows in the table; "
            "starting it again"
        )
        self._child.start()

    def _check(self) -> None:
        """Fail if the query or a writer has failed, or nothing moves."""
        self._child.check()
        if self._writers.error is not None:
            raise self._writers.error
        since, _ = self._last_news
        limit = STALL_S if self._seen.table_exists else START_STALL_S
        if time.monotonic() - since > limit:
            raise self._child.failure(f"the query committed nothing for {limit:g} s")


def _since(moment: float | None) -> float | None:
    return None if moment is None else time.monotonic() - moment
