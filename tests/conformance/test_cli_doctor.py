"""``gazette-spark doctor`` tries a broker, its TLS and its stores."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from gazette_spark.cli.main import main
from tests.conformance.command import Command
from tests.rig.brokers import BrokerHandle

pytestmark = pytest.mark.brokers("embedded")


def states(*args: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Return the exit code, and the findings about the broker."""
    answer = CliRunner(env={"PYSPARK_PYTHON": None}).invoke(
        main, ["doctor", "--timeout", "5", "--format", "json", *args]
    )
    found = {each["check"]: each for each in json.loads(answer.stdout)}
    return answer.exit_code, {name: found[name] for name in ("broker", "tls", "store") if name in found}


def test_a_broker_that_is_well(broker: BrokerHandle, run: Command, orders: str) -> None:
    """Journals are counted, and the stores they use are tried."""
    code, found = states("--broker", broker.endpoint)
    assert {name: each["state"] for name, each in found.items()} == {
        "broker": "ok",
        "tls": "skipped",
        "store": "ok",
    }
    assert f"{broker.endpoint}: " in found["broker"]["text"]
    assert code == 0


def test_a_store_that_is_not_there(broker: BrokerHandle, orders: str) -> None:
    """The broker's own words are shown."""
    code, found = states("--broker", broker.endpoint, "--store", "file:///not-there/")
    assert (code, found["store"]["state"]) == (1, "problem")
    assert found["store"]["text"].startswith("file:///not-there/: ")


def test_tls_on_a_plain_port(broker: BrokerHandle) -> None:
    """The two sides do not agree, and the finding is about TLS."""
    code, found = states("--broker", broker.endpoint.replace("http://", "https://"))
    assert (code, found["tls"]["state"]) == (1, "problem")
    assert "does not speak TLS" in found["tls"]["text"]
