"""Tasks use the contents that the driver's credential files had when the batch was planned."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest

from gazette_spark._options.security import Security
from gazette_spark._options.source import parse_options
from gazette_spark._planning.access import TaskCredentials, access, security_for_tasks
from gazette_spark.client import Client
from gazette_spark.errors import OptionError
from gazette_spark.protocol.tokens import KeySet
from tests.rig.certificates import Certificates

CANARY = "canary-5f2c91"


def security(**given: str) -> Security:
    common = {"brokerAddress": "https://broker.test:80", "path": "events/clicks"}
    return parse_options(common | given, environ={}).security


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certificates")


def test_a_task_needs_no_file(made: Certificates, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(f"{CANARY}\n")
    given = security(**made.file_options(), **{"auth.tokenFile": str(token)})
    travels = pickle.loads(pickle.dumps(security_for_tasks(given)))
    assert travels == Security(
        CANARY,
        str(token),
        ca=made.ca.read_bytes(),
        cert=made.client.cert.read_bytes(),
        key=made.client.key.read_bytes(),
    )
    for path in (token, made.ca, made.client.cert, made.client.key):
        path.unlink()
    with Client("https://broker.test:80", **access(travels)) as client:
        ((_, sent),) = client.default_connection.metadata(None)  # type: ignore[arg-type]  # Asked for no claims.
    assert sent == f"Bearer {CANARY}"


def test_what_is_given_travels_as_it_is(made: Certificates) -> None:
    given = security(**made.content_options(), **{"auth.keysSecret": "c2VjcmV0"})
    assert security_for_tasks(given) == given
    assert access(given)["auth_keys"] == KeySet((b"secret",))


def test_an_open_cluster() -> None:
    assert security_for_tasks(Security()) == Security()
    assert access(Security()) == {"token": None, "token_file": None, "auth_keys": None, "tls": None}


def test_each_batch_gets_what_the_files_hold_then(made: Certificates, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    carrier = TaskCredentials(security(**made.file_options(), **{"auth.tokenFile": str(token)}))
    first = carrier.snapshot()
    token.write_text("second")
    made.issue("client", "client")
    second = carrier.snapshot()
    assert (first.token, second.token) == ("first", "second")
    assert second.cert == made.client.cert.read_bytes() != first.cert


def test_files_in_the_middle_of_a_change(
    made: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If a key does not match its new certificate, or a token file is empty, the last values stay in use."""
    token = tmp_path / "token"
    token.write_text("first")
    carrier = TaskCredentials(security(**made.file_options(), **{"auth.tokenFile": str(token)}))
    first = carrier.snapshot()
    token.write_text("")
    with caplog.at_level(logging.WARNING):
        assert carrier.snapshot() == first
    token.write_text("second")
    other = made.issue("other", "client")
    other.cert.rename(made.client.cert)
    assert carrier.snapshot() == first
    assert "used again" in caplog.text
    other.key.rename(made.client.key)
    assert carrier.snapshot().token == "second"


def test_files_that_were_never_there(made: Certificates, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"auth\.tokenFile.*nowhere"):
        TaskCredentials(security(**{"auth.tokenFile": str(tmp_path / "nowhere")})).snapshot()
    made.client.key.unlink()
    with pytest.raises(OptionError, match=r"tls\.keyFile.*client\.key"):
        TaskCredentials(security(**made.file_options())).snapshot()
