"""Each broker lists and reads what the other one stored under the same root."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gazette_spark import EmbeddedBroker
from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.wire import Wire, spec, wait_for
from tests.rig.brokers import BrokerHandle, DeployedBroker

pytestmark = pytest.mark.deployed_broker

CODECS = ["NONE", "GZIP", "ZSTANDARD", "SNAPPY"]
TEMPLATE = (
    'date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}/hour={{ .Spool.FirstAppendTime.Format "15" }}'
)
RANDOM = random.Random(7)
APPENDS = [
    b'{"id": 1, "text": "compressible"}\n' * 70_000,
    RANDOM.randbytes(1_300_000),
    b"tiny\n",
    b"\x00" * 200_000,
]
"""Compressible, incompressible and tiny content, longer than one GZIP member and one Snappy block."""


def specs(prefix: str) -> list[pb.JournalSpec]:
    return [
        spec(
            f"{prefix}{codec.lower()}",
            compression_codec=pb.CompressionCodec.Value(codec),
            length=1 << 20,
            path_postfix_template=TEMPLATE,
        )
        for codec in CODECS
    ]


def fill(wire: Wire, journals: list[pb.JournalSpec]) -> None:
    wire.create(*journals)
    for journal in journals:
        for content in APPENDS:
            pieces = [content[at : at + 500_000] for at in range(0, len(content), 500_000)]
            assert wire.append(journal.name, *pieces).status == pb.OK


@dataclass(frozen=True)
class Stored:
    """What one broker stored under a root: the content of each journal, and its fragments without times."""

    root: Path
    journals: list[pb.JournalSpec]
    content: dict[str, bytes]
    fragments: dict[str, list[pb.Fragment]]


def look(wire: Wire, journals: list[pb.JournalSpec], root: Path) -> Stored:
    listed = {each.name: [one.spec for one in wire.fragments(each.name).fragments] for each in journals}
    stored = {name: [one for one in spans if one.mod_time] for name, spans in listed.items()}
    content = {name: wire.content(name, end_offset=spans[-1].end) for name, spans in stored.items()}
    return Stored(root, journals, content, stored)


@pytest.fixture(scope="module")
def by_embedded(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """What an embedded broker stored before it stopped."""
    root = tmp_path_factory.mktemp("by-embedded")
    with EmbeddedBroker(root) as broker, Wire(broker.endpoint) as wire:
        journals = specs("interop/embedded/")
        fill(wire, journals)
        broker.flush()
        return look(wire, journals, root)


@pytest.fixture(scope="module")
def by_deployed(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """What a deployed broker stored before it was killed."""
    root = tmp_path_factory.mktemp("by-deployed")
    state = tmp_path_factory.mktemp("deployed-state")
    with DeployedBroker(state, file_root=root) as broker, Wire(broker.endpoint) as wire:
        journals = specs("interop/deployed/")
        fill(wire, journals)
        for journal in journals:
            wire.wait_persisted(journal.name, 2)
        return look(wire, journals, root)


@pytest.fixture(scope="module")
def deployed_after(by_embedded: Stored, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerHandle]:
    state = tmp_path_factory.mktemp("deployed-after")
    with DeployedBroker(state, file_root=by_embedded.root) as broker, Wire(broker.endpoint) as wire:
        wire.create(*by_embedded.journals)
        yield broker


@pytest.fixture(scope="module")
def embedded_after(by_deployed: Stored) -> Iterator[BrokerHandle]:
    with EmbeddedBroker(by_deployed.root) as broker, Wire(broker.endpoint) as wire:
        wire.create(*by_deployed.journals)
        yield BrokerHandle(broker.endpoint, by_deployed.root)


def check_same(stored: Stored, after: BrokerHandle) -> None:
    with Wire(after.endpoint) as wire:
        for name, content in stored.content.items():
            assert [one.spec for one in wire.fragments(name).fragments] == stored.fragments[name]
            assert wire.content(name) == content
            assert after.gazctl_bytes("journals", "read", "-l", f"name={name}") == content


def check_reset(stored: Stored, after: BrokerHandle) -> None:
    """Check that appends are refused until the head is reset, and then continue at the stored end."""
    name = stored.journals[0].name
    end = stored.fragments[name][-1].end
    with Wire(after.endpoint) as wire:
        assert wire.append(name, b"x").status == pb.INDEX_HAS_GREATER_OFFSET
        after.gazctl("journals", "reset-head", "-l", f"name={name}")
        assert wire.append(name, b"new").commit.begin == end
        wait_for(lambda: wire.content(name, offset=end) == b"new", "content after the reset")


def test_all_is_stored(by_embedded: Stored, by_deployed: Stored) -> None:
    """The embedded broker stores all bytes, because the test flushes it."""
    assert set(by_embedded.content.values()) == {b"".join(APPENDS)}
    for content in by_deployed.content.values():
        assert len(content) >= len(APPENDS[0]) + len(APPENDS[1])
        assert b"".join(APPENDS).startswith(content)


def test_both_name_fragments_alike(by_embedded: Stored, by_deployed: Stored) -> None:
    for codec in CODECS:
        ours, theirs = (
            stored.fragments[f"interop/{name}/{codec.lower()}"]
            for stored, name in ((by_embedded, "embedded"), (by_deployed, "deployed"))
        )
        assert [(one.begin, one.end, one.sum) for one in ours][: len(theirs)] == [
            (one.begin, one.end, one.sum) for one in theirs
        ]
        files = [
            {path.name for path in (stored.root / f"interop/{name}/{codec.lower()}").rglob("0*")}
            for stored, name in ((by_embedded, "embedded"), (by_deployed, "deployed"))
        ]
        assert files[1] <= files[0]


def test_deployed_reads_embedded(by_embedded: Stored, deployed_after: BrokerHandle) -> None:
    check_same(by_embedded, deployed_after)
    check_reset(by_embedded, deployed_after)


def test_embedded_reads_deployed(by_deployed: Stored, embedded_after: BrokerHandle) -> None:
    check_same(by_deployed, embedded_after)
    check_reset(by_deployed, embedded_after)
