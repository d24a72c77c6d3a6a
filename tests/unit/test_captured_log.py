"""A test that counts its log records must not count those of shared brokers."""

from __future__ import annotations

import logging
import threading

import pytest


def test_a_shared_broker_logs_into_no_test(caplog: pytest.LogCaptureFixture) -> None:
    """The broker's record may come from another thread at any time, but the client's is the test's own."""
    broker = logging.getLogger("gazette_spark.broker.storage.fragment_store")
    thread = threading.Thread(target=broker.warning, args=("fragment_skipped path=a",))
    thread.start()
    thread.join()
    logging.getLogger("gazette_spark.client").warning("read is retried")
    assert caplog.messages == ["read is retried"]
