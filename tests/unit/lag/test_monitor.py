"""What a monitor reports, and how it reports what it cannot determine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gazette_spark._ledger.history import HistoryRow
from gazette_spark._ledger.positions import GroupCommit
from gazette_spark.errors import InputError, OptionError
from gazette_spark.lag.estimates import Age, TimedFragment
from gazette_spark.lag.feeds import Feed, TableFeed, poll_all
from gazette_spark.lag.group_lag import Alarms, JournalStore, Unread
from gazette_spark.lag.history import Evaluator, History, HistoryOptions
from gazette_spark.lag.monitor import Monitor
from gazette_spark.lag.rules import Thresholds
from gazette_spark.offsets import Fingerprint
from tests.unit.ledger.test_positions import entry, history

NOW_MS = 1_700_000_000_000


@pytest.fixture
def monitor() -> Monitor:
    """A monitor of one journal at 1000 bytes that does not cache verdicts."""
    kept = History(HistoryOptions())
    found = Monitor("gazette", kept, Evaluator(kept, Thresholds(), expire_cache_s=0))
    found.observe_heads({"shop/a": 1000}, NOW_MS)
    return found


def commit(order: int, offset: int, ago_s: float = 0) -> GroupCommit:
    return GroupCommit(order, round(NOW_MS - ago_s * 1000), {"shop/a": offset})


def test_a_history_read_back_has_a_lag_for_its_newest_commit_only(monitor: Monitor) -> None:
    """The write heads at earlier commits are unknown, and 1000 less 100 would be made up."""
    monitor.observe_commits("orders", [commit(1, 100, 20), commit(2, 400, 10), commit(3, 900)], NOW_MS)
    windows = monitor.history.fetch_consumer("gazette", "orders", now_ms=NOW_MS)
    assert windows is not None
    assert [each and (each.offset, each.lag) for each in windows["shop"][0].offset_commits[-3:]] == [
        (100, None),
        (400, None),
        (900, 100),
    ]


def test_lag_is_that_of_each_journal(monitor: Monitor) -> None:
    monitor.observe_commits("orders", [commit(1, 100, 10), commit(2, 400)], NOW_MS)
    monitor.observe_heads({"shop/a": 1100}, NOW_MS + 10_000)
    lag = monitor.lag("orders", NOW_MS + 10_000)
    (journal,) = lag.journals
    assert (journal.journal, journal.status.current_lag, journal.head) == ("shop/a", 700, 1100)
    assert journal.read_bytes_per_s == 30.0
    assert journal.append_bytes_per_s == 10.0
    assert journal.catch_up_ms == 35_000
    assert journal.age == Age(10_000, None)
    assert lag.freshness == Age(10_000, None)
    assert monitor.unread(NOW_MS) == {Unread("shop/a", 400, 1100)}
    assert journal.records is None
    monitor.observe_records({Unread("shop/a", 400, 1100): 7})
    assert monitor.lag("orders", NOW_MS).journals[0].records == 7
    monitor.observe_heads({"shop/a": 1200}, NOW_MS + 20_000)
    assert monitor.lag("orders", NOW_MS).journals[0].records is None


def test_the_course_has_the_highest_lag_of_a_step(monitor: Monitor) -> None:
    """A group's chart has a point per minute and a journal's one per 20 s, whatever the number of feeds."""
    monitor.observe_commits("orders", [commit(1, 400)], NOW_MS)
    begin_ms = NOW_MS // 60_000 * 60_000 + 60_000
    for at, head in enumerate((1050, 1300, 1100, 1200, 1250, 1150, 1160)):
        monitor.observe_heads({"shop/a": head}, begin_ms + 10_000 * at)
        monitor.observe_commits("orders", [], begin_ms + 10_000 * at)
        monitor.observe_round(begin_ms + 10_000 * at)
    assert monitor.lag_history("orders") == [(begin_ms + 50_000, 900), (begin_ms + 60_000, 760)]
    of_journal = [(10_000, 900), (30_000, 800), (50_000, 850), (60_000, 760)]
    assert monitor.journal_lag_histories("orders", ["shop/a", "shop/b"]) == {
        "shop/a": [(begin_ms + at, lag) for at, lag in of_journal]
    }


def test_the_course_is_unknown_while_nothing_could_be_read(monitor: Monitor) -> None:
    """If write heads cannot be read in a round, the lag is unknown and the chart has a gap."""
    monitor.observe_commits("orders", [commit(1, 400)], NOW_MS)
    monitor.observe_round(NOW_MS)
    monitor.observe_feed("write heads", (), NOW_MS + 60_000, "no broker", of_heads=True)
    for at in (60_000, 120_000, 180_000):
        monitor.observe_round(NOW_MS + at)
    hole = [(NOW_MS, 600), (NOW_MS + 60_000, None), (NOW_MS + 180_000, None)]
    assert (
        monitor.lag_history("orders") == monitor.journal_lag_histories("orders", ["shop/a"])["shop/a"] == hole
    )


def test_a_monitor_that_starts_knows_the_lag_of_the_last_day() -> None:
    """The lag before each commit is rebuilt from the write heads that the commits recorded."""
    kept = History(HistoryOptions())
    monitor = Monitor("gazette", kept, Evaluator(kept, Thresholds(), expire_cache_s=0))
    ago_s = [90_000, 7200, 7140, 3000, 2940]
    steps = [planned(at, 100 * at, 100 * at + 50, ago_s[at - 1]) for at in range(1, 6)]
    steps.insert(3, commit(3, 300, 3600))  # A RESTORE, which records no heads.
    monitor.observe_commits("orders", steps, NOW_MS)
    monitor.observe_heads({"shop/a": 1000}, NOW_MS)
    monitor.observe_round(NOW_MS)
    expected = [(-7_200_000, 150), (-7_140_000, 150), (-7_139_999, None), (-3_000_000, 150)]
    expected += [(-2_940_000, 150), (-2_939_999, None), (0, 500)]
    assert [(at - NOW_MS, lag) for at, lag in monitor.lag_history("orders")] == expected
    assert [
        (at - NOW_MS, lag) for at, lag in monitor.journal_lag_histories("orders", ["shop/a"])["shop/a"]
    ] == (expected[3:])


def test_the_age_after_a_start_is_bounded_by_the_last_batch(monitor: Monitor) -> None:
    """A head that a batch saw bounds the arrival of unread bytes better than the time of this start."""
    steps = [planned(at, 100 * at, 100 * at, 100 - 10 * at) for at in range(1, 3)]
    monitor.observe_commits("level", steps, NOW_MS)
    assert monitor.lag("level", NOW_MS).freshness == Age(0, 81_000)
    monitor.observe_commits("behind", [planned(3, 100, 150, 60)], NOW_MS)
    assert monitor.lag("behind", NOW_MS).freshness == Age(81_000, 91_000)


def test_the_speeds_of_a_group_are_the_sums_of_its_journals(monitor: Monitor) -> None:
    offsets = ({"shop/a": 100, "shop/b": 0}, {"shop/a": 400, "shop/b": 5})
    monitor.observe_heads({"shop/b": 5}, NOW_MS)
    for at, step in enumerate(offsets):
        commits = [GroupCommit(at, NOW_MS - 10_000 + at * 10_000, step)]
        monitor.observe_commits("orders", commits, NOW_MS - 10_000 + at * 10_000)
    monitor.observe_heads({"shop/a": 1100, "shop/b": 25}, NOW_MS + 10_000)

    def speeds(now_ms: int) -> tuple[float | None, float | None]:
        lag = monitor.lag("orders", now_ms)
        journals = [(journal.read_bytes_per_s, journal.append_bytes_per_s) for journal in lag.journals]
        assert None in journals[0] or tuple(map(sum, zip(*journals, strict=True))) == (
            lag.read_bytes_per_s,
            lag.append_bytes_per_s,
        )
        return lag.read_bytes_per_s, lag.append_bytes_per_s

    assert speeds(NOW_MS + 10_000) == (30.5, 12.0)
    assert speeds(NOW_MS + 11_000) == (0.0, 12.0)
    monitor.observe_feed("table", ("orders",), NOW_MS, "gone")
    assert speeds(NOW_MS) == (None, None)


def test_charts_have_speeds_ages_and_marks(monitor: Monitor) -> None:
    kept = History(HistoryOptions())
    started = Monitor("gazette", kept, Evaluator(kept, Thresholds(), expire_cache_s=0))
    steps = [planned(at, 600 * at, 1200 * at, 600 - 60 * at) for at in range(1, 5)]
    steps[1] = replace(steps[1], event="restore")
    started.observe_commits("orders", steps, NOW_MS)
    started.observe_heads({"shop/a": 4800}, NOW_MS)
    started.observe_round(NOW_MS)
    charts = started.histories("orders")
    assert [value for _, value in charts["read_history"]] == [10, 10, 0]
    assert [value for _, value in charts["append_history"][:2]] == [20, 20]
    # A batch sees a head a second before its commit. After the start, the age continues.
    assert [value for _, value in charts["age_history"]] == [61_000, 61_000, 121_000, 421_000]
    assert [event for _, event in charts["marks"]] == ["commit", "restore", "commit", "commit"]


def test_incidents_are_kept_for_days(monitor: Monitor) -> None:
    monitor.observe_commits("orders", [commit(1, 400, 20)], NOW_MS)
    monitor.observe_round(NOW_MS + 10_000)
    (incident,) = monitor.incidents()
    assert (incident.group, incident.status.name, incident.end_ms) == ("orders", "ERR", None)
    monitor.observe_commits("orders", [commit(2, 1000)], NOW_MS + 20_000)
    monitor.observe_round(NOW_MS + 20_000)
    (incident,) = monitor.incidents()
    assert (incident.begin_ms, incident.end_ms) == (NOW_MS + 10_000, NOW_MS + 20_000)
    for at in range(10):
        monitor.observe_heads({"shop/a": 2000}, NOW_MS + 30_000 + at)
    monitor.observe_round(NOW_MS + 90_000)
    assert [each.end_ms for each in monitor.incidents()] == [None, NOW_MS + 20_000]
    monitor.forget_group("orders")
    monitor.observe_round(NOW_MS + 100_000)
    assert [each.end_ms for each in monitor.incidents()] == [NOW_MS + 100_000, NOW_MS + 20_000]
    monitor.observe_round(NOW_MS + 8 * 86_400_000)
    assert monitor.incidents() == []


def test_a_query_that_stops_after_idle_days_is_noticed(monitor: Monitor) -> None:
    """An idle query renews its entry once a day. Such a day must not count as its usual pace."""
    day_ms = 24 * 3_600_000
    steps = [
        GroupCommit(at, NOW_MS + 60_000 * at, {"shop/a": 1000}, planned_ms=NOW_MS + 60_000 * at)
        for at in range(10)
    ]
    beats = [
        replace(steps[-1], order=9 + day, timestamp_ms=steps[-1].timestamp_ms + day * day_ms)
        for day in range(1, 10)
    ]
    for step in (*steps, *beats):
        monitor.observe_commits("orders", [step], step.timestamp_ms)
    at_ms = beats[-1].timestamp_ms + 3_600_000
    assert monitor.lag("orders", at_ms).verdict.status.name == "OK", "it is not forgotten"
    for look in range(11):
        monitor.observe_heads({"shop/a": 2000}, at_ms + 10_000 * look)
    assert monitor.lag("orders", at_ms + 100_000).verdict.status.name == "ERR"


def test_incidents_that_end_together_are_all_kept(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage of the brokers ends for all groups in the same round."""
    monkeypatch.setattr("gazette_spark.lag.incidents.MAX_INCIDENTS", 4)
    for names, kept in (("abc", 3), ("defghi", 4)):
        for name in names:
            monitor.observe_commits(name, [commit(1, 400, 20)], NOW_MS)
        monitor.observe_round(NOW_MS + 10_000)
        for name in names:
            monitor.observe_commits(name, [commit(2, 1000)], NOW_MS + 20_000)
        monitor.observe_round(NOW_MS + 20_000)
        assert len(monitor.incidents()) == kept


