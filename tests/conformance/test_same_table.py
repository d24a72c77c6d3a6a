"""The same appends and the same query give byte-identical tables on both brokers."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gazette_spark.protocol import protocol_pb2 as pb
from tests.conformance.queries import Reading, canonical_bytes, sha256, sorted_rows
from tests.conformance.wire import Wire, spec
from tests.rig.brokers import BrokerHandle, DeployedBroker

pytestmark = pytest.mark.deployed_broker

CODECS = (pb.NONE, pb.GZIP, pb.SNAPPY, pb.ZSTANDARD)
"""Codecs of the journals, one each; the codec must not affect the table."""

JSON_SCHEMA = "_journal STRING, _offset BIGINT, id BIGINT, name STRING, amount DOUBLE, tags ARRAY<STRING>"


def record(dice: random.Random, number: int) -> bytes:
    fields = {
        "id": number,
        "name": dice.choice(["plain", "näme", 'quo"te', "名前", "", None]) or None,
        "amount": dice.choice([0, -1.5, 1e-9, dice.random() * 1e6]),
        "tags": [dice.choice("abc") * dice.randrange(40) for _ in range(dice.randrange(4))],
    }
    return json.dumps(fields, ensure_ascii=dice.random() < 0.5).encode() + b"\n"


def append_all(broker: BrokerHandle, prefix: str, dice: random.Random) -> None:
    with Wire(broker.endpoint) as wire:
        journals = [f"{prefix}{pb.CompressionCodec.Name(codec).lower()}" for codec in CODECS]
        wire.create(
            *(
                spec(journal, length=16_384, compression_codec=codec)
                for journal, codec in zip(journals, CODECS, strict=True)
            )
        )
        pending = dict.fromkeys(journals, b"")
        for number in range(2_000):
            journal = dice.choice(journals)
            pending[journal] += record(dice, number)
            cut = dice.randrange(len(pending[journal]) + 1)
            if dice.random() < 0.1 and cut:
                wire.append(journal, pending[journal][:cut])
                pending[journal] = pending[journal][cut:]
        for journal, rest in pending.items():
            wire.append(journal, *([rest] if rest else []))


@pytest.fixture
def both(
    embedded_broker: BrokerHandle, deployed_broker: DeployedBroker, fresh_prefix: str
) -> tuple[BrokerHandle, BrokerHandle]:
    for broker in (embedded_broker, deployed_broker):
        append_all(broker, fresh_prefix, random.Random(fresh_prefix))
    return embedded_broker, deployed_broker


@pytest.mark.parametrize(
    "schema",
    [pytest.param("", id="raw", marks=pytest.mark.soak), pytest.param(JSON_SCHEMA, id="json")],
)
def test_stream_into_delta(
    spark: SparkSession,
    both: tuple[BrokerHandle, BrokerHandle],
    fresh_prefix: str,
    tmp_path: Path,
    schema: str,
) -> None:
    keys = ("_journal", "_offset") if schema else ("journal", "offset")
    digests = []
    for name, broker in zip(("embedded", "deployed"), both, strict=True):
        reading = Reading(broker, fresh_prefix, schema=schema, max_bytes_per_trigger=100_000)
        rows = sorted_rows(reading.write_available(spark, tmp_path / name), *keys)
        assert rows.num_rows == 2_000
        digests.append(sha256(canonical_bytes(rows)))
    assert digests[0] == digests[1]


def test_batch_equals_stream(
    spark: SparkSession, both: tuple[BrokerHandle, BrokerHandle], fresh_prefix: str, tmp_path: Path
) -> None:
    embedded, deployed = (Reading(broker, fresh_prefix) for broker in both)
    streamed = sorted_rows(embedded.write_available(spark, tmp_path), "journal", "offset")
    expected = sha256(canonical_bytes(streamed))
    for reading in (embedded, deployed):
        assert sha256(canonical_bytes(sorted_rows(reading.batch(spark), "journal", "offset"))) == expected
