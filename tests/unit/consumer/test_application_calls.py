"""Tests that both hosts call an application in the same order, and that errors name the step."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import Any, cast

import pytest

from gazette_spark.consumer import DeferToNextTransaction, Shard
from gazette_spark.consumer.application import Application
from gazette_spark.consumer.transaction import ApplicationCalls
from gazette_spark.errors import ShardFailedError
from gazette_spark.message import Envelope
from gazette_spark.protocol import consumer_pb2 as pc
from tests.rig.histories import messages

ENVELOPE = messages("A1O")[0]


class Recording:
    """An application that records its calls and fails in one of them."""

    def __init__(self, failing: str = "", error: Exception | None = None) -> None:
        self.calls: list[str] = []
        self.commits: list[Future[None]] = []
        self.failing = failing
        self.error = error or OSError("on purpose")

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.failing:
            raise self.error

    def begin_txn(self, *_: object) -> None:
        self._call("begin_txn")

    def consume_message(self, *_: object) -> None:
        self._call("consume_message")

    def finalize_txn(self, *_: object) -> None:
        self._call("finalize_txn")

    def finish_txn(self, _shard: object, _store: object, commit: Future[None]) -> None:
        self.commits.append(commit)
        self._call("finish_txn")


class OneShard:
    spec = pc.ShardSpec(id="shard-000")


def calls_of(app: Recording) -> ApplicationCalls:
    typed = cast("Application[Any]", app)
    return ApplicationCalls(typed, cast(Shard, OneShard()), None, cast(Any, None))


def run(calls: ApplicationCalls, commit: Future[None], envelope: Envelope = ENVELOPE) -> None:
    try:
        calls.begin()
        assert calls.consume(envelope)
        calls.finalize()
        calls.finish(commit)
    except ShardFailedError as error:
        calls.abort(error)
        raise


def test_a_transaction_in_order() -> None:
    app, commit = Recording(), Future[None]()
    run(calls_of(app), commit)
    assert app.calls == ["begin_txn", "consume_message", "finalize_txn", "finish_txn"]
    assert app.commits == [commit]


@pytest.mark.parametrize(
    ("failing", "finishes"),
    [("begin_txn", 0), ("consume_message", 1), ("finalize_txn", 1), ("finish_txn", 1)],
)
def test_what_has_begun_is_finished_once(failing: str, finishes: int) -> None:
    """``finish_txn`` gets the error, and is called even after a failure."""
    app = Recording(failing)
    with pytest.raises(ShardFailedError, match="OSError: on purpose") as raised:
        run(calls_of(app), Future())
    assert raised.value.step.startswith(failing)
    assert app.calls.count("finish_txn") == finishes
    if failing in ("consume_message", "finalize_txn"):
        assert app.commits[0].exception(0) is raised.value


def test_only_a_later_message_may_be_deferred() -> None:
    """A transaction without its first message would be empty, and so would the next one."""
    app = Recording(error=DeferToNextTransaction())
    calls = calls_of(app)
    calls.begin()
    assert calls.consume(ENVELOPE)
    app.failing = "consume_message"
    assert not calls.consume(ENVELOPE)
    calls.finish(Future())
    calls.begin()
    with pytest.raises(ShardFailedError, match="deferred the first message") as raised:
        calls.consume(ENVELOPE)
    assert raised.value.step == "consume_message of journal 'a', offset 0"


def test_the_first_error_is_the_one_that_counts(caplog: pytest.LogCaptureFixture) -> None:
    app = Recording("finish_txn")
    calls = calls_of(app)
    calls.begin()
    with caplog.at_level(logging.ERROR):
        calls.abort(ValueError("first"))
    assert "finish_txn_failed shard=shard-000" in caplog.text