@pytest.mark.parametrize(
    ("recorded", "listed", "recreated"),
    [
        pytest.param(Fingerprint(0, 0, create_revision=3), 9, [], id="nothing_read"),
        pytest.param(Fingerprint.of(b"old", 900, 3), 3, [], id="the_same_creation"),
        pytest.param(Fingerprint.of(b"old", 900, 3), 9, ["shop/a"], id="another_creation"),
        pytest.param(Fingerprint.of(b"old", 900, 3), 0, [], id="brokers_do_not_say"),
        pytest.param(Fingerprint.of(b"old", 900), 9, [], id="the_ledger_does_not_say"),
    ],
)
def test_a_journal_that_was_created_again_is_named(
    recorded: Fingerprint, listed: int, recreated: list[str]
) -> None:
    """Its write head and the table's offset may belong to two journals, so their difference is not a lag."""
    kept = History(HistoryOptions(intervals=2))
    monitor = Monitor("gazette", kept, Evaluator(kept, Thresholds(), expire_cache_s=0))
    monitor.observe_heads({"shop/a": 1000}, NOW_MS, created={"shop/a": listed})
    step = replace(commit(1, 900), fingerprints={"shop/a": recorded})
    monitor.observe_commits("orders", [step], NOW_MS)
    assert monitor.lag("orders", NOW_MS).recreated == recreated
    again = replace(commit(2, 950), fingerprints={"shop/a": replace(recorded, create_revision=listed)})
    monitor.observe_commits("orders", [again], NOW_MS)
    assert monitor.lag("orders", NOW_MS).recreated == []


