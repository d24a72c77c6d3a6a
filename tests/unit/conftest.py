"""What all unit tests share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Pytest's ``caplog`` without records of brokers.

    A worker's tests share brokers, which continue to log about the journals of other tests from their own
    threads while a test counts its records.
    """

    def is_a_tests_own(record: logging.LogRecord) -> bool:
        return not record.name.startswith("gazette_spark.broker.")

    # Pytest keeps one handler for all tests.
    caplog.handler.addFilter(is_a_tests_own)
    yield caplog
    caplog.handler.removeFilter(is_a_tests_own)
