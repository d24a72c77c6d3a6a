"""The options of secured clusters fit each other and the address, and errors hide their values."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest

from gazette_spark._options.security import SECURITY_OPTIONS, Security
from gazette_spark._options.source import parse_options
from gazette_spark._options.write import parse_write_options
from gazette_spark.errors import OptionError
from gazette_spark.protocol.tokens import KeySet

CANARY = "canary-5f2c91"
KEYS = "Y2FuYXJ5LTVmMmM5MQ==,b2xk"
PEM = f"-----BEGIN THING-----\n{CANARY}\n-----END THING-----\n"
SECRETS = {"auth.token": CANARY, "auth.keysSecret": KEYS, "tls.keySecret": PEM}
REDACTED = re.compile(r"(?i)secret|password|token|access[.]?key")
"""Default of spark.redaction.regex in Spark 4.2, without the words that earlier releases lack."""


def parse(**given: str) -> Security:
    """Parse the options for reading and for writing, which must agree."""
    common = {"brokerAddress": "https://broker.test:80", "path": "events/clicks"} | given
    read = parse_options(common, environ={}).security
    assert parse_write_options(common, environ={}).security == read
    return read


def refusal(**given: str) -> str:
    found = set()
    for parser in (parse_options, parse_write_options):
        common = {"brokerAddress": "https://broker.test:80", "path": "events/clicks"} | given
        with pytest.raises(OptionError) as caught:
            parser(common, environ={})
        found.add(str(caught.value))
    (text,) = found
    return text


def test_without_an_option_nothing_is_sent() -> None:
    assert parse() == Security()


def test_each_option_has_its_field() -> None:
    files = {"tls.caFile": "/ca.pem", "tls.certFile": "/c.pem", "tls.keyFile": "/c.key"}
    assert parse(**files, **{"auth.tokenFile": "/token"}) == Security(
        token_file="/token", ca_file="/ca.pem", cert_file="/c.pem", key_file="/c.key"
    )
    contents = {"tls.ca": PEM, "tls.cert": PEM, "tls.keySecret": PEM}
    assert parse(**contents, **{"auth.keysSecret": KEYS}) == Security(
        keys=KeySet((b"canary-5f2c91", b"old")), ca=PEM.encode(), cert=PEM.encode(), key=PEM.encode()
    )
    assert parse(**{"auth.token": CANARY}).token == CANARY


@pytest.mark.parametrize(
    ("given", "names"),
    [
        pytest.param(
            {"auth.token": "t", "auth.keysSecret": KEYS}, "auth.token and auth.keysSecret", id="two"
        ),
        pytest.param({"auth.token": "t", "auth.tokenFile": "/t"}, "auth.token and auth.tokenFile", id="file"),
        pytest.param({"tls.ca": PEM, "tls.caFile": "/ca"}, "tls.caFile and tls.ca", id="ca_twice"),
        pytest.param({"tls.certFile": "/c.pem"}, "'tls.keyFile': got nothing", id="no_key"),
        pytest.param({"tls.keySecret": PEM}, "'tls.cert': got nothing", id="no_certificate"),
        pytest.param({"tls.caFile": "/ca", "brokerAddress": "http://b.test:1"}, "https://", id="plain"),
    ],
)
def test_options_that_do_not_fit_together(given: dict[str, str], names: str) -> None:
    """The error names both options but no secret value."""
    text = refusal(**given)
    assert names in text
    assert KEYS not in text
    assert CANARY not in text


def test_a_certificate_may_be_a_file_and_its_key_a_content() -> None:
    """A key comes from a vault more often than its certificate does."""
    assert parse(**{"tls.certFile": "/c.pem", "tls.keySecret": PEM}).key == PEM.encode()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("auth.token", f"{CANARY} ", id="token"),
        pytest.param("auth.keysSecret", f"{CANARY}", id="keys"),
        pytest.param("auth.keysSecret", " , ", id="no_keys"),
        pytest.param("auth.keysSecret", "AA==", id="only_the_mark_for_no_token"),
        pytest.param("tls.keySecret", CANARY, id="key"),
        pytest.param("tls.ca", f"{PEM}ü", id="not_ascii"),
        pytest.param("tls.cert", "", id="empty"),
    ],
)
def test_a_bad_value_is_not_shown(name: str, text: str) -> None:
    shown = refusal(**{name: text})
    assert f"'{name}'" in shown
    assert CANARY not in shown


def test_no_text_shows_a_value() -> None:
    """Options are logged, and Spark's errors show partitions. Both are still pickled with their values."""
    for name, text in SECRETS.items():
        also = {"tls.cert": PEM} if name == "tls.keySecret" else {}
        found = parse(**{name: text}, **also)
        assert CANARY not in repr(found)
        assert "Y2FuYXJ5" not in repr(found)
        assert pickle.loads(pickle.dumps(found)) == found


def test_spark_masks_every_secret() -> None:
    """Spark masks an option by its name. Public values and paths stay readable, except the token's path."""
    masked = {option.name for option in SECURITY_OPTIONS if REDACTED.search(option.name)}
    assert masked == {*SECRETS, "auth.tokenFile"}


@pytest.mark.parametrize("option", SECURITY_OPTIONS, ids=lambda option: option.name)
def test_a_store_needs_no_broker(option: Any) -> None:
    """A store has no broker that could check a token or a certificate."""
    name = option.name
    text = {**dict.fromkeys(("tls.ca", "tls.cert"), PEM), **SECRETS}.get(name, "/file")
    stored = {"fragmentStore": "file:///store", "path": "a/journal", "framing": "lines", name: text}
    if name in ("tls.certFile", "tls.cert"):
        stored["tls.keySecret"] = PEM
    if name in ("tls.keyFile", "tls.keySecret"):
        stored["tls.cert"] = PEM
    with pytest.raises(OptionError, match=r"fragmentStore and (auth|tls)"):
        parse_options(stored, "batch", environ={})