def test_commits_count_from_before_their_heads_were_known() -> None:
    kept = History(HistoryOptions(intervals=2))
    monitor = Monitor("gazette", kept, Evaluator(kept, Thresholds(), expire_cache_s=0))
    steps = [commit(1, 100, 20), commit(2, 400, 10), commit(3, 900)]
    monitor.observe_commits("orders", steps, NOW_MS)
    assert monitor.lag("orders", NOW_MS).unlisted == ["shop/a"]
    monitor.observe_heads({"shop/a": 1000}, NOW_MS)
    lag = monitor.lag("orders", NOW_MS)
    assert (lag.unlisted, lag.lag_bytes, lag.verdict.partitions[0].complete) == ([], 100, 1.0)


def planned(order: int, offset: int, head: int, ago_s: float) -> GroupCommit:
    """Return a step whose batch saw a write head when it was planned."""
    at_ms = round(NOW_MS - ago_s * 1000)
    return GroupCommit(order, at_ms, {"shop/a": offset}, {"shop/a": head}, at_ms - 1000)


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        ([planned(at, 100 * at, 100 * at, 100 - 10 * at) for at in range(1, 10)], "OK"),
        ([planned(at, 100 * at, 100 * at, 310 - at) for at in range(1, 10)], "OK"),
        ([planned(at, 100 * at, 100 * at, 3000 - at) for at in range(1, 10)], "STOP"),
        ([planned(at, 100 * at, 110 * at, 100 - 10 * at) for at in range(1, 10)], "WARN"),
        ([planned(at, 100 * at, 110 * at, 310 - at) for at in range(1, 10)], "STOP"),
        ([planned(at, 100, 110 * at, 100 - 10 * at) for at in range(1, 10)], "STALL"),
    ],
    ids=["one trigger behind", "between bursts", "dead", "falling behind", "dead while behind", "stuck"],
)
def test_a_history_read_back_is_judged_by_the_heads_that_batches_saw(
    monitor: Monitor, steps: list[GroupCommit], verdict: str
) -> None:
    """After a start, the verdict equals that of a monitor that has watched the query all along."""
    monitor.observe_commits("orders", steps, NOW_MS)
    assert monitor.lag("orders", NOW_MS).verdict.partitions[0].status.name == verdict


