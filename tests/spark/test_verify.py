"""``gazette-spark verify`` reads what Spark's Delta wrote: tables of the real sink, and damage to them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gazette_spark.broker.embedded import EmbeddedBroker
from gazette_spark.cli.main import main
from gazette_spark.client import Client
from gazette_spark.protocol.journals import journal_spec
from tests.spark.conftest import FileStream


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """Address of a broker without journals."""
    with EmbeddedBroker.start(tmp_path / "broker") as broker:
        yield broker.endpoint


def fill(endpoint: str, stream: FileStream) -> None:
    """Give a broker the journals that the stream has read from files."""
    with Client(endpoint) as client:
        for journal, content in stream.truth().items():
            client.create_journals(journal_spec(journal))
            client.append(journal, content)


def verify(stream: FileStream, endpoint: str) -> dict[str, Any]:
    """Return the command's answer, which is that of its exit code."""
    found = CliRunner().invoke(main, ["verify", str(stream.table), "--broker", endpoint, "--format", "json"])
    assert found.stderr == "", found.stderr
    answer: dict[str, Any] = json.loads(found.stdout)
    assert found.exit_code == (0 if answer["verified"] else 1)
    return answer


def test_what_the_sink_wrote_is_verified(stream: FileStream, endpoint: str) -> None:
    """Through OPTIMIZE and RESTORE, with the rows that each commit says it wrote."""
    stream.append(40)
    stream.run(maxBytesPerTrigger=200)
    stream.sql("OPTIMIZE {t}")
    entry = stream.sink().ledger()
    assert entry is not None
    stream.append(10)
    stream.run()
    fill(endpoint, stream)
    answer = verify(stream, endpoint)
    assert (answer["verified"], answer["compared"]) == (True, "bytes"), answer
    assert sum(each["records"] for each in answer["journals"]) == 50
    commits = answer["writers"][0]["commits"]
    assert len(commits) > 3
    assert sum(each["rows"] for each in commits) == 50
    stream.sql(f"RESTORE TABLE {{t}} TO VERSION AS OF {commits[1]['table_version']}")
    restored = verify(stream, endpoint)
    assert restored["verified"], restored
    assert 0 < sum(each["records"] for each in restored["journals"]) < 50


def test_rows_that_were_changed_are_found(stream: FileStream, endpoint: str) -> None:
    """A row that was deleted, one whose bytes were changed, and one that came twice."""
    stream.sql(
        "CREATE TABLE {t} (journal STRING, offset BIGINT, value BINARY) USING delta "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')"
    )
    stream.append(40)
    stream.run(maxBytesPerTrigger=200)
    fill(endpoint, stream)
    rows = stream.spark.read.format("delta").load(str(stream.table)).where("journal = 'b'").orderBy("offset")
    offset = rows.collect()[7].offset
    place = f"journal = 'b' AND offset = {offset}"
    intact = stream.spark.sql(f"DESCRIBE HISTORY delta.`{stream.table}` LIMIT 1").collect()[0].version
    for damage, problem in [
        (f"DELETE FROM {{t}} WHERE {place}", "no row"),
        (f"UPDATE {{t}} SET value = CAST('record' AS BINARY) WHERE {place}", "bytes"),
        (f"INSERT INTO {{t}} SELECT * FROM {{t}} WHERE {place}", "more than once"),
    ]:
        stream.sql(damage)
        difference = verify(stream, endpoint)["difference"]
        assert (difference["journal"], difference["offset"]) == ("b", offset)
        assert problem in difference["problem"]
        stream.sql(f"RESTORE TABLE {{t}} TO VERSION AS OF {intact}")
        assert verify(stream, endpoint)["verified"]
