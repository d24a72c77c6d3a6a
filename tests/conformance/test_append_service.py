"""An append service behaves the same on the embedded and on the real broker, whatever fails on the way."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gazette_spark import Client
from gazette_spark.client import AppendOptions, AppendResult, AppendService, AsyncAppend, journal_spec
from gazette_spark.client._append.append import Bytes
from gazette_spark.client._append.mappings import ModuloMapping, RendezvousMapping
from gazette_spark.errors import (
    NoJournalPrimaryBrokerError,
    UnavailableError,
)
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.labels import label_set
from tests.rig.brokers import BrokerHandle

pytestmark = pytest.mark.brokers("embedded", "deployed")

TEXT = {"content-type": "text/plain"}
SOON = 60
"""Maximum seconds until an expected event."""


@pytest.fixture
def journals(client: Client, fresh_prefix: str) -> list[str]:
    names = [f"{fresh_prefix}part-{each}" for each in range(4)]
    client.create_journals(*[journal_spec(name, labels=TEXT) for name in names])
    return names


@pytest.fixture
def service(client: Client) -> Iterator[AppendService]:
    with AppendService(client) as opened:
        yield opened


def content_of(client: Client, journal: str) -> bytes:
    return client.read(journal, end_offset=client.write_head(journal)).read() or b""


def author(name: str) -> pb.LabelSelector:
    return pb.LabelSelector(include=label_set({"author": name}))


def test_many_small_appends(client: Client, journals: list[str]) -> None:
    appended: list[tuple[str, bytes, AsyncAppend]] = []
    with AppendService(client) as service:
        for each in range(10_000):
            journal = journals[each % 3]
            record = b"%08d " % each + b"x" * 190 + b"\n"
            appended.append((journal, record, service.append(journal, record)))
    found = {journal: content_of(client, journal) for journal in journals}
    assert sum(map(len, found.values())) == 10_000 * 200
    at: dict[str, int] = defaultdict(int)
    for journal, record, append in appended:
        begin, end = append.span
        assert begin == at[journal]
        assert found[journal][begin:end] == record
        at[journal] = end


def test_large_and_small_keep_their_order(
    service: AppendService, client: Client, journals: list[str]
) -> None:
    """An append of 12 MiB, which goes through a file, keeps its place among small ones."""
    large = bytes(range(256)) * (12 << 12)
    journal = journals[0]
    service.append(journal, b"before\n")
    with service.start_append(journal) as started:
        for at in range(0, len(large), 1 << 20):
            started.write(large[at : at + (1 << 20)])
    taken_back = service.start_append(journal)
    taken_back.write(large)
    taken_back.abort()
    service.append(journal, b"after\n").result(SOON)
    assert started.span == (7, 7 + len(large))
    assert content_of(client, journal) == b"before\n" + large + b"after\n"


def test_a_checkpoint_comes_behind_what_it_covers(
    service: AppendService, client: Client, journals: list[str]
) -> None:
    *parts, target = journals
    expected: dict[str, bytes] = defaultdict(bytes)
    for turn in range(10):
        for part in parts:
            service.append(part, b"%d;" % turn)
            expected[part] += b"%d;" % turn
        with service.start_append(target, dependencies=service.pending_except(target)) as barrier:
            barrier.write(b"checkpoint %d;" % turn)
        if turn % 3 == 0:
            barrier.result(SOON)
            assert {part: content_of(client, part) for part in parts} == expected
    service.flush()
    assert content_of(client, target) == b"".join(b"checkpoint %d;" % turn for turn in range(10))


def test_mapped_messages_land_where_the_mapping_says(client: Client, fresh_prefix: str) -> None:
    specs = [journal_spec(f"{fresh_prefix}part-{each:03d}", labels=TEXT) for each in range(10)]
    client.create_journals(*specs)
    listed = client.list_journals(f"prefix={fresh_prefix}")
    messages = [b"key-%d" % each for each in range(200)]
    for mapping in (
        ModuloMapping[bytes](lambda key: key, listed),
        RendezvousMapping[bytes](lambda key: key, listed),
    ):
        expected: dict[str, bytes] = defaultdict(bytes)
        before = client.write_heads([spec.name for spec in specs])
        with AppendService(client) as service:
            for message in messages:
                journal, content_type = mapping(message)
                assert content_type == "text/plain"
                service.append(journal, message + b"\n")
                expected[journal] += message + b"\n"
        for name, head in before.items():
            assert content_of(client, name)[head:] == expected[name]


class FlakyClient(Client):
    """A client that sometimes fails an append before it begins, or loses the broker's answer."""

    def __init__(self, endpoint: str, seed: int) -> None:
        super().__init__(endpoint, timeout_s=30)
        self._random = random.Random(seed)

    def try_append(self, options: AppendOptions, content: Iterable[Bytes], **keys: Any) -> AppendResult:
        how = self._random.random()
        if how < 0.15:
            raise NoJournalPrimaryBrokerError(options.journal)
        result = super().try_append(options, content, **keys)
        if how < 0.3:
            raise UnavailableError(self.endpoint, "the answer was lost")
        return result


def run_writer(service: AppendService, journals: list[str], writer: int) -> dict[str, list[bytes]]:
    """Append sixty lines in pieces, some with dependencies; return those not aborted, by journal."""
    kept: dict[str, list[bytes]] = defaultdict(list)
    choose = random.Random(writer)
    previous: list[AsyncAppend] = []
    for serial in range(60):
        journal = choose.choice(journals)
        line = b"%d %d " % (writer, serial) + b"x" * choose.choice([0, 10, 1000, 50_000]) + b"\n"
        if choose.random() < 0.4:
            previous.append(service.append(journal, line))
            kept[journal].append(line)
            continue
        started = service.start_append(journal, dependencies=previous[-2:] if choose.random() < 0.3 else ())
        cut = choose.randrange(len(line))
        started.write(line[:cut])
        started.write(line[cut:])
        if choose.random() < 0.3:
            started.abort()
        else:
            started.release()
            previous.append(started)
            kept[journal].append(line)
    return kept


@pytest.mark.parametrize("seed", [7, 8], ids=["one way", "another way"])
def test_any_interleaving_is_whole_and_in_order(
    broker: BrokerHandle, client: Client, journals: list[str], seed: int
) -> None:
    """The journal may contain an append twice if its answer was lost."""
    with (
        FlakyClient(broker.endpoint, seed) as flaky,
        AppendService(flaky, max_memory_bytes=300_000) as service,
        ThreadPoolExecutor() as pool,
    ):
        runs = [pool.submit(run_writer, service, journals, seed * 10 + each) for each in range(5)]
        expected = {seed * 10 + at: run.result(SOON) for at, run in enumerate(runs)}
    for journal in journals:
        lines = list(dict.fromkeys(content_of(client, journal).splitlines(keepends=True)))
        found = {writer: [line for line in lines if int(line.split()[0]) == writer] for writer in expected}
        assert found == {writer: kept[journal] for writer, kept in expected.items()}
        assert sum(map(len, found.values())) == len(lines)