def test_a_stopped_query_promises_nothing(monitor: Monitor) -> None:
    """Past speed predicts nothing once the query is silent or its feed cannot be read."""
    monitor.observe_commits("orders", [commit(1, 100, 20), commit(2, 700, 10)], NOW_MS)
    assert monitor.lag("orders", NOW_MS).journals[0].read_bytes_per_s == 60.0
    assert monitor.lag("orders", NOW_MS + 11_000).journals[0].read_bytes_per_s == 0
    monitor.observe_heads({"shop/a": 1100}, NOW_MS + 11_000)
    late = monitor.lag("orders", NOW_MS + 11_000).journals[0]
    assert (late.status.status.name, late.catch_up_ms) == ("STOP", None)
    monitor.observe_feed("table", ("orders",), NOW_MS, "gone")
    assert monitor.lag("orders", NOW_MS).journals[0].catch_up_ms is None


def test_retention_is_a_risk_where_it_is_known(monitor: Monitor) -> None:
    """A journal without retention keeps its fragments."""
    monitor.observe_commits("orders", [commit(1, 400)], NOW_MS)
    stored = [TimedFragment(0, 1000, NOW_MS - 5000)]
    monitor.observe_stores({"shop/a": JournalStore(stored, 8000)})
    assert monitor.lag("orders", NOW_MS).journals[0].loss_in_ms == 3000
    monitor.observe_stores({"shop/a": JournalStore(stored, None)})
    assert monitor.lag("orders", NOW_MS).journals[0].loss_in_ms is None


