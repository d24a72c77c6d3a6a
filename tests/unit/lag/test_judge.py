"""A single look at a table and its journals gives the same verdict as a monitor."""

from __future__ import annotations

import pytest

from gazette_spark.client import Client
from gazette_spark.errors import InputError
from gazette_spark.lag import GroupLag, judge_query
from tests.oracles.brokers import FakeClient, FakeJournal
from tests.unit.lag.test_monitor import Log
from tests.unit.ledger.test_positions import entry

CLIENT: Client = FakeClient({"a/b": FakeJournal(b"x" * 40), "other/b": FakeJournal(b"")})  # type: ignore[assignment]  # as far as it is asked


def judged(*operations: tuple[str, str | None], **arguments: str) -> GroupLag:
    log = Log()
    log.operations = list(operations)
    return judge_query(CLIENT, "/lake/orders", journals="a/", fetch=log.rows, **arguments)  # type: ignore[arg-type]  # the app id


def test_a_query_is_judged() -> None:
    lag = judged(*[("WRITE", entry(at)) for at in range(1, 31)])
    assert (lag.lag_bytes, [journal.journal for journal in lag.journals]) == (10, ["a/b"])
    assert lag.verdict.status.name == "ERR", "it has not committed since 1970"


def test_one_stream_of_several_is_named() -> None:
    """The caller has to choose, because the verdict of either stream would be a guess."""
    two = (("WRITE", entry(10)), ("WRITE", entry(20, "other")))
    with pytest.raises(InputError, match="table /lake/orders has the app ids orders, other: name one"):
        judged(*two)
    assert judged(*two, app_id="other").lag_bytes == 20
    with pytest.raises(InputError, match="has no app id 'third', only orders, other"):
        judged(*two, app_id="third")


def test_what_cannot_be_read_is_an_error() -> None:
    """A missing verdict is better than one about outdated values."""
    with pytest.raises(InputError, match="table /lake/orders has no ledger"):
        judged()
    log = Log()
    log.broken = True
    with pytest.raises(InputError, match="table /lake/orders: the log cannot be read"):
        judge_query(CLIENT, "/lake/orders", fetch=log.rows)
    with pytest.raises(InputError, match="JOURNAL_NOT_FOUND"):
        judge_query(CLIENT, "/lake/orders", journals="a/typo", fetch=Log().rows)
