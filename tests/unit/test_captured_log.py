"""Shows that a test that counts its log records does not count those of brokers it shares with others."""

from __future__ import annotations

import logging
import threading

import pytest


def test_a_shared_broker_logs_into_no_test(caplog: pytest.LogCaptureFixture) -> None:
    """The broker's record comes from another thread, at any time; the client's is the test's own."""
    broker = logging.getLogger("gazette_spark.broker.storage.fragment_store")
    thread = threading.Thread(target=broker.warning, args=("fragment_skipped path=a",))
    thread.start()
    thread.join()
    logging.getLogger("gazette_spark.client").warning("read is retried")
    assert caplog.messages == ["read is retried"]
