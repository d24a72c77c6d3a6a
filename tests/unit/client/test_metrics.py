"""Tests that a client counts reads and appends under the names of Gazette's Go client."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from gazette_spark.broker.embedded import EmbeddedBroker
from gazette_spark.client import Client
from gazette_spark.client._read.fragment import FragmentReader
from gazette_spark.client.metrics import ClientMetrics
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.protocol.journal_specs import journal_spec

CONTENT = bytes(100)
FRAGMENT = Fragment(
    "a/journal", 1000, 1100, hashlib.sha1(CONTENT, usedforsecurity=False).digest(), pb.NONE, "s3://b/", 1
)


def test_appends_and_reads_are_counted(tmp_path: Path) -> None:
    """Bytes count once they are committed, or returned to the caller."""
    with EmbeddedBroker(tmp_path) as broker, Client(broker.endpoint) as client:
        client.create_journals(journal_spec("a/journal"), journal_spec("a/quiet"))
        client.append("a/journal", b"12345")
        with client.appender("a/journal") as aborted:
            aborted.write(b"never")
        with client.read("a/journal", offset=2) as reader:
            assert reader.read() == b"345"
        values = client.metrics.values()
    assert values["gazette_append_bytes_total", ("a/journal",)] == 5
    assert values["gazette_read_bytes_total", ("a/journal",)] == 3
    assert {name for name, labels in values if "a/quiet" in labels} <= {"gazette_append_bytes_total"}


def test_bytes_of_a_fragment_are_read_or_discarded() -> None:
    """Bytes before the requested offset or skipped by a seek are discarded."""
    metrics = ClientMetrics()
    with FragmentReader(io.BytesIO(CONTENT), FRAGMENT, 1040, metrics=metrics) as reader:
        assert len(reader.read()) == 60
    whose = ("a/journal", "NONE")
    assert metrics.values() == {
        ("gazette_fragment_open_total", whose): 1,
        ("gazette_read_fragment_bytes_total", whose): 60,
        ("gazette_discard_fragment_bytes_total", whose): 40,
    }


def test_prometheus_reads_the_exposition() -> None:
    """A journal's metadata suffix is not part of the label."""
    metrics = ClientMetrics()
    metrics.add("gazette_read_bytes_total", 3, "a/journal;meta")
    metrics.add("gazette_read_bytes_total", 4, "a/journal")
    metrics.add("gazette_fragment_open_total", 1, "a/b", pb.SNAPPY)
    families = {each.name: each for each in text_string_to_metric_families(metrics.exposition())}
    found = {
        name: [(each.labels, each.value) for each in family.samples] for name, family in families.items()
    }
    assert found == {
        "gazette_append_bytes": [],
        "gazette_read_bytes": [({"journal": "a/journal"}, 7.0)],
        "gazette_fragment_open": [({"journal": "a/b", "codec": "SNAPPY"}, 1.0)],
        "gazette_read_fragment_bytes": [],
        "gazette_discard_fragment_bytes": [],
    }
    assert {family.type for family in families.values()} == {"counter"}
