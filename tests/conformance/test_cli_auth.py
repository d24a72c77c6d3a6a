"""``gazette-spark journals`` reads its secrets from gazctl's environment variables, and prints none."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gazette_spark import EmbeddedBroker
from gazette_spark.client import Capability, Claims, KeySet, parse_selector
from tests.conformance.command import SPECS, Command
from tests.rig.brokers import DeployedBroker

KEY = base64.b64encode(b"a key for tests, no secret at all").decode()


class _Deployed(DeployedBroker):
    def gazctl_bytes(self, *args: str, input: bytes | str | None = None) -> bytes:  # noqa: A002 - as its base
        return super().gazctl_bytes(*args, f"--broker.auth-keys={KEY}", input=input)


@pytest.fixture(
    scope="module", params=["embedded", pytest.param("deployed", marks=pytest.mark.deployed_broker)]
)
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    folder: Path = tmp_path_factory.mktemp("guarded")
    if request.param == "embedded":
        with EmbeddedBroker(folder, auth_keys=KEY) as embedded:
            yield Command(embedded.endpoint)
        return
    with _Deployed(folder, broker_args=[f"--broker.auth-keys={KEY}"]) as deployed:
        yield Command(deployed.endpoint)


def test_keys_open_everything(guarded: Command, fresh_prefix: str) -> None:
    name = f"{fresh_prefix}orders"
    guarded.done("apply", stdin=SPECS.format(prefix=fresh_prefix), BROKER_AUTH_KEYS=KEY)
    guarded.done("append", name, stdin=b"content", BROKER_AUTH_KEYS=KEY)
    assert guarded.done("read", "-l", f"prefix={fresh_prefix}", BROKER_AUTH_KEYS=KEY) == "content"
    rows = guarded.done("fragments", name, "-o", "jsonl", BROKER_AUTH_KEYS=KEY)
    assert json.loads(rows)["end"] == 7


def test_a_token_opens_what_it_claims(guarded: Command, fresh_prefix: str) -> None:
    guarded.done("apply", stdin=SPECS.format(prefix=fresh_prefix), BROKER_AUTH_KEYS=KEY)
    claims = Claims(Capability.LIST, parse_selector(f"name={fresh_prefix}orders"))
    token = KeySet.parse(KEY).sign(claims, now=time.time())
    listed = guarded.done("list", "-o", "jsonl", BROKER_AUTH_TOKEN=token)
    assert [json.loads(line)["name"] for line in listed.splitlines()] == [f"{fresh_prefix}orders"]
    refused = guarded("append", f"{fresh_prefix}orders", stdin=b"content", BROKER_AUTH_TOKEN=token)
    assert refused.exit_code == 1
    assert len(refused.stderr.splitlines()) == 1
    assert token not in refused.output


@pytest.mark.parametrize("variable", ["BROKER_AUTH_KEYS", "BROKER_AUTH_TOKEN"])
def test_bad_secrets_are_named_by_their_variable(guarded: Command, variable: str) -> None:
    done = guarded("list", **{variable: "not a secret"})
    assert done.exit_code == 2
    assert variable in done.stderr
    assert "not a secret" not in done.output


def test_without_a_token_nothing_is_told(guarded: Command) -> None:
    done = guarded("list")
    assert done.exit_code == 1
    assert "not authorized" in done.stderr
