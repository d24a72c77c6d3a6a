"""A scripted broker, a client of it, and a client with short deadlines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gazette_spark.client import Client
from gazette_spark.testing.stub_broker import StubBroker


@pytest.fixture
def stub() -> Iterator[StubBroker]:
    with StubBroker() as broker:
        yield broker


@pytest.fixture
def client(stub: StubBroker) -> Iterator[Client]:
    """A client of ``stub`` that reopens silent streams soon and has a long deadline."""
    with Client(stub.endpoint, timeout_s=30, idle_timeout_s=0.5) as opened:
        yield opened


@pytest.fixture
def hasty(stub: StubBroker) -> Iterator[Client]:
    """A client of ``stub`` with a deadline of one second."""
    with Client(stub.endpoint, timeout_s=1.0, idle_timeout_s=0.4, connect_timeout_s=0.8) as opened:
        yield opened
