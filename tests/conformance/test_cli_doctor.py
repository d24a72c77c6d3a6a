"""``gazette-spark doctor`` checks a broker, its TLS and its stores."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from gazette_spark.broker import EmbeddedBroker
from gazette_spark.cli.main import main
from tests.conformance.command import Command
from tests.rig.brokers import BrokerHandle

pytestmark = pytest.mark.brokers("embedded")


def states(*args: str) -> tuple[int, dict[str, dict[str, str]]]:
    answer = CliRunner(env={"PYSPARK_PYTHON": None}).invoke(
        main, ["doctor", "--timeout", "5", "--format", "json", *args]
    )
    found = {each["check"]: each for each in json.loads(answer.stdout)}
    return answer.exit_code, {name: found[name] for name in ("broker", "tls", "store") if name in found}


def test_a_broker_that_is_well(broker: BrokerHandle, run: Command, orders: str) -> None:
    code, found = states("--broker", broker.endpoint)
    assert {name: each["state"] for name, each in found.items()} == {
        "broker": "ok",
        "tls": "skipped",
        "store": "ok",
    }
    assert f"{broker.endpoint}: " in found["broker"]["text"]
    assert found["store"]["text"].endswith(": the broker wrote, read and listed an object")
    assert code == 0


def test_a_store_that_is_not_there(broker: BrokerHandle, orders: str) -> None:
    code, found = states("--broker", broker.endpoint, "--store", "file:///not-there/")
    assert (code, found["store"]["state"]) == (1, "problem")
    assert found["store"]["text"].startswith("file:///not-there/: ")


def test_a_store_that_is_misspelt(broker: BrokerHandle) -> None:
    """The remedy is about the URL, not about a store."""
    _, found = states("--broker", broker.endpoint, "--store", "s3://bucket")
    assert found["store"]["text"].startswith("s3://bucket: has a path that does not end in '/'")
    assert found["store"]["remedy"].startswith("correct the URL")


def test_an_option_that_is_wrong(broker: BrokerHandle) -> None:
    """The remedy is not to start another broker."""
    _, found = states("--broker", broker.endpoint, "--tls-ca-file", "/not/there.pem")
    assert "'--tls-ca-file': got '/not/there.pem'" in found["broker"]["text"]
    assert found["broker"]["remedy"].startswith("correct the option")


def test_a_broker_that_wants_a_token(tmp_path: Path) -> None:
    """The remedy is a token, not another broker."""
    with EmbeddedBroker.start(tmp_path, auth_keys=base64.b64encode(b"k" * 32).decode()) as secured:
        _, found = states("--broker", secured.endpoint)
    assert found["broker"]["state"] == "problem"
    assert "BROKER_AUTH_TOKEN" in found["broker"]["remedy"]


@pytest.fixture
def no_buckets() -> Iterator[str]:
    """A server that answers as S3 does if a bucket does not exist."""
    with HTTPServer(("127.0.0.1", 0), NoBuckets) as server, ThreadPoolExecutor(1) as threads:
        serving = threads.submit(server.serve_forever, 0.01)
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.result()


class NoBuckets(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(404)

    do_HEAD = do_GET  # noqa: N815 - the name the server calls

    def log_message(self, *_args: object) -> None:
        """Keep the test's output free of requests."""


def test_a_bucket_that_is_not_there(
    broker: BrokerHandle, no_buckets: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded broker keeps fragments in a directory, so its own check says nothing about the bucket."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    server = f"endpoint_override={no_buckets}&scheme=http&region=eu-central-1"
    store = f"s3://no-such-bucket/?{server}"
    code, found = states("--broker", broker.endpoint, "--store", store)
    assert (code, found["store"]["state"]) == (1, "problem")
    assert f"keeps its fragments in {broker.file_root}" in found["store"]["text"]


def test_tls_on_a_plain_port(broker: BrokerHandle) -> None:
    code, found = states("--broker", broker.endpoint.replace("http://", "https://"))
    assert (code, found["tls"]["state"]) == (1, "problem")
    assert "does not speak TLS" in found["tls"]["text"]
