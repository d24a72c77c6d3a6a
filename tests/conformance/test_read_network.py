"""A reader behind a broken network gets each byte once and in order, or an error."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from gazette_spark import Client, EmbeddedBroker
from gazette_spark.broker import ServingSettings
from gazette_spark.client import Reader, RetryReader, WatchedList, journal_spec
from gazette_spark.client._read.stream import ReadOptions, ReadStream
from gazette_spark.client._transport.channel import Connection
from gazette_spark.errors import GazetteError, OffsetNotYetAvailableError, UnavailableError
from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.test_embedded_broker import serve
from tests.conformance.wire import wait_for
from tests.rig.brokers import BrokerHandle, DeployedBroker
from tests.rig.tcp_proxy import CLEAN, TcpProxy, Toxics

APPENDS = 40
CONTENT = random.Random(13).randbytes(120_000)
"""Content without repetitions, so that bytes at a wrong offset are noticed."""

RESETS = 1_000
"""Number of resets in `make soak`; `make test` runs a fifth of them."""

HANDSHAKE_BYTES = 130
"""Bytes that a connection must return before it exists for gRPC."""

SEED = 13


@dataclass
class Cuts:
    rng: random.Random
    most: int
    at_limit: str = "reset"
    count: int = 0

    def __call__(self, _: int) -> tuple[Toxics, Toxics]:
        self.count += 1
        most = 400 if self.rng.random() < 0.03 else self.most
        return Toxics(limit_bytes=self.rng.randrange(most), at_limit=self.at_limit), CLEAN  # type: ignore[arg-type]  # One of two literals.


@pytest.fixture(
    scope="module", params=["embedded", pytest.param("deployed", marks=pytest.mark.deployed_broker)]
)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerHandle]:
    """An embedded broker with chunks so small that cuts fall between and into them, or the real broker."""
    if request.param == "deployed":
        yield request.getfixturevalue("deployed_broker")
        return
    root = tmp_path_factory.mktemp("chunks")
    with EmbeddedBroker(root, serving=ServingSettings(chunk_bytes=1_000)) as embedded:
        yield BrokerHandle(embedded.endpoint, root)


@pytest.fixture
def journal(client: Client, journal_name: str) -> str:
    client.create_journals(journal_spec(journal_name, codec="NONE"))
    cuts = [index * len(CONTENT) // APPENDS for index in range(APPENDS + 1)]
    for begin, end in pairwise(cuts):
        client.append(journal_name, CONTENT[begin:end])
    return journal_name


@pytest.fixture
def proxy(broker: BrokerHandle) -> Iterator[TcpProxy]:
    with TcpProxy(broker.endpoint) as opened:
        yield opened


@pytest.fixture
def behind(proxy: TcpProxy) -> Iterator[Client]:
    with Client(proxy.endpoint, timeout_s=60, idle_timeout_s=0.5) as opened:
        yield opened


def impatient(connection: Connection, journal: str, offset: int, end_offset: int) -> RetryReader:
    options = ReadOptions(journal, offset, end_offset)
    pause = threading.Event()
    return RetryReader(
        connection,
        options,
        timeout_s=60,
        idle_timeout_s=10,
        sleep=lambda seconds: pause.wait(seconds / 100),
    )


@pytest.mark.parametrize("resets", [RESETS // 5, pytest.param(RESETS, marks=pytest.mark.soak)])
@pytest.mark.parametrize("at_limit", ["reset", "close"])
def test_connections_cut_at_random_bytes(
    broker: BrokerHandle, journal: str, at_limit: str, resets: int
) -> None:
    # The real broker's chunks are larger, and one has to get through for some progress.
    cuts = Cuts(random.Random(SEED), 80_000 if isinstance(broker, DeployedBroker) else 30_000, at_limit)
    wanted = resets if at_limit == "reset" else resets // 5
    with TcpProxy(broker.endpoint, cuts) as proxy:
        connection = Connection(proxy.endpoint, connect_timeout_s=30)
        rounds = 0
        while cuts.count < wanted:
            rounds += 1
            begin = cuts.rng.randrange(1_000)
            position = begin
            with impatient(connection, journal, begin, len(CONTENT)) as reader:
                for chunk in reader:
                    assert chunk.offset == position
                    assert chunk.content == CONTENT[position : chunk.end]
                    position = chunk.end
                assert position == len(CONTENT)
                assert reader.jumps == []
        connection.close()
    assert rounds > wanted // 50, "cuts came too early to make progress"


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.soak)])
def test_every_byte_of_a_short_read_is_cut_once(broker: BrokerHandle, journal: str, step: int) -> None:
    """A read succeeds, wherever a connection is cut in its answer, also at the last bytes of the range.

    `make test` cuts at each third byte, and at all of the last ones.
    """
    begin, end = 2_990, 3_010
    with TcpProxy(broker.endpoint) as proxy:
        connection = Connection(proxy.endpoint, connect_timeout_s=30)
        assert impatient(connection, journal, begin, end).read() == CONTENT[begin:end]
        connection.close()
        whole = proxy.bytes_to_client
    assert whole < 2_000
    # After a cut in the handshake gRPC pauses before it connects again.
    last = whole - 2 * (end - begin)
    handshake, content = range(0, HANDSHAKE_BYTES, 13 * step), range(HANDSHAKE_BYTES, last, step)
    limits = iter([*handshake, *content, *range(last, whole + 2)])
    reached = 0

    def plan(number: int) -> tuple[Toxics, Toxics] | None:
        nonlocal reached
        if number % 2:
            return None
        reached = next(limits, whole + 2)
        return Toxics(limit_bytes=reached), CLEAN

    with TcpProxy(broker.endpoint, plan) as proxy:
        while reached < whole + 2:
            connection = Connection(proxy.endpoint, connect_timeout_s=30)
            with impatient(connection, journal, begin, end) as reader:
                assert reader.read() == CONTENT[begin:end]
            connection.close()


@pytest.mark.parametrize(
    "toxics",
    [
        pytest.param(Toxics(slice_bytes=1), id="one byte at a time"),
        pytest.param(Toxics(bytes_per_s=400_000, slice_bytes=4_000), id="slow"),
        pytest.param(Toxics(latency_s=0.05), id="late"),
    ],
)
def test_a_slow_network_changes_nothing(proxy: TcpProxy, journal: str, toxics: Toxics) -> None:
    proxy.to_client = toxics
    proxy.to_server = toxics
    end = 3_000 if toxics.slice_bytes == 1 else len(CONTENT)
    with Client(proxy.endpoint, timeout_s=60) as client:
        assert client.read(journal, end_offset=end).read() == CONTENT[:end]


@pytest.mark.parametrize(
    "silent",
    [
        pytest.param((Toxics(limit_bytes=20_000, at_limit="silence"), CLEAN), id="in the content"),
        pytest.param((Toxics(limit_bytes=200, at_limit="silence"), CLEAN), id="before the content"),
        pytest.param((CLEAN, Toxics(limit_bytes=150, at_limit="silence")), id="in the request"),
    ],
)
def test_a_half_open_connection_is_left(
    broker: BrokerHandle, journal: str, silent: tuple[Toxics, Toxics]
) -> None:
    with TcpProxy(broker.endpoint, lambda number: silent if number < 3 else None) as proxy:
        connection = Connection(proxy.endpoint, connect_timeout_s=30)

        def open_stream(request: pb.ReadRequest, timeout_s: float) -> ReadStream:
            # After the silent connections, leave enough time for a slow machine.
            return ReadStream(connection, request, timeout_s if proxy.connections < 3 else 30)

        options = ReadOptions(journal, 0, len(CONTENT))
        with RetryReader(
            connection, options, timeout_s=60, idle_timeout_s=0.3, open_stream=open_stream
        ) as reader:
            assert reader.read() == CONTENT
        connection.close()
        assert proxy.connections == 4


def test_a_network_that_stays_silent(proxy: TcpProxy, journal: str) -> None:
    proxy.to_client = Toxics(silent=True)
    with (
        Client(proxy.endpoint, timeout_s=1.5, idle_timeout_s=0.4, connect_timeout_s=1) as client,
        pytest.raises(UnavailableError, match=proxy.endpoint),
    ):
        client.read(journal).read()


def test_a_network_that_is_down_for_a_while(proxy: TcpProxy, behind: Client, journal: str) -> None:
    with behind.read(journal, end_offset=len(CONTENT)) as reader:
        got = reader.read(10_000)
        for _ in range(3):
            proxy.down()
            timer = threading.Timer(0.1, proxy.up)
            timer.start()
            got += reader.read(30_000)
            timer.join()
        got += reader.read()
    assert got == CONTENT


@pytest.mark.parametrize("size", [0, 1, 50_000, len(CONTENT)], ids=["none", "a_byte", "half", "all"])
def test_a_closed_client_leaves_no_connection(proxy: TcpProxy, journal: str, size: int) -> None:
    with Client(proxy.endpoint, timeout_s=60) as client:
        with client.read(journal, end_offset=len(CONTENT)) as reader:
            assert reader.read(size) == CONTENT[:size]
            next(reader, None)
        with WatchedList(client, f"name={journal}") as watched:
            assert len(watched.list().journals) == 1
        assert client.write_heads([journal]) == {journal: len(CONTENT)}
        assert proxy.connections > 1
    wait_for(lambda: proxy.open_connections == 0, "the end of every connection")


def test_a_tail_behind_a_network_that_breaks(
    proxy: TcpProxy, client: Client, behind: Client, journal: str
) -> None:
    got = bytearray()
    more = [bytes([index]) * 500 for index in range(20)]
    expected = CONTENT + b"".join(more)

    def tail() -> None:
        with behind.read(journal, end_offset=len(expected)) as reader:
            for chunk in reader:
                got.extend(chunk.content)

    thread = threading.Thread(target=tail)
    thread.start()
    for index, content in enumerate(more):
        proxy.cut(reset=index % 2 == 0)
        client.append(journal, content)
    thread.join(30)
    assert bytes(got) == expected


def test_a_single_reader_does_not_hide_a_cut(proxy: TcpProxy, behind: Client, journal: str) -> None:
    """A Reader is one call, so it raises the reset, at the offset it has reached."""
    proxy.to_client = Toxics(limit_bytes=20_000)
    with behind.reader(journal) as reader:
        got = b"".join(read_until(reader, UnavailableError))
        assert got == CONTENT[: len(got)]
        assert reader.offset == len(got) < 20_000
        with pytest.raises(UnavailableError):
            reader.read(1)
    proxy.to_client = CLEAN
    with behind.reader(journal, offset=len(got)) as reader:
        got += b"".join(read_until(reader, OffsetNotYetAvailableError))
    assert got == CONTENT


def read_until(reader: Reader, error: type[GazetteError]) -> Iterator[bytes]:
    try:
        while part := reader.read(100):
            yield part
    except error:
        return
    raise AssertionError(f"{reader} ended quietly")


def test_a_broker_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    port = 0
    got = b""
    reader: RetryReader | None = None
    client: Client | None = None
    try:
        for life in range(4):
            with serve(tmp_path, f"--port={port}") as (process, endpoint):
                if client is None:
                    client = Client(endpoint, timeout_s=60)
                    client.create_journals(journal_spec("killed/journal"))
                    client.append("killed/journal", CONTENT)
                    port = int(endpoint.rpartition(":")[2])
                    reader = client.read("killed/journal", end_offset=len(CONTENT))
                assert reader is not None
                got += reader.read(20_000 if life < 3 else -1)
                process.send_signal(9)
                process.wait(30)
    finally:
        if client is not None:
            client.close()
    assert got == CONTENT
