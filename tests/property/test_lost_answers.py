"""What is written although its answer is lost: the writer goes on, and blames nobody else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from gazette_spark import Client, EmbeddedBroker
from gazette_spark.broker import Faults, StorageSettings
from gazette_spark.broker.faults import Fault
from gazette_spark.client import AppendService, journal_spec
from gazette_spark.errors import RegisterMismatchError, StatusError, UnavailableError, WrongAppendOffsetError
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import label_set
from tests.conformance.command import Command
from tests.conformance.test_recovered_shards import SHARD, Rig
from tests.rig.consumers import published_totals


class LostAnswers(Faults):
    """Faults that can also lose the answer of an append by its number."""

    def __init__(self) -> None:
        super().__init__()
        self.number = self.appends = 0

    def lose(self, number: int) -> None:
        """Lose the answer of the append with a number, counted from 1; 0 loses none."""
        self.number, self.appends = number, 0

    def take(self, rpc: str, journal: str) -> list[Fault]:
        taken = super().take(rpc, journal)
        self.appends += rpc == "Append"
        if self.number and self.appends == self.number and rpc == "Append":
            taken.append(Fault(code=grpc.StatusCode.UNAVAILABLE, answer_is_lost=True))
        return taken


FAULTS = LostAnswers()
ME, NOBODY = (pb.LabelSelector(include=label_set({"author": name})) for name in ("me", "nobody"))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    root = tmp_path_factory.mktemp("broker")
    with (
        EmbeddedBroker(root, faults=FAULTS, storage=StorageSettings(fsync=False)) as broker,
        Client(broker.endpoint, timeout_s=30) as opened,
    ):
        yield opened


@pytest.fixture
def journal(client: Client, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"lost/{re.sub(r'[^a-z]+', '-', request.node.name)}end"
    client.create_journals(journal_spec(name))
    client.append(name, b"first\n", union_registers=label_set({"author": "nobody"}))
    yield name
    FAULTS.clear()


def by_service(client: Client, journal: str, content: bytes, **options: object) -> None:
    with AppendService(client, timeout_s=client.timeout_s) as service:
        with service.start_append(journal, **options) as append:  # type: ignore[arg-type]  # Keywords of mixed types.
            append.write(content)
        try:
            append.result(30)
        finally:
            service.close(abort=True)


@pytest.mark.parametrize("way", [Client.append, by_service], ids=["client", "service"])
@pytest.mark.parametrize(
    ("options", "error"),
    [
        pytest.param({"offset": 6}, WrongAppendOffsetError, id="offset"),
        pytest.param(
            {"check_registers": NOBODY, "union_registers": ME.include}, RegisterMismatchError, id="registers"
        ),
    ],
)
def test_a_refused_repetition_tells_of_the_attempt_before_it(
    client: Client,
    journal: str,
    way: Callable[..., object],
    options: dict[str, object],
    error: type[StatusError],
) -> None:
    FAULTS.lose_answer(journal=journal)
    with pytest.raises(error, match="an earlier attempt got no answer, and may have appended these bytes"):
        way(client, journal, b"second\n", **options)
    assert client.read(journal, end_offset=13).read() == b"first\nsecond\n"
    with pytest.raises(error) as caught:
        way(client, journal, b"third\n", **options)
    assert "attempt" not in caught.value.detail


def test_an_apply_tells_that_it_may_be_applied(client: Client, journal: str) -> None:
    """Without an answer it is not repeated, because its own conditions would fail."""
    FAULTS.lose_answer(rpc="Apply")
    with pytest.raises(UnavailableError, match=r"fault; the changes may have been applied\. Check brokerAdd"):
        client.create_journals(journal_spec(f"{journal}/new"))
    client.create_journals(journal_spec(f"{journal}/new"), exist_ok=True)


def test_a_shard_counts_each_message_once(client: Client, tmp_path: Path) -> None:
    """Its state is in a recovery log, which a second host takes over. Each append loses its answer once."""
    number = appends = 0
    while number <= appends:
        number += 1
        rig = Rig(client, f"shards/{number}/", tmp_path / str(number))
        with rig.service:
            FAULTS.lose(number)
            rig.publish("a", "b", "a")
            with rig.host("json") as host:
                assert rig.totals(host) == {"a": 2, "b": 1}
            rig.publish("a")
            with rig.host("json") as host:
                assert rig.totals(host) == {"a": 3, "b": 1}
            appends = FAULTS.appends
            FAULTS.lose(0)
        expected = [("a", 1), ("a", 2), ("a", 3), ("b", 1)]
        assert published_totals(client, [rig.output]) == {(SHARD, *total): 1 for total in expected}
    assert number > 10


def test_the_command_does_not_say_that_nothing_was_appended(client: Client, journal: str) -> None:
    FAULTS.lose_answer(journal=journal)
    answer = Command(client.endpoint)("append", journal, "--offset", "6", stdin=b"second\n")
    assert answer.exit_code == 1
    assert "the write head is 13: an earlier attempt got no answer, and may have" in answer.stderr
