"""Open transactions of a table's query: what its state files say at the committed offsets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gazette_spark._ledger.positions import GroupCommit
from gazette_spark._planning.states import OpenTransactions, StateFiles
from gazette_spark.lag.api import Api, HttpRequest
from gazette_spark.lag.feeds import StateFeed, poll_all
from gazette_spark.lag.history import Evaluator, History, HistoryOptions
from gazette_spark.lag.monitor import Monitor
from gazette_spark.lag.rules import Thresholds
from gazette_spark.message.bulk_sequencer import NO_TRANSACTION, ProducerStates
from gazette_spark.message.uuids import Clock

NOW_MS = 1_700_000_000_000
A, B, C = "shop/a", "shop/b", "shop/c"


class Watched:
    """A monitor of a query whose files a test writes."""

    def __init__(self, location: Path) -> None:
        history = History(HistoryOptions())
        self.monitor = Monitor("gazette", history, Evaluator(history, Thresholds(), expire_cache_s=0))
        self.monitor.observe_heads({A: 1000, B: 1000, C: 1000}, NOW_MS)
        self.files = StateFiles(str(location))
        self.feed = StateFeed("orders", str(location), OpenTransactions(self.files))
        self.batch = 0
        self.now_ms = NOW_MS

    def commit(self, **offsets: int) -> None:
        self.batch += 1
        reached = {f"shop/{short}": at for short, at in offsets.items()}
        self.monitor.observe_commits("orders", [GroupCommit(self.batch, NOW_MS, reached)], NOW_MS)

    def save(self, journal: str, offset: int, *begins: int) -> None:
        """Write the states at an offset: each producer's newest message is two minutes old."""
        clocks = np.full(len(begins), Clock.at((NOW_MS - 120_000) * 1_000_000), np.uint64)
        producers = np.arange(len(begins)) + 1
        states = ProducerStates(producers, clocks, clocks, np.array(begins, np.int64), producers)
        self.files.save(journal, offset, 0, states)

    def look(self) -> list[str]:
        return poll_all([self.feed], self.monitor, self.now_ms)

    def open_at(self) -> dict[str, Any]:
        group = json.loads(self.ask("/gazette/v1/groups/orders"))["group"]
        return {each["journal"]: each["open_transactions"] for each in group["journals"]}

    def metrics(self) -> dict[str, float]:
        lines = [line for line in self.ask("/metrics").splitlines() if line.startswith("gazette_lag_open")]
        found = {}
        for line in lines:
            name, _, rest = line.partition("{")
            labels, _, value = rest.partition("} ")
            journal = labels.partition('journal="')[2].rstrip('"')
            found[f"{name.removeprefix('gazette_lag_open_')} {journal}".strip()] = float(value)
        return found

    def ask(self, path: str) -> str:
        api = Api(self.monitor, lambda: self.now_ms, "a-host", {})
        return api.answer(HttpRequest("GET", path)).body.decode()


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "states")


def test_each_journal_tells_what_is_open(watched: Watched) -> None:
    watched.commit(a=500, b=300, c=0)
    watched.save(A, 500, 450, 400, NO_TRANSACTION)
    assert watched.look() == []
    oldest = {
        "journal": A,
        "producer": "000000000002",
        "begin": 400,
        "held_bytes": 100,
        "age": {"least_ms": 120_000, "most_ms": None},
    }
    assert watched.open_at() == {
        A: {"count": 2, "oldest": oldest},
        B: {"count": None, "oldest": None},
        C: {"count": 0, "oldest": None},
    }
    assert watched.metrics() == {
        f"transactions {A}": 2,
        f"transactions {C}": 0,
        "transactions_unknown_journals": 1,
        f"transaction_age_seconds {A}": 120,
        f"transaction_bytes {A}": 100,
    }


def test_what_is_open_follows_the_commits(watched: Watched) -> None:
    watched.commit(a=500, b=300)
    watched.save(A, 500, 400)
    watched.look()
    watched.save(A, 600, 400)
    watched.save(B, 300)
    watched.now_ms += 60_000
    watched.look()
    assert watched.open_at()[A]["oldest"]["held_bytes"] == 100, "600 is not committed yet"
    assert watched.open_at()[B] == {"count": 0, "oldest": None}, "its file is there now"
    watched.commit(a=600, b=300)
    watched.look()
    (oldest,) = (watched.open_at()[A]["oldest"],)
    assert (oldest["held_bytes"], oldest["age"]["least_ms"]) == (200, 180_000)
    watched.commit(a=700, b=300)
    watched.look()
    assert watched.open_at()[A] == {"count": None, "oldest": None}
    watched.save(A, 700, NO_TRANSACTION)
    watched.look()
    assert watched.open_at()[A] == {"count": 0, "oldest": None}
    assert watched.metrics() == {
        f"transactions {A}": 0,
        f"transactions {B}": 0,
        "transactions_unknown_journals": 0,
    }


def test_nobody_looks_without_the_option(watched: Watched) -> None:
    watched.commit(a=500)
    assert watched.open_at() == {A: None}
    assert watched.metrics() == {}


def test_a_group_that_nobody_reports_is_a_failure(watched: Watched) -> None:
    watched.commit(a=500)
    location = "s3://key:SECRET@lake/states"
    feed = StateFeed("odrers", location, OpenTransactions(watched.files))
    (failure,) = poll_all([feed], watched.monitor, NOW_MS)
    assert failure == (
        "open transactions of odrers in s3://***@lake/states: "
        "no commit of a group 'odrers' is known; known groups: orders"
    )
    assert watched.monitor.failure("orders", NOW_MS) is None


def test_many_files_are_read_at_a_time(watched: Watched) -> None:
    journals = [f"shop/{at}" for at in range(50)]
    watched.monitor.observe_heads(dict.fromkeys(journals, 1000), NOW_MS)
    watched.commit(**{str(at): 100 + at for at in range(50)})
    for at, journal in enumerate(journals):
        watched.save(journal, 100 + at, at)
    watched.look()
    assert {name: each["oldest"]["begin"] for name, each in watched.open_at().items()} == {
        journal: at for at, journal in enumerate(journals)
    }
