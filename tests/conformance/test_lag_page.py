"""The lag monitor's page in a real browser: the worst groups come first, and unknown values show as such."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gazette_spark.lag import Evaluator, GroupCommit, History, HistoryOptions, Monitor, Thresholds
from gazette_spark.lag.api import Api, HttpAnswer, HttpRequest
from gazette_spark.lag.estimates import TimedFragment
from gazette_spark.lag.group_lag import Alarms, JournalStore
from gazette_spark.lag.server import LagService
from gazette_spark.query_progress import JournalTransactions, OpenTransaction
from tests.browser import Browser

NOW_MS = 1_790_000_000_000
MINUTE_MS = 60_000
PICTURES = Path("docs/images")
MAX_PICTURE_BYTES = 200_000

DASH = "\N{EN DASH}"
"""Text shown for an unknown forecast."""


def new_monitor() -> Monitor:
    """Return a monitor without data, whose verdicts are never cached."""
    history = History(HistoryOptions())
    return Monitor("gazette", history, Evaluator(history, Thresholds(), expire_cache_s=0))


@dataclass
class Served:
    browser: Browser
    monitor: Monitor
    address: str

    def text(self, selector: str) -> list[str]:
        """Return the text of each visible element that a selector matches."""
        found: list[str] = self.browser.evaluate(
            f"[...document.querySelectorAll({selector!r})]"
            ".filter(each => each.checkVisibility()).map(each => each.textContent)"
        )
        return found

    def click(self, *selectors: str) -> None:
        for selector in selectors:
            self.browser.evaluate(f"document.querySelector({selector!r}).click()")


class Still(LagService):
    """A service whose monitor polls only when a test asks it to."""

    def round(self) -> None:
        """Leave the monitor as it is."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@contextmanager
def opened(browser: Browser, monitor: Monitor, api: type[Api] = Api) -> Iterator[Served]:
    monitor.observe_round(NOW_MS)
    answers = api(monitor, lambda: NOW_MS, "a-host", {"cluster": {"gazette": {}}})
    with Still(answers, [], listen="127.0.0.1:0") as service:
        browser.open(service.address)
        yield Served(browser, monitor, service.address)


@dataclass(frozen=True)
class Query:
    """A query that commits each minute until its last one; minutes are counted from now."""

    name: str
    offsets: Callable[[int], dict[str, int]]
    heads: Callable[[int], dict[str, int]]
    last: int = 0

    def commit(self, at: int) -> GroupCommit:
        at_ms = NOW_MS + at * MINUTE_MS
        return GroupCommit(at + 10_000, at_ms, self.offsets(at), self.heads(at), at_ms - 2000)


START = 10**10


