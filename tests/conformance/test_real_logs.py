"""Real logs, appended by gazctl, come out of Spark and Delta complete, once and unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conformance.queries import Reading, journal_bytes, sha256, sorted_rows
from tests.conformance.real_logs import JSON_DDL, RealLog, find_logs, json_line, split
from tests.rig.brokers import BrokerHandle, DeployedBroker

pytestmark = pytest.mark.parametrize(
    "broker",
    [
        pytest.param("embedded", marks=pytest.mark.soak),
        pytest.param("cluster", marks=pytest.mark.soak),
        pytest.param("deployed", marks=pytest.mark.deployed_broker),
    ],
    indirect=True,
)

SPECS = """
name: {prefix}
replication: 1
fragment:
  length: 65536
  compression_codec: {codec}
  stores: ["file:///"]
  refresh_interval: 1s
children:
{children}
"""


@pytest.fixture(scope="module")
def logs(deployed_broker: DeployedBroker) -> list[RealLog]:
    found = find_logs({"gazette-broker": deployed_broker.log_path})
    assert found
    return found


def create(broker: BrokerHandle, prefix: str, logs: list[RealLog], codec: str = "SNAPPY") -> None:
    names = sorted(prefix + log.name for log in logs)
    children = "\n".join(f"  - name: {name}" for name in names)
    assert broker.apply_specs(SPECS.format(prefix=prefix, children=children, codec=codec)) == names


def append(broker: BrokerHandle, journal: str, content: bytes, framing: str = "lines") -> None:
    broker.gazctl("journals", "append", "-l", f"name={journal}", "-f", framing, input=content)


def read_back(broker: BrokerHandle, journal: str) -> bytes:
    return broker.gazctl_bytes("journals", "read", "-l", f"name={journal}")


def halves(content: bytes) -> tuple[bytes, bytes]:
    # Not splitlines(), which also cuts at carriage returns: terminals' logs are full of them.
    lines = [line + b"\n" for line in content.removesuffix(b"\n").split(b"\n")]
    middle = len(lines) // 2
    return b"".join(lines[:middle]), b"".join(lines[middle:])


@pytest.mark.soak
@pytest.mark.parametrize("codec", ["SNAPPY", "GZIP"])
def test_lines_by_batch(
    spark: SparkSession, broker: BrokerHandle, fresh_prefix: str, logs: list[RealLog], codec: str
) -> None:
    create(broker, fresh_prefix, logs, codec)
    for log in logs:
        append(broker, fresh_prefix + log.name, log.lines)
    rows = sorted_rows(Reading(broker, fresh_prefix).batch(spark), "journal", "offset")
    assert rows.num_rows == sum(len(split(log.lines)) for log in logs)
    for log in logs:
        journal = fresh_prefix + log.name
        expected = sha256(read_back(broker, journal))
        assert expected == sha256(log.lines), log.name
        assert sha256(journal_bytes(rows, journal)) == expected, log.name


@pytest.mark.soak
def test_lines_by_stream_into_delta(
    spark: SparkSession, broker: BrokerHandle, fresh_prefix: str, logs: list[RealLog], tmp_path: Path
) -> None:
    create(broker, fresh_prefix, logs)
    reading = Reading(broker, fresh_prefix, max_bytes_per_trigger=300_000)
    for half in (0, 1):
        for log in logs:
            if content := halves(log.lines)[half]:
                append(broker, fresh_prefix + log.name, content, framing="none")
        table = reading.write_available(spark, tmp_path)
        rows = sorted_rows(table, "journal", "offset")
        for log in logs:
            journal = fresh_prefix + log.name
            assert sha256(journal_bytes(rows, journal)) == sha256(read_back(broker, journal)), log.name
    assert rows.num_rows == sum(len(split(log.lines)) for log in logs)


def test_json_by_batch(
    spark: SparkSession, broker: BrokerHandle, fresh_prefix: str, logs: list[RealLog]
) -> None:
    create(broker, fresh_prefix, logs)
    for log in logs:
        append(broker, fresh_prefix + log.name, log.json_lines)
    reading = Reading(broker, fresh_prefix, schema=f"_journal STRING, _offset BIGINT, {JSON_DDL}")
    check_json_rows(
        broker, fresh_prefix, logs, sorted_rows(reading.batch(spark), "_journal", "_offset").to_pylist()
    )


@pytest.mark.soak
def test_json_by_stream_into_delta(
    spark: SparkSession, broker: BrokerHandle, fresh_prefix: str, logs: list[RealLog], tmp_path: Path
) -> None:
    create(broker, fresh_prefix, logs)
    reading = Reading(
        broker,
        fresh_prefix,
        schema=f"_journal STRING, _offset BIGINT, {JSON_DDL}",
        max_bytes_per_trigger=500_000,
    )
    for half in (0, 1):
        for log in logs:
            if content := halves(log.json_lines)[half]:
                append(broker, fresh_prefix + log.name, content)
        table = reading.write_available(spark, tmp_path)
    check_json_rows(broker, fresh_prefix, logs, sorted_rows(table, "_journal", "_offset").to_pylist())


def check_json_rows(
    broker: BrokerHandle, prefix: str, logs: list[RealLog], rows: list[dict[str, object]]
) -> None:
    for log in logs:
        mine = [row for row in rows if row["_journal"] == prefix + log.name]
        assert [row["line_number"] for row in mine] == list(range(len(split(log.lines)))), log.name
        again, offset = [], 0
        for row, line in zip(mine, split(log.lines), strict=True):
            assert row["_offset"] == offset, log.name
            assert row["words"] == str(row["text"]).split(), log.name
            written = json_line(log.name, int(str(row["line_number"])), line)
            assert (row["log"], row["size"]) == (log.name, len(line))
            assert row["text"] == line.decode("utf-8", "backslashreplace")
            again.append(written)
            offset += len(written)
        assert sha256(b"".join(again)) == sha256(read_back(broker, prefix + log.name)), log.name
    assert len(rows) == sum(len(split(log.lines)) for log in logs)
