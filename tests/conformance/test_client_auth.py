"""A client with keys is served by a broker with keys, outlives its tokens, and never leaks them."""

from __future__ import annotations

import base64
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gazette_spark import Client, EmbeddedBroker
from gazette_spark.client import Capability, Claims, KeySet
from gazette_spark.client._transport.credentials import Credentials
from gazette_spark.errors import AuthError, JournalNotFoundError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import label_set
from gazette_spark.protocol.tokens import journal_claims
from tests.conformance.wire import spec
from tests.rig.brokers import BrokerHandle, DeployedBroker

OLD, NEW, STRANGE = (base64.b64encode(text.encode() * 16).decode() for text in ("old!", "new!", "odd!"))
SHORT_S = 2.0
"""Lifetime of a fixed token in seconds; at least one, because tokens expire on whole seconds."""

RENEWED_S = 1.0
"""Lifetime in seconds of a token of a client with keys."""

PIECES = 25
PAUSE_S = 0.1
"""Seconds between appends, which together take longer than two token lifetimes."""


@pytest.fixture(
    scope="module",
    params=["embedded", pytest.param("deployed", marks=pytest.mark.deployed_broker)],
)
def keyed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerHandle]:
    directory = tmp_path_factory.mktemp("keyed")
    keys = f"{OLD},{NEW}"
    if request.param == "embedded":
        with EmbeddedBroker(directory, auth_keys=keys) as embedded:
            yield BrokerHandle(embedded.endpoint, directory)
        return
    with DeployedBroker(directory, auth_keys=keys) as deployed:
        yield deployed


@pytest.fixture
def owner(keyed: BrokerHandle) -> Iterator[Client]:
    with Client(keyed.endpoint, auth_keys=OLD, timeout_s=30) as opened:
        yield opened


@pytest.fixture
def journal(owner: Client, journal_name: str) -> str:
    owner.create_journals(spec(journal_name))
    return journal_name


def short_token(claims: Claims) -> str:
    return KeySet.parse(OLD).sign(claims, now=time.time(), lifetime_s=SHORT_S)


def test_every_call_claims_what_it_needs(owner: Client, journal: str) -> None:
    owner.append(journal, b"hello")
    assert owner.read(journal).read() == b"hello"
    assert owner.read(f"{journal};of=somebody").read() == b"hello"
    assert owner.write_head(journal) == 5
    assert owner.write_heads([journal]) == {journal: 5}
    assert owner.first_offset(journal) == 0
    assert owner.list_fragments(journal)[-1].fragment.end == 5
    assert owner.list_journals(f"name={journal}")[0].spec.name == journal
    deleted = pb.ApplyRequest.Change(delete=journal, expect_mod_revision=-1)
    assert owner.apply([deleted]) > 0


def test_keys_rotate(keyed: BrokerHandle, owner: Client, journal: str) -> None:
    for index in range(4):
        with Client(keyed.endpoint, auth_keys=[OLD, f"{OLD},{NEW}", f"{NEW},{OLD}", NEW][index]) as each:
            each.append(journal, b"%d" % index)
    assert owner.read(journal).read() == b"0123"


@pytest.mark.parametrize("given", ["nothing", "a strange key", "a strange token"])
def test_who_is_not_known(keyed: BrokerHandle, journal: str, given: str) -> None:
    token = KeySet.parse(STRANGE).sign(journal_claims(Capability.ALL, journal), now=time.time())
    keys = STRANGE if given == "a strange key" else None
    with Client(
        keyed.endpoint,
        token=token if given == "a strange token" else None,
        auth_keys=keys,
        timeout_s=600,
    ) as stranger:
        for call in (
            stranger.list_journals,
            lambda: stranger.append(journal, b"x"),
            lambda: stranger.read(journal, block=True).read(1),
            lambda: stranger.write_head(journal),
            lambda: stranger.write_heads([journal]),
            lambda: stranger.list_fragments(journal),
            lambda: stranger.create_journals(spec(f"{journal}-2")),
        ):
            with pytest.raises(AuthError, match="BROKER_AUTH_KEYS") as caught:
                call()
            assert token not in str(caught.value)
            assert STRANGE not in str(caught.value)


def test_a_token_for_another_journal(keyed: BrokerHandle, journal: str) -> None:
    """The broker hides such a journal, so the error mentions both a missing journal and the token."""
    token = short_token(journal_claims(Capability.ALL, f"{journal}-2"))
    with Client(keyed.endpoint, token=token) as stranger:
        with pytest.raises(JournalNotFoundError, match="token"):
            stranger.append(journal, b"x")
        assert stranger.list_journals() == []


def test_a_read_outlives_its_tokens(
    keyed: BrokerHandle, owner: Client, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = Credentials.given
    monkeypatch.setattr(Credentials, "given", lambda *said: replace(given(*said), lifetime_s=RENEWED_S))
    pause = threading.Event()

    def write() -> None:
        for index in range(PIECES):
            owner.append(journal, b"%04d" % index)
            pause.wait(PAUSE_S)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with (
            Client(keyed.endpoint, auth_keys=OLD, timeout_s=30) as short,
            short.read(journal, block=True) as reader,
        ):
            got = reader.read(4 * PIECES)
    finally:
        writer.join(60)
    assert got == b"".join(b"%04d" % index for index in range(PIECES))


def test_a_fixed_token_that_expires(keyed: BrokerHandle, owner: Client, journal: str) -> None:
    """A blocking read ends with an error that says so, instead of retrying for ever."""
    owner.append(journal, b"hello")
    token = short_token(journal_claims(Capability.READ, journal))
    with (
        Client(keyed.endpoint, token=token, timeout_s=600) as fixed,
        fixed.read(journal, block=True) as reader,
    ):
        assert reader.read(5) == b"hello"
        with pytest.raises(AuthError, match="expired"):
            reader.read(1)
        with pytest.raises(AuthError, match="expired"):
            fixed.append(journal, b"x")


def test_logs_hold_no_secret(keyed: BrokerHandle, journal: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    token = KeySet.parse(STRANGE).sign(journal_claims(Capability.ALL, journal), now=time.time())
    with (
        Client(keyed.endpoint, auth_keys=OLD) as known,
        Client(keyed.endpoint, token=token) as stranger,
    ):
        known.append(journal, b"x")
        with pytest.raises(AuthError):
            stranger.append(journal, b"x")
    assert "eyJ" not in caplog.text
    assert OLD not in caplog.text


def test_many_journals_are_listed_by_name(owner: Client, journal: str) -> None:
    """A token that named all of them would be longer than a header may be."""
    names = [journal, *(f"{journal}/part-{number:04}" for number in range(1000))]
    selector = pb.LabelSelector(include=label_set({"name": names}))
    assert [listed.spec.name for listed in owner.list_journals(selector)] == [journal]
