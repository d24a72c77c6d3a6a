"""A bare connection to the broker under test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gazette_spark.testing.brokers import BrokerHandle
from tests.conformance.command import SPECS, Command
from tests.conformance.wire import Wire, spec


@pytest.fixture
def wire(broker: BrokerHandle) -> Iterator[Wire]:
    """The generated stubs, connected to ``broker``."""
    with Wire(broker.endpoint) as opened:
        yield opened


@pytest.fixture
def journal(wire: Wire, journal_name: str) -> str:
    """An empty journal that takes appends; its name."""
    wire.create(spec(journal_name))
    return journal_name


@pytest.fixture
def run(broker: BrokerHandle) -> Command:
    """The command, with the broker's address."""
    return Command(broker.endpoint)


@pytest.fixture
def orders(run: Command, fresh_prefix: str) -> str:
    """A journal made by the command."""
    done = run("apply", stdin=SPECS.format(prefix=fresh_prefix))
    assert done.exit_code == 0, done.stderr
    return f"{fresh_prefix}orders"