def clicks() -> Query:
    """Return a query that falls behind now and then, and catches up."""
    rates = {f"shop/clicks/{at}": 2_000_000 + 500_000 * at for at in range(3)}

    def offsets(at: int) -> dict[str, int]:
        return {each: START + at * rate for each, rate in rates.items()}

    def heads(at: int) -> dict[str, int]:
        behind = abs((at + 75) % 300 - 150)
        return {each: offset + behind * rates[each] // 40 for each, offset in offsets(at).items()}

    return Query("clicks", offsets, heads)


def orders() -> Query:
    """Return a query that has been slower than its writers for ten hours."""
    rates = {"shop/orders/0": 9_000_000, "shop/orders/1": 8_000_000}

    def offsets(at: int) -> dict[str, int]:
        return {each: START + at * rate // 2 for each, rate in rates.items()}

    def heads(at: int) -> dict[str, int]:
        return {each: offset + max(1, 600 + at) * rates[each] // 3 for each, offset in offsets(at).items()}

    return Query("orders", offsets, heads)


def payments() -> Query:
    """Return a query that stopped 90 minutes ago, when one of its journals still had unread bytes."""
    names = [f"shop/payments/{at}" for at in range(12)]

    def offsets(at: int) -> dict[str, int]:
        return dict.fromkeys(names, START + min(at, -90) * 800_000)

    def heads(at: int) -> dict[str, int]:
        return offsets(at) | {names[3]: offsets(at)[names[3]] + max(0, at + 300) * 900_000}

    return Query("payments", offsets, heads, last=-90)


def restarted() -> Monitor:
    """Return a monitor that began six minutes ago, of three queries that have run for a day."""
    monitor = new_monitor()
    queries = [clicks(), orders(), payments()]
    for at in range(-6, 1):
        now_ms = NOW_MS + at * MINUTE_MS
        monitor.observe_feed("write heads", (), now_ms, of_heads=True)
        for query in queries:
            monitor.observe_heads(query.heads(at), now_ms - 1000)
            if at > -6:
                monitor.observe_round(now_ms - 1000)
            monitor.observe_feed(f"table /lake/{query.name}", (query.name,), now_ms)
            minutes = range(-1445, at + 1) if at == -6 else range(at, at + 1)
            steps = [query.commit(each) for each in minutes if each <= query.last]
            monitor.observe_commits(query.name, steps, now_ms, source=query.name)
        monitor.observe_round(now_ms)
    stored = [TimedFragment(0, 10**11, NOW_MS - 30 * MINUTE_MS)]
    monitor.observe_stores({"shop/payments/3": JournalStore(stored, 240 * MINUTE_MS)})
    return monitor


def test_the_worst_comes_first_and_a_day_is_known_after_a_start(browser: Browser) -> None:
    with opened(browser, restarted()) as page:
        assert page.text(".group .name > :first-child") == ["payments", "orders", "clicks"]
        assert page.text(".group .badge") == ["ERR", "WARN", "OK"]
        assert page.text(".group .name .note") == [
            "12 journals · 1 STOP",
            "2 journals · 2 WARN",
            "3 journals",
        ]
        assert page.text(".detail") == []
        cells = page.text("[data-group=payments] .group td")
        assert (cells[2].endswith(" MiB"), cells[3], cells[6]) == (True, "0 B/s", DASH)
        page.click("[data-group=payments] .group", "[data-group=clicks] .group")
        browser.wait("document.querySelectorAll('.detail:not(.hidden) path.area').length === 4")
        assert page.text("[data-group=payments] .detail .badge") == ["STOP"]
        cells = page.text("[data-group=payments] .detail tbody td")
        assert (cells[0], cells[4], cells[6]) == ("shop/payments/3", "0 B/s", DASH)
        labels = page.text("[data-group=payments] figure text")
        assert {"0 B", "0 B/s", "0 s", "12:00"} <= set(labels)
        assert any(each.startswith("maximum 2") for each in page.text("[data-group=payments] output"))
        picture = "document.querySelector('[data-group=clicks] figure svg')"
        browser.evaluate(f"{picture}.scrollIntoView()")
        left, top, width = browser.evaluate(
            f"(({{x, y, width}}) => [x, y, width])({picture}.getBoundingClientRect())"
        )
        browser.point_at(left + width / 2, top + 40)
        # All charts of the group show the same moment.
        browser.wait(
            "[...document.querySelectorAll('[data-group=clicks] output')].filter("
            r"each => / at \d\d:\d\d:\d\d$/.test(each.textContent)).length === 3"
        )
        assert browser.evaluate("document.title") == "(2) Lag"
        page.click('[data-hours="1"]')
        browser.wait("document.querySelector('[data-group=clicks] figcaption b').textContent === 'lag, 1 h'")
        # The address contains the open groups and the range.
        browser.open(browser.evaluate("location.href"))
        browser.wait("document.querySelectorAll('.detail:not(.hidden) path.area').length > 1")
        assert page.text("[aria-pressed=true]") == ["1 h"]


def test_groups_are_sorted_and_filtered(browser: Browser) -> None:
    names = ".group .name > :first-child"
    with opened(browser, restarted()) as page:
        by_name, by_lag = (f"thead th:nth-child({column}) button" for column in (2, 3))
        for heading, order in (
            (by_name, ["clicks", "orders", "payments"]),
            (by_name, ["payments", "orders", "clicks"]),
            (by_lag, ["orders", "payments", "clicks"]),
            (by_lag, ["clicks", "payments", "orders"]),
            (by_lag, ["payments", "orders", "clicks"]),
        ):
            page.click(heading)
            shown = f"[...document.querySelectorAll('{names}')].map(each => each.textContent).join()"
            browser.wait(f"{shown} === '{','.join(order)}'")
        assert page.text("#verdicts button") == ["ERR 1", "WARN 1", "OK 1"]
        page.click("#verdicts button:nth-child(2)")
        browser.wait(f"document.querySelectorAll('{names}').length === 1")
        assert page.text(names) == ["orders"]
        browser.open(browser.evaluate("location.href"))
        assert page.text(names) == ["orders"]
        assert browser.evaluate("location.hash") == "#verdict=WARN"


def test_a_verdict_leads_to_what_to_do(browser: Browser) -> None:
    with opened(browser, restarted()) as page:
        page.click(".group .badge.ERR")
        assert page.text("dt.found") == ["ERR"]
        assert browser.evaluate("document.querySelector('dt.found').getBoundingClientRect().y < innerHeight")
        assert page.text(".detail") == []


def test_marks_and_incidents_are_shown(browser: Browser) -> None:
    history = History(HistoryOptions())
    evaluator = Evaluator(history, Thresholds(), expire_cache_s=0)
    monitor = Monitor("gazette", history, evaluator, alarms=Alarms(max_lag_bytes=100))
    steps = [
        GroupCommit(at, NOW_MS + (at - 20) * MINUTE_MS, {"shop/a": at}, {"shop/a": 900}) for at in range(20)
    ]
    steps[5], steps[9] = replace(steps[5], event="start"), replace(steps[9], event="restore")
    monitor.observe_commits("orders", steps, NOW_MS)
    monitor.observe_heads({"shop/a": 900}, NOW_MS)
    with opened(browser, monitor) as page:
        browser.wait("document.querySelector('figure .mark') !== null")
        titles = (
            "[...document.querySelectorAll('figure:first-child .mark title')].map(each => each.textContent)"
        )
        start, restore = browser.evaluate(titles)
        assert start.startswith("the query started at ")
        assert restore.startswith("RESTORE of the table at ")
        # There is no data before the first commit, so the range begins there.
        assert page.text("figcaption b")[0].startswith("lag, since ")
        assert page.text("#incidents summary") == ["Incidents of the last 7 days: 1"]
        page.click("#incidents summary")
        cells = page.text("#incidents td")
        assert (cells[0], cells[1], cells[3:]) == (
            "alarm",
            "orders",
            ["for 0 s, not ended", "lag_bytes=881 above 100"],
        )


def test_the_charts_are_drawn_again_for_another_width(browser: Browser) -> None:
    with opened(browser, restarted()) as page:
        page.click("[data-group=clicks] .group")
        browser.wait("document.querySelectorAll('path.area').length > 1")
        axes = "[...document.querySelectorAll('figure .axis')]"
        ends = f"Math.max(...{axes}.map(each => +each.getAttribute('x2')))"
        before = browser.evaluate(ends)
        try:
            browser.resize(390, 900)
            browser.wait(f"{ends} < {before}")
            assert browser.evaluate("document.documentElement.scrollWidth") <= 390
        finally:
            browser.resize(1280, 900)


def many(journals: int) -> Monitor:
    monitor = new_monitor()
    names = [f"shop/events/part-{at:05}" for at in range(journals)]
    bad = set(names[:: journals // 100])
    for at in range(-10, 1):
        now_ms = NOW_MS + at * MINUTE_MS
        monitor.observe_heads({each: 2_000 + (each in bad) * 1_000 * (11 + at) for each in names}, now_ms)
        step = GroupCommit(at + 20, now_ms, {each: 2_000 + (each in bad) * (11 + at) for each in names})
        monitor.observe_commits("events", [step], now_ms)
        monitor.observe_round(now_ms)
    return monitor


def test_five_thousand_journals_do_not_stall_the_page(
    browser: Browser, record_testsuite_property: Callable[[str, object], None]
) -> None:
    monitor = many(5000)
    rows = ".detail tbody tr"
    with opened(browser, monitor) as page:
        assert page.text(".group .name .note") == ["5,000 journals · 100 WARN"]
        assert len(page.text(rows)) == 50
        assert page.text(".fold button") == ["show 50 more of 50", "show 4,900 OK"]
        asked = [each.removeprefix(page.address) for each in browser.requests]
        assert asked == [
            "/",
            "/gazette/v1/groups",
            "/gazette/v1/groups/events?match=&ok=no&limit=50",
        ]
        browser.evaluate(
            "document.querySelectorAll('.detail tbody tr').forEach(row => { row.before_ = true; })"
        )
        monitor.observe_heads({"shop/events/part-00000": 10**9}, NOW_MS)
        monitor.observe_round(NOW_MS + 1)
        browser.evaluate("refresh()")
        browser.wait("document.querySelector('.detail tbody td.number').textContent === '953.7 MiB'")
        assert browser.evaluate(
            "[...document.querySelectorAll('.detail tbody tr')].every(row => row.before_)"
        )
        times = browser.evaluate("({...document.getElementById('note').dataset})")
        record_testsuite_property("lag_page_asked_ms", times["askedMs"])
        record_testsuite_property("lag_page_shown_ms", times["shownMs"])
        browser.evaluate("document.querySelector('.fold button:last-child').click()")
        browser.wait("document.querySelector('.fold button:last-child')?.textContent === 'fold OK journals'")
        assert len(page.text(rows)) == 50
        browser.evaluate(
            "(() => { const box = document.getElementById('filter'); box.value = 'PART-04999';"
            " box.dispatchEvent(new Event('input')); })()"
        )
        browser.wait("document.querySelectorAll('.detail tbody tr').length === 1")
        assert page.text(".detail td.name") == ["shop/events/part-04999"]
        assert page.text(".detail .badge") == ["OK"]
        # The address contains the filter.
        browser.open(browser.evaluate("location.href"))
        assert page.text(".detail td.name") == ["shop/events/part-04999"]


def test_what_is_unknown_is_shown_as_unknown(browser: Browser) -> None:
    """Without a broker the page must not show a lag of 0; an unreadable table still has its row."""
    monitor = new_monitor()
    monitor.observe_commits("orders", [GroupCommit(1, NOW_MS - 1000, {"shop/a": 400})], NOW_MS)
    monitor.observe_feed("write heads", (), NOW_MS, "no broker", of_heads=True)
    monitor.observe_feed("table /lake/orders", ("orders",), NOW_MS)
    monitor.observe_feed("table /lake/lost", (), NOW_MS, "no such table")
    with opened(browser, monitor) as page:
        assert page.text(".group .name > :first-child") == ["orders", "table /lake/lost"]
        assert page.text(".group .badge") == ["unknown", "unknown"]
        assert page.text(".group td:nth-child(3)") == ["unknown", "unknown"]
        assert page.text("#banner") == ["write heads cannot be read: no broker"]
        page.click(".group")
        browser.wait("document.querySelector('.detail:not(.hidden)') !== null")
        assert page.text("figcaption b")[:2] == [
            "no lag is known in this time",
            "no oldest unread is known in this time",
        ]
        assert "0 B" not in browser.page().words


def test_open_transactions_have_a_column(browser: Browser) -> None:
    monitor = new_monitor()
    reached = {"shop/a": 900, "shop/b": 800, "shop/c": 700}
    monitor.observe_heads(dict.fromkeys(reached, 1000), NOW_MS)
    monitor.observe_commits("orders", [GroupCommit(1, NOW_MS, reached)], NOW_MS)
    monitor.observe_commits("others", [GroupCommit(1, NOW_MS, reached)], NOW_MS, source="another")
    found = JournalTransactions("shop/a", 900, 2, (OpenTransaction("01", 400, NOW_MS - 5 * MINUTE_MS),))
    monitor.observe_transactions("orders", [found], {"shop/a", "shop/b"}, {"shop/c"}, NOW_MS)
    with opened(browser, monitor) as page:
        page.click("[data-group=orders] .group", "[data-group=others] .group")
        browser.wait("document.querySelectorAll('.detail:not(.hidden)').length === 2")
        cells = "[data-group=%s] .detail tbody td:nth-child(10)"
        assert page.text(cells % "orders") == ["unknown", "0", "2, ≥ 5 min, 500 B"]
        assert page.text(cells % "others") == []
        title = f"document.querySelectorAll('{cells % 'orders'}')[2].title"
        assert browser.evaluate(title) == "producer 01 since offset 400"


def test_a_page_without_groups_says_what_it_watches(browser: Browser) -> None:
    monitor = new_monitor()
    monitor.observe_heads({"shop/a": 1}, NOW_MS)
    monitor.observe_feed("write heads", (), NOW_MS, of_heads=True)
    monitor.observe_feed("table /lake/orders", (), NOW_MS)
    with opened(browser, monitor) as page:
        assert re.fullmatch(
            r"table /lake/orders: read at \d\d:\d\d:\d\d, no ledger entry and no shard was found",
            page.text("#feeds li")[1],
        )


class DyingApi(Api):
    dead = False

    def answer(self, request: HttpRequest) -> HttpAnswer:
        return replace(super().answer(request), status=503) if DyingApi.dead else super().answer(request)


def test_a_page_whose_monitor_died_says_since_when(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = new_monitor()
    monitor.observe_heads({"shop/a": 100}, NOW_MS)
    monitor.observe_commits("orders", [GroupCommit(1, NOW_MS, {"shop/a": 100})], NOW_MS)
    with opened(browser, monitor, DyingApi) as page:
        assert page.text("#banner") == []
        monkeypatch.setattr(DyingApi, "dead", True)
        browser.evaluate("refresh()")
        browser.wait("document.body.classList.contains('dead')")
        (banner,) = page.text("#banner")
        assert re.fullmatch(r"no data since \d\d:\d\d:\d\d: /gazette/v1/groups: 503", banner)
        assert browser.evaluate("document.title") == "no data · Lag"
        shown = browser.page()
        assert {"OK", "0 B"} <= set(shown.words)
        assert shown.charts == ["shop/a"]
        assert browser.evaluate("getComputedStyle(document.querySelector('main')).opacity") == "0.45"
        monkeypatch.setattr(DyingApi, "dead", False)
        browser.evaluate("refresh()")
        browser.wait("!document.body.classList.contains('dead')")
        assert page.text("#banner") == []


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_the_pictures_of_the_docs(browser: Browser, colours: str) -> None:
    """The docs show pictures of the page; GAZETTE_SPARK_PICTURES=yes renews them. The page fits a phone."""
    browser.resize(1280, 800)
    browser.prefer(colours)
    with opened(browser, restarted()) as page:
        page.click("[data-group=payments] .group", "[data-group=orders] .group")
        browser.wait("document.querySelectorAll('path.area').length > 3")
        picture = browser.picture()
        assert picture.startswith(b"\x89PNG")
        assert len(picture) < MAX_PICTURE_BYTES
        path = PICTURES / f"lag-page-{colours}.png"
        if os.environ.get("GAZETTE_SPARK_PICTURES") == "yes":
            path.write_bytes(picture)
        assert 0 < path.stat().st_size < MAX_PICTURE_BYTES
        background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") == (colours == "light")
        assert all(each.startswith((page.address, "data:")) for each in browser.requests)
        browser.resize(500, 900)
        assert browser.evaluate("document.documentElement.scrollWidth") <= 500
