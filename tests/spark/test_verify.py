"""``gazette-spark verify`` names what is wrong with a table the sink wrote; a lost ledger begins again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from gazette_spark.cli.main import main
from gazette_spark.client import Client
from gazette_spark.errors import TableRefusedError
from gazette_spark.failpoints import FAILPOINT_VARIABLE
from gazette_spark.ledger.row_digest import digest_of, digest_text
from gazette_spark.offsets import JournalOffsets
from gazette_spark.sink import DeltaSink
from tests.rig.brokers import BrokerHandle
from tests.spark.source_queries import QUERY_TIMEOUT_S, Journals, records

SHORTS = ("a", "b=%2Bc+d")
"""The second as nasty as a journal's name can be: it becomes a directory of a partitioned table."""

PARSED = "id BIGINT, city STRING, _journal STRING, _offset BIGINT, _end_offset BIGINT"


class Table:
    """A Delta table that the sink fills from two journals."""

    def __init__(self, journals: Journals, root: Path, name: str, *, schema: str | None = None) -> None:
        self.journals = journals
        self.spark = journals.spark
        self.path = root / name
        self.checkpoint = root / f"{name}-checkpoint"
        self.schema = schema

    def sink(self) -> DeltaSink:
        """A writer, as a fresh process would make it."""
        return DeltaSink("orders", path=str(self.path), audit=True)

    def run(self, max_bytes: int = 400) -> None:
        """Run the query up to the journals' ends, in batches."""
        reader = self.spark.readStream.format("gazette").options(
            brokerAddress=self.journals.broker.endpoint,
            maxBytesPerTrigger=str(max_bytes),
            startingOffsets="earliest",
        )
        if self.schema:
            reader = reader.option("format", "json").schema(self.schema)
        rows = self.sink().resume(reader, self.spark).load(self.journals.prefix)
        query = self.sink().start(rows, checkpoint=str(self.checkpoint), availableNow=True)
        assert query.awaitTermination(QUERY_TIMEOUT_S)

    def sql(self, statement: str) -> None:
        """Run a statement on the table, written ``{t}``."""
        self.spark.sql(statement.format(t=f"delta.`{self.path}`")).collect()

    def rows(self) -> DataFrame:
        """What the table holds."""
        return self.spark.read.format("delta").load(str(self.path))

    def copy(self, name: str) -> Table:
        """Copy the table as it stands: nothing of it is cached by Delta."""
        made = Table(self.journals, self.path.parent, name, schema=self.schema)
        shutil.copytree(self.path, made.path)
        return made

    def command(self, *words: str) -> Result:
        """Run ``gazette-spark`` on the table."""
        broker = ["--broker", self.journals.broker.endpoint]
        return CliRunner().invoke(main, [*words, str(self.path), *broker, "--format", "json"])

    def verified(self) -> dict[str, Any]:
        """What the command says of a table that must be whole."""
        found = self.command("verify")
        assert found.exit_code == 0, found.output
        report: dict[str, Any] = json.loads(found.stdout)
        return report

    def differs(self) -> tuple[str, int, str]:
        """Journal, offset and problem of the first difference."""
        found = self.command("verify")
        assert (found.exit_code, found.stderr) == (1, ""), found
        difference = json.loads(found.stdout)["difference"]
        return difference["journal"], difference["offset"], difference["problem"]


@pytest.fixture
def journals(
    spark: SparkSession, embedded_broker: BrokerHandle, fresh_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Journals]:
    """Two journals without a record."""
    monkeypatch.delenv(FAILPOINT_VARIABLE, raising=False)
    with Client(embedded_broker.endpoint, timeout_s=30) as client:
        made = Journals(spark, embedded_broker, client, fresh_prefix)
        made.create(*SHORTS)
        yield made


def append(journals: Journals, first: int, count: int) -> None:
    """Append JSON records to both journals in turn."""
    for number in range(first, first + count):
        record = {"id": number, "city": ("Köln", "Bonn", "x" * (number % 5))[number % 3]}
        journals.append(SHORTS[number % 2], json.dumps(record, ensure_ascii=False).encode() + b"\n")


def content(journals: Journals, short: str) -> bytes:
    """All bytes of a journal."""
    name = journals.name(short)
    with journals.client.read(name, offset=0, end_offset=journals.client.write_head(name)) as chunks:
        return b"".join(chunk.content for chunk in chunks)


