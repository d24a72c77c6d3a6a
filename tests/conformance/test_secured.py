"""The client and the commands use brokers that require certificates and tokens, in every supported way."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gazette_spark import Client
from gazette_spark.cli.main import main
from gazette_spark.client import Capability, TlsOptions
from gazette_spark.errors import AuthError, GazetteError, TlsError
from tests.conformance.wire import spec
from tests.rig.brokers import BrokerHandle
from tests.rig.secured import CANARY, KEYS, open_client, secured_broker, token

SHORT_S = 2.0
"""Lifetime of a token in seconds; at least one, because tokens expire on whole seconds."""


@pytest.fixture(
    scope="module", params=["embedded", pytest.param("deployed", marks=pytest.mark.deployed_broker)]
)
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerHandle]:
    with secured_broker(tmp_path_factory.mktemp("secured"), request.param) as broker:
        yield broker


@pytest.fixture
def journal(secured: BrokerHandle, journal_name: str) -> str:
    with open_client(secured) as client:
        client.create_journals(spec(journal_name))
        client.append(journal_name, b"content\n")
    return journal_name


def tls_of(broker: BrokerHandle, *, shows: bool = True) -> TlsOptions:
    made = broker.certificates
    assert made is not None
    ca, cert, key = (path.read_bytes() for path in (made.ca, made.client.cert, made.client.key))
    return TlsOptions(ca=ca, cert=cert, key=key) if shows else TlsOptions(ca=ca)


def put(path: Path, content: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(content)
    fresh.rename(path)


def test_contents_do_what_files_do(secured: BrokerHandle, journal: str) -> None:
    with Client(secured.endpoint, auth_keys=KEYS, tls=tls_of(secured), timeout_s=30) as client:
        client.append(journal, b"more\n")
        assert client.read(journal).read() == b"content\nmore\n"
        assert client.write_heads([journal] * 3)[journal] == 13


def test_without_a_certificate(secured: BrokerHandle, journal: str) -> None:
    """A client with the right key but no certificate fails at the first try, not after ten minutes."""
    tls = tls_of(secured, shows=False)
    with (
        Client(secured.endpoint, auth_keys=KEYS, tls=tls, timeout_s=600, connect_timeout_s=600) as client,
        pytest.raises(TlsError, match="without a certificate that it trusts") as caught,
    ):
        client.write_head(journal)
    assert CANARY not in str(caught.value)
    assert "tls.certFile" in str(caught.value)


def test_a_token_file_that_rotates_under_a_read(secured: BrokerHandle, journal: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(token(SHORT_S, Capability.READ))
    with (
        Client(secured.endpoint, token_file=str(path), tls=tls_of(secured), timeout_s=60) as client,
        client.read(journal, block=True) as reader,
    ):
        assert reader.read(8) == b"content\n"
        put(path, token(capability=Capability.READ))
        # Brokers accept an expired token within its leeway but end its calls immediately, without content.
        threading.Event().wait(SHORT_S)
        with open_client(secured) as other:
            other.append(journal, b"later\n")
        assert reader.read(6) == b"later\n"


def test_a_token_file_that_nobody_renews(secured: BrokerHandle, journal: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    expired = token(-3600)
    path.write_text(expired)
    with (
        Client(secured.endpoint, token_file=str(path), tls=tls_of(secured), timeout_s=600) as client,
        pytest.raises(AuthError, match=r"expired.*auth\.tokenFile") as caught,
    ):
        client.write_head(journal)
    assert expired not in str(caught.value)


def command(broker: BrokerHandle, *args: str, **environ: str) -> Result:
    cleared = dict.fromkeys(("BROKER_AUTH_KEYS", "BROKER_AUTH_TOKEN", "BROKER_AUTH_TOKEN_FILE"))
    env = {**cleared, "BROKER_ADDRESS": broker.endpoint, **environ}
    return CliRunner(env=env).invoke(main, list(args))


def flags_of(broker: BrokerHandle) -> list[str]:
    made = broker.certificates
    assert made is not None
    return [
        f"--tls-ca-file={made.ca}",
        f"--tls-cert-file={made.client.cert}",
        f"--tls-key-file={made.client.key}",
    ]


def test_commands_take_flags_or_the_environment(secured: BrokerHandle, journal: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(token())
    args = ("list", "-l", f"name={journal}", "-o", "jsonl")
    by_flags = command(secured, "journals", *flags_of(secured), f"--auth-token-file={path}", *args)
    by_environment = command(secured, "journals", *args, **secured.client_environment())
    assert by_flags.exit_code == by_environment.exit_code == 0, by_flags.output + by_environment.output
    assert json.loads(by_flags.stdout)["name"] == json.loads(by_environment.stdout)["name"] == journal
    # A file that is given by an option takes precedence over keys in the environment.
    wrong = command(
        secured, "journals", *flags_of(secured), f"--auth-token-file={path}", *args, BROKER_AUTH_KEYS="b2Rk"
    )
    assert wrong.exit_code == 0, wrong.output


def test_the_lag_command_enters_too(secured: BrokerHandle, journal: str, tmp_path: Path) -> None:
    """`lag show` takes the same options; then its only error is about the missing checkpoint."""
    watch = ("--selector", f"name={journal}", "--checkpoint", f"orders={tmp_path / 'checkpoint'}")
    entered = command(secured, "lag", "show", *flags_of(secured), *watch, BROKER_AUTH_KEYS=KEYS)
    refused = command(secured, "lag", "show", *flags_of(secured), *watch)
    assert ("checkpoint" in entered.stderr, "not authorized" in entered.stderr) == (True, False)
    assert "not authorized" in refused.stderr


def test_a_bad_flag_is_named(secured: BrokerHandle, tmp_path: Path) -> None:
    done = command(secured, "journals", f"--tls-ca-file={tmp_path / 'nowhere'}", "list")
    assert done.exit_code == 2
    assert "'--tls-ca-file'" in done.stderr
    plain = command(secured, "journals", *flags_of(secured), "list", BROKER_ADDRESS="http://127.0.0.1:1")
    assert "BROKER_ADDRESS" in plain.stderr
    assert "https://" in plain.stderr


def test_gazctl_enters_by_the_same_environment(secured: BrokerHandle, journal: str) -> None:
    assert secured.gazctl("journals", "read", "-l", f"name={journal}") == "content\n"


def test_no_error_shows_a_secret(secured: BrokerHandle, journal: str) -> None:
    strange = Client(secured.endpoint, auth_keys="b2Rk", tls=tls_of(secured), timeout_s=5)
    with strange, pytest.raises(GazetteError) as caught:
        strange.write_head(journal)
    for secret in ("b2Rk", "eyJ", "PRIVATE KEY"):
        assert secret not in str(caught.value)