def test_two_groups_of_one_name_are_not_mixed_up(monitor: Monitor) -> None:
    monitor.observe_commits("orders", [commit(1, 400)], NOW_MS, source="table one")
    with pytest.raises(InputError, match="both that of table one and of table two; give one of them another"):
        monitor.observe_commits("orders", [commit(1, 100)], NOW_MS, source="table two")


def test_a_journal_that_is_gone_is_not_at_any_head(monitor: Monitor) -> None:
    """The last journal of a prefix removes the topic too. As in Burrow, the group stays."""
    monitor.observe_commits("orders", [commit(1, 400)], NOW_MS)
    monitor.forget_journals(["shop/a"])
    assert monitor.history.fetch_topics("gazette") == []
    lag = monitor.lag("orders", NOW_MS)
    assert (lag.verdict.status.name, lag.journals) == ("OK", [])


def test_a_journal_that_is_gone_has_no_verdict(monitor: Monitor) -> None:
    """Its unread bytes are gone too, so it must not be STOP forever. Later commits still name it."""
    monitor.observe_heads({"shop/b": 50}, NOW_MS)
    offsets = {"shop/a": 400, "shop/b": 50}
    monitor.observe_commits("orders", [GroupCommit(1, NOW_MS - 1000, offsets)], NOW_MS)
    assert monitor.lag("orders", NOW_MS).verdict.status.name == "ERR"
    monitor.forget_journals(["shop/a"])
    for order in (2, 3):
        lag = monitor.lag("orders", NOW_MS)
        assert (lag.verdict.status.name, lag.lag_bytes) == ("OK", 0)
        assert [each.journal for each in lag.journals] == ["shop/b"]
        assert lag.unlisted == ["shop/a"]
        monitor.observe_commits("orders", [GroupCommit(order, NOW_MS, offsets)], NOW_MS)
    monitor.observe_heads({"shop/a": 500}, NOW_MS)
    assert monitor.lag("orders", NOW_MS).lag_bytes == 100


class Log:
    def __init__(self) -> None:
        self.operations: list[tuple[str, str | None]] = []
        self.broken = False
        self.time: str | None = None
        self.asked: list[int | None] = []

    def rows(self, limit: int | None) -> Sequence[HistoryRow]:
        if self.broken:
            raise InputError("the log cannot be read")
        self.asked.append(limit)
        rows = history(*self.operations)[:limit]
        return rows if self.time is None else [replace(row, time=self.time) for row in rows]


def offsets(monitor: Monitor, group: str) -> list[int]:
    windows = monitor.history.fetch_consumer("gazette", group, now_ms=10_000) or {}
    return [each.offset for each in windows["a"][0].offset_commits if each is not None]


def test_a_table_is_read_whole_once_and_then_what_is_new(monitor: Monitor) -> None:
    monitor.observe_heads({"a/b": 1000}, 10_000)
    log = Log()
    log.operations = [("WRITE", entry(at)) for at in range(1, 31)]
    feed = TableFeed("/lake/orders", fetch=log.rows)
    assert poll_all([feed], monitor, 10_000) == []
    assert offsets(monitor, "orders") == list(range(21, 31))
    log.asked.clear()
    assert poll_all([feed], monitor, 10_000) == []
    assert log.asked == [1]
    log.operations.append(("RESTORE", "0"))
    assert poll_all([feed], monitor, 10_000) == []
    assert log.asked == [1, 1, 17, None]
    assert offsets(monitor, "orders")[-2:] == [30, 1]
    assert feed.groups == ("orders",)