def crash(table: Table, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the query fail at a point of its second batch."""
    monkeypatch.setenv(FAILPOINT_VARIABLE, f"{point}:2:raise")
    with pytest.raises(StreamingQueryException, match=point):
        table.run()
    monkeypatch.delenv(FAILPOINT_VARIABLE)


def lived(table: Table, monkeypatch: pytest.MonkeyPatch) -> Table:
    """Fill the table through a crash, OPTIMIZE, and a RESTORE that takes rows back."""
    append(table.journals, 0, 24)
    crash(table, "sink.after_write", monkeypatch)
    table.run()
    table.sql("OPTIMIZE {t}")
    append(table.journals, 24, 12)
    table.run()
    table.sql("RESTORE TABLE {t} TO VERSION AS OF 2")
    shutil.rmtree(table.checkpoint)
    table.run(max_bytes=600)
    return table


def delete(table: Table, where: str) -> None:
    """Take rows out."""
    table.sql(f"DELETE FROM {{t}} WHERE {where}")


def double(table: Table, where: str) -> None:
    """Add rows a second time, in a commit without an entry."""
    table.rows().where(where).write.format("delta").mode("append").save(str(table.path))


def overwrite(table: Table, where: str) -> None:
    """Replace the table by all rows but some; Delta's history goes on."""
    kept = table.rows().where(f"NOT ({where})").localCheckpoint()
    kept.write.format("delta").mode("overwrite").save(str(table.path))


def delete_by_vector(table: Table, where: str) -> None:
    """Take rows out and leave their files as they are, with a deletion vector."""
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    delete(table, where)
    log = max((table.path / "_delta_log").glob("*.json")).read_text()
    assert '"deletionVector":{' in log


NO_ROW, TWICE = "the record has no row", "more than once"
DAMAGES: dict[str, tuple[Callable[[Table, str], None], str]] = {
    "deleted": (delete, NO_ROW),
    "doubled": (double, TWICE),
    "overwritten": (overwrite, NO_ROW),
    "deleted by a vector": (delete_by_vector, NO_ROW),
}


@pytest.mark.timeout(600)
def test_raw_rows_are_verified(journals: Journals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes, rows and digests agree after crashes, OPTIMIZE and RESTORE; damage is named by its record."""
    table = lived(Table(journals, tmp_path, "raw"), monkeypatch)
    journals.append("a", b"\n")
    table.run()
    report = table.verified()
    assert (report["compared"], sum(each["records"] for each in report["journals"])) == ("bytes", 37)
    assert report["audited"] >= 4
    entry = table.sink().ledger(table.spark)
    assert entry is not None
    assert entry.audit is not None
    (last,) = entry.audit
    bytes_of_a = content(journals, "a")
    assert (last.journal, last.rows) == (journals.name("a"), 1)
    assert last.digest == digest_text(digest_of([(len(bytes_of_a) - 1, b"")]))
    offset, _ = records(bytes_of_a)[7]
    where = f"journal = '{journals.name('a')}' AND offset = {offset}"
    for name, (damage, problem) in DAMAGES.items():
        damaged = table.copy(name)
        damage(damaged, where)
        journal, at, text = damaged.differs()
        assert (journal, at) == (journals.name("a"), offset), name
        assert problem in text, name


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_parsed_rows_in_partitions_are_verified(
    journals: Journals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are counted by journal and compared by offset; one too many is named."""
    table = Table(journals, tmp_path, "parsed", schema=PARSED)
    table.sql(f"CREATE TABLE {{t}} ({PARSED}) USING delta PARTITIONED BY (city, _journal)")
    lived(table, monkeypatch)
    report = table.verified()
    assert (report["compared"], sum(each["records"] for each in report["journals"])) == ("offsets", 36)
    assert report["audited"] >= 4
    offset, _ = records(content(journals, "a"))[7]
    where = f"_journal = '{journals.name('a')}' AND _offset = {offset}"
    double(table, where)
    journal, at, text = table.differs()
    assert (journal, at) == (journals.name("a"), offset)
    assert TWICE in text


@pytest.mark.timeout(600)
def test_a_ledger_that_was_cleaned_up_begins_again(journals: Journals, tmp_path: Path) -> None:
    """The rows say where they end, the sink adopts that, once, and a new query goes on without a seam."""
    whole = Table(journals, tmp_path, "whole")
    append(journals, 0, 20)
    whole.run()
    whole.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    whole.sql("ALTER TABLE {t} SET TBLPROPERTIES ('note' = 'x')")
    logs = sorted((whole.path / "_delta_log").glob("*.json"))
    assert Path(str(logs[-1]).replace(".json", ".checkpoint.parquet")).exists()
    for log in logs[:-1]:
        log.unlink()
    table = whole.copy("table")
    append(journals, 20, 10)
    with pytest.raises(StreamingQueryException, match=r"(?s)LedgerLostError.*--from-data.*DeltaSink\.adopt"):
        table.run()
    shutil.rmtree(table.checkpoint)
    found = table.command("offsets", "show", "--from-data")
    assert found.exit_code == 0, found.output
    offsets = JournalOffsets.from_json(found.stdout)
    assert set(offsets.read_through) == {journals.name(short) for short in SHORTS}
    behind = JournalOffsets({**offsets.read_through, journals.name("a"): 3})
    with pytest.raises(TableRefusedError, match="to go on at 3"):
        table.sink().adopt(behind, table.spark)
    entry = table.sink().adopt(offsets, table.spark)
    assert (entry.adopted, entry.txn_version) == (True, 1024)
    assert table.sink().adopt(offsets, table.spark) == entry
    with pytest.raises(TableRefusedError, match=r"has a ledger.*resume"):
        table.sink().adopt(behind, table.spark)
    table.run()
    assert table.rows().count() == 30
    report = table.verified()
    assert [each["begin"] for each in report["journals"]] == list(offsets.read_through.values())
