"""However a broker is restarted, it and its clients never lose, duplicate or reorder a byte.

The acknowledged appends are the truth: each answer says where its bytes are. Every reader must get exactly
these bytes from the offset where it began.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
import threading
from pathlib import Path

import grpc
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from gazette_spark.broker.embedded import EmbeddedBroker
from gazette_spark.broker.faults import Faults
from gazette_spark.broker.settings import ServingSettings, StorageSettings
from gazette_spark.client import Client
from gazette_spark.client._read.reader import RetryReader
from gazette_spark.errors import ClosedError, NoJournalPrimaryBrokerError, UnavailableError
from gazette_spark.protocol.journal_specs import journal_spec
from tests.rig.examples import examples

CODECS = ["NONE", "GZIP", "ZSTANDARD", "SNAPPY"]
NAME = "prop/client"
TIMEOUT_S = 30.0


class Reading:
    def __init__(self, reader: RetryReader, begin: int) -> None:
        self.reader = reader
        self.begin = begin
        self.seen = bytearray()

    def take(self, size: int, committed: bytes | bytearray) -> None:
        self.seen += self.reader.read(size)
        assert self.seen == committed[self.begin : self.begin + len(self.seen)]
        assert self.reader.offset == self.begin + len(self.seen)
        assert self.reader.jumps == []


class BrokerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="broker-machine-"))
        self.committed = bytearray()
        self.readings: list[Reading] = []
        self.faults = Faults()
        self.broker = EmbeddedBroker(
            self.root,
            serving=ServingSettings(chunk_bytes=300),
            storage=StorageSettings(fsync=False),
            faults=self.faults,
        )

    @initialize(codec=st.sampled_from(CODECS))
    def start(self, codec: str) -> None:
        self.broker.__enter__()
        self.client = Client(self.broker.endpoint, timeout_s=TIMEOUT_S)
        self.direct = Client(self.broker.endpoint, timeout_s=TIMEOUT_S, fragment_root=str(self.root))
        self.client.create_journals(
            journal_spec(NAME, length=1024, codec=codec, stores=("file:///",), refresh_interval_s=1)
        )

    @rule(content=st.binary(max_size=900), pieces=st.integers(1, 4))
    def append(self, content: bytes, pieces: int) -> None:
        cut = max(1, len(content) // pieces)
        got = self.client.append(NAME, [content[at : at + cut] for at in range(0, len(content), cut)])
        assert (got.begin, got.end) == (len(self.committed), len(self.committed) + len(content))
        self.committed += content

    @rule(content=st.binary(min_size=1, max_size=900))
    def abort(self, content: bytes) -> None:
        # Tried once only: after a restart the connection may still be the old one.
        given_up = contextlib.suppress(UnavailableError, NoJournalPrimaryBrokerError)
        with given_up, self.client.appender(NAME) as appender:
            appender.write(content)
            appender.abort()

    @rule()
    def roll_and_store(self) -> None:
        self.broker.flush()

    @rule(after_bytes=st.integers(1, 2000), how=st.sampled_from(["break", "end", "no-primary"]))
    def order_a_fault(self, after_bytes: int, how: str) -> None:
        """Break or end the next read in its middle, or make the next append find no primary."""
        match how:
            case "break":
                self.faults.fail(grpc.StatusCode.UNAVAILABLE, rpc="Read", after_bytes=after_bytes)
            case "end":
                self.faults.end(after_bytes=after_bytes)
            case "no-primary":
                self.faults.answer("NO_JOURNAL_PRIMARY_BROKER", rpc="Append")

    @rule()
    def restart(self) -> None:
        self.broker.stop()
        self.broker.__enter__()

    @rule(at=st.floats(0, 1), direct=st.booleans(), ranged=st.booleans())
    def start_reading(self, at: float, direct: bool, ranged: bool) -> None:
        begin = int(at * len(self.committed))
        client = self.direct if direct else self.client
        end = len(self.committed) if ranged and begin < len(self.committed) else 0
        self.readings.append(Reading(client.read(NAME, offset=begin, end_offset=end), begin))

    @precondition(lambda self: self.readings)
    @rule(which=st.integers(0, 99), size=st.integers(1, 1500))
    def read_on(self, which: int, size: int) -> None:
        self.readings[which % len(self.readings)].take(size, self.committed)

    def teardown(self) -> None:
        try:
            for reading in self.readings:
                reading.reader.close()
            if hasattr(self, "client"):
                self.faults.clear()
                with self.direct.read(NAME) as reader:
                    assert reader.read() == self.committed
                self.client.close()
                self.direct.close()
        finally:
            self.broker.stop()
            shutil.rmtree(self.root)


TestBroker = BrokerMachine.TestCase
TestBroker.settings = settings(
    max_examples=examples(40),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


class Writers:
    def __init__(self, endpoint: str, seed: int) -> None:
        self.endpoint = endpoint
        self.stop = threading.Event()
        self.acknowledged: dict[int, bytes] = {}
        self.failed: list[BaseException] = []
        self.threads = [
            threading.Thread(target=self._run, args=(number, random.Random(seed + number)))
            for number in range(2)
        ]
        for thread in self.threads:
            thread.start()

    def _run(self, number: int, rng: random.Random) -> None:
        try:
            with Client(self.endpoint, timeout_s=TIMEOUT_S) as client:
                turn = 0
                while not self.stop.is_set():
                    content = f"{number}-{turn} ".encode() + rng.randbytes(rng.randrange(2_000)) + b"\n"
                    self.acknowledged[client.append(NAME, content).begin] = content
                    turn += 1
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.failed.append(error)

    def end(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()
        assert self.failed == []


class Tail:
    def __init__(self, endpoint: str, root: str | None, rng: random.Random) -> None:
        self.seen = bytearray()
        self.failed: list[BaseException] = []
        self._client = Client(endpoint, timeout_s=TIMEOUT_S, fragment_root=root)
        self._reader = self._client.read(NAME, block=True)
        self._grew = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(rng,))
        self._thread.start()

    def _run(self, rng: random.Random) -> None:
        try:
            while piece := self._reader.read(rng.randrange(1, 700)):
                with self._grew:
                    self.seen += piece
                    self._grew.notify_all()
        except ClosedError:
            pass  # Closed by end().
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.failed.append(error)

    def end(self, size: int) -> bytes:
        """Wait until about ``size`` bytes were read, and return them."""
        with self._grew:
            # A read of up to 700 bytes at the write head waits for the rest.
            assert self._grew.wait_for(lambda: self.failed or len(self.seen) > size - 700, TIMEOUT_S)
        self._reader.close()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        self._client.close()
        assert self.failed == []
        return bytes(self.seen)


@pytest.mark.slow
def test_concurrent_clients_through_restarts(tmp_path: Path) -> None:
    rng = random.Random(42)
    broker = EmbeddedBroker(tmp_path, serving=ServingSettings(chunk_bytes=1_000))
    pause = threading.Event()
    with broker, Client(broker.endpoint, timeout_s=TIMEOUT_S) as client:
        client.create_journals(
            journal_spec(NAME, length=20_000, codec="SNAPPY", stores=("file:///",), refresh_interval_s=1)
        )
        writers = Writers(broker.endpoint, seed=7)
        tails = [Tail(broker.endpoint, root, rng) for root in (None, str(tmp_path))]
        for _ in range(4):
            pause.wait(0.4)  # Time for some work to interrupt; the result does not depend on it.
            broker.stop()
            broker.__enter__()
            broker.flush()
        writers.end()
        size = client.append(NAME, b"").begin
        with client.read(NAME, end_offset=size) as reader:
            truth = reader.read()
        for begin, content in writers.acknowledged.items():
            assert truth[begin : begin + len(content)] == content
        for tail in tails:
            seen = tail.end(size)
            assert truth.startswith(seen)
        assert len(writers.acknowledged) > 10


def test_a_broker_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    """An append to a stopped broker is not acknowledged, and the journal does not contain it later."""
    with EmbeddedBroker(tmp_path) as broker:
        client = Client(broker.endpoint, timeout_s=TIMEOUT_S)
        client.create_journals(journal_spec(NAME, stores=()))
        client.append(NAME, b"kept")
        broker.stop()
        try:
            client.append(NAME, b"lost", timeout_s=1.0)
        except UnavailableError:
            pass
        else:
            raise AssertionError("a stopped broker acknowledged an append")
        broker.__enter__()
        with Client(broker.endpoint, timeout_s=TIMEOUT_S) as again, again.read(NAME, end_offset=4) as reader:
            assert reader.read() == b"kept"
            assert again.write_head(NAME) == 4
        client.close()