def test_a_table_that_is_created_again_is_read_from_its_beginning(monitor: Monitor) -> None:
    """Its versions are below the known ones. An Iceberg table that is rolled back looks the same."""
    monitor.observe_heads({"a/b": 1000}, 10_000)
    log = Log()
    log.operations = [("WRITE", entry(at)) for at in range(1, 31)]
    feed = TableFeed("/lake/orders", fetch=log.rows)
    assert poll_all([feed], monitor, 10_000) == []
    log.operations = [("WRITE", entry(at)) for at in (3, 5)]
    assert poll_all([feed], monitor, 10_000) == []
    assert (offsets(monitor, "orders"), monitor.last_order("orders")) == ([3, 5], 1)
    log.operations.append(("WRITE", entry(7)))
    assert poll_all([feed], monitor, 10_000) == []
    assert offsets(monitor, "orders") == [3, 5, 7]
    for at in (0, 2):  # It has as many commits as before, or more.
        log.time = f"2026-07-26 10:00:0{at}.000"
        log.operations = [("WRITE", entry(at)), *[("WRITE", entry(9, "other"))] * (2 + at)]
        assert poll_all([feed], monitor, 10_000) == []
        assert (offsets(monitor, "orders"), feed.groups) == ([at], ("orders", "other"))
    log.operations = []
    assert poll_all([feed], monitor, 10_000) == []
    assert monitor.groups() == []


def test_a_table_with_two_writers_is_two_groups(monitor: Monitor) -> None:
    log = Log()
    log.operations = [("WRITE", entry(1)), ("WRITE", entry(2, "other"))]
    plain, renamed = TableFeed("/lake/a", fetch=log.rows), TableFeed("/lake/b", "mine", fetch=log.rows)
    assert poll_all([plain, renamed], monitor, 10_000) == []
    assert plain.groups == ("orders", "other")
    assert renamed.groups == ("mine/orders", "mine/other")


def test_a_feed_that_fails_leaves_what_was_known(monitor: Monitor) -> None:
    monitor.observe_heads({"a/b": 1000}, 10_000)
    log, other = Log(), Log()
    log.operations = [("WRITE", entry(1))]
    other.operations = [("WRITE", entry(1, "other"))]
    feeds: list[Feed] = [TableFeed("/lake/a", fetch=log.rows), TableFeed("/lake/b", fetch=other.rows)]
    poll_all(feeds, monitor, 10_000)
    log.broken = True
    other.operations.append(("WRITE", entry(2, "other")))
    assert poll_all(feeds, monitor, 10_000) == ["table /lake/a: the log cannot be read"]
    assert monitor.lag("orders", 10_000).failure == "the log cannot be read"
    assert offsets(monitor, "orders") == [1]
    assert offsets(monitor, "other") == [1, 2]
    log.broken = False
    assert poll_all(feeds, monitor, 10_000) == []
    assert monitor.lag("orders", 10_000).failure is None


def test_alarms_are_raised_by_what_is_known(monitor: Monitor) -> None:
    monitor.observe_commits("orders", [commit(1, 400)], NOW_MS)
    stored = [TimedFragment(0, 1000, NOW_MS - 5000)]
    monitor.observe_stores({"shop/a": JournalStore(stored, 8000)})
    lag = monitor.lag("orders", NOW_MS)
    assert Alarms().raised(lag) == []
    assert Alarms(600, 5000, 3000).raised(lag) == []
    assert Alarms(599, 4999, 3001).raised(lag) == [
        "lag_bytes=600 above 599",
        "age_ms=5000 above 4999",
        "loss_in_ms=3000 below 3001 journal=shop/a",
    ]
    with pytest.raises(OptionError, match="max_age_ms"):
        Alarms(max_age_ms=-1)


def test_a_second_writer_leaves_no_group_without_a_feed(monitor: Monitor) -> None:
    """The name of the table then begins the names of both groups."""
    monitor.observe_heads({"a/b": 1000}, 10_000)
    log = Log()
    log.operations = [("WRITE", entry(1)), ("WRITE", entry(2))]
    feed = TableFeed("/lake/orders", "mine", fetch=log.rows)
    assert poll_all([feed], monitor, 10_000) == []
    assert monitor.groups() == ["mine"]
    log.operations.append(("WRITE", entry(3, "other")))
    assert poll_all([feed], monitor, 10_000) == []
    assert monitor.groups() == ["mine/orders", "mine/other"]
    assert offsets(monitor, "mine/orders") == [1, 2]
