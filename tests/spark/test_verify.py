"""``gazette-spark verify`` accepts correct tables, and says where others differ or were not compared."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from gazette_spark import Client, DeltaSink, JournalOffsets, LedgerEntry
from gazette_spark._delta.batch_digest import digests
from gazette_spark._ledger.row_digest import AuditedRows
from gazette_spark._verify.parts import ROWS, Bins, Part
from gazette_spark._verify.spark_engine import SparkComparison, side
from gazette_spark._verify.tiling import CoveredRange
from gazette_spark.cli.main import main
from gazette_spark.client import journal_spec
from gazette_spark.errors import TableRefusedError
from gazette_spark.failpoints import FAILPOINT_VARIABLE
from gazette_spark.message import ACK_TXN, CONTINUE_TXN, OUTSIDE_TXN, Clock, ProducerId, build_uuid
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from tests.conformance.wire import wait_for
from tests.rig.audited_table import RECORD_BYTES, RECORDS, Orders, rows_of
from tests.rig.brokers import BrokerHandle
from tests.rig.row_digest import digest_of, row_text, that_cancel_out
from tests.spark.source_queries import QUERY_TIMEOUT_S, Journals, records

Row = tuple[int, bytes]

SHORTS = ("a", "b=%2Bc+d")
"""Short names of the journals. The second one is a worst case for the directory of a partitioned table."""

PARSED = "id BIGINT, city STRING, _journal STRING, _offset BIGINT, _end_offset BIGINT"


ENGINES = {"with Spark": False}
"""Whether the running test compares both engines."""


@pytest.fixture(autouse=True)
def _engines(request: pytest.FixtureRequest) -> None:
    """Compare the engines in a few tests in every run, and in all tests in soak."""
    marked = request.node.get_closest_marker("both_engines") is not None
    ENGINES["with Spark"] = marked or request.config.getoption("--soak")


def verify(table: Path, broker: BrokerHandle, *flags: str) -> Result:
    """Run the command without Spark, and if wanted also in Spark; both reports must be equal."""
    command = ["verify", str(table), "--broker", broker.endpoint, "--format", "json", *flags]
    found = CliRunner(catch_exceptions=False).invoke(main, command)
    if not ENGINES["with Spark"]:
        return found
    in_spark = CliRunner().invoke(main, [*command, "--spark"])
    assert (found.exit_code, found.stdout) == (in_spark.exit_code, in_spark.stdout)
    return found


class Table:
    def __init__(self, journals: Journals, root: Path, name: str, *, schema: str | None = None) -> None:
        self.journals = journals
        self.spark = journals.spark
        self.path = root / name
        self.checkpoint = root / f"{name}-checkpoint"
        self.schema = schema

    def sink(self) -> DeltaSink:
        """Return a sink as a new process would create it."""
        return DeltaSink("orders", path=str(self.path), audit=True)

    def run(self, max_bytes: int = 400) -> None:
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
        self.spark.sql(statement.format(t=f"delta.`{self.path}`")).collect()

    def rows(self) -> DataFrame:
        return self.spark.read.format("delta").load(str(self.path))

    def copy(self, name: str) -> Table:
        """Copy the table to a new path, where Delta has nothing cached."""
        made = Table(self.journals, self.path.parent, name, schema=self.schema)
        shutil.copytree(self.path, made.path)
        return made

    def command(self, *words: str) -> Result:
        broker = ["--broker", self.journals.broker.endpoint]
        return CliRunner().invoke(main, [*words, str(self.path), *broker, "--format", "json"])

    def verified(self, *flags: str) -> dict[str, Any]:
        """Return the report on a table that must be correct."""
        found = verify(self.path, self.journals.broker, *flags)
        assert found.exit_code == 0, found.output
        report: dict[str, Any] = json.loads(found.stdout)
        return report

    def differs(self) -> tuple[str, int, str]:
        """Return journal, offset and problem of the first difference."""
        found = verify(self.path, self.journals.broker)
        assert (found.exit_code, found.stderr) == (1, ""), found
        difference = json.loads(found.stdout)["difference"]
        return difference["journal"], difference["offset"], difference["problem"]


@pytest.fixture
def journals(
    spark: SparkSession, embedded_broker: BrokerHandle, fresh_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Journals]:
    """Two empty journals."""
    monkeypatch.delenv(FAILPOINT_VARIABLE, raising=False)
    with Client(embedded_broker.endpoint, timeout_s=30) as client:
        made = Journals(spark, embedded_broker, client, fresh_prefix)
        made.create(*SHORTS)
        yield made


def append(journals: Journals, first: int, count: int) -> None:
    for number in range(first, first + count):
        record = {"id": number, "city": ("Köln", "Bonn", "x" * (number % 5))[number % 3]}
        journals.append(SHORTS[number % 2], json.dumps(record, ensure_ascii=False).encode() + b"\n")


def content(journals: Journals, short: str) -> bytes:
    name = journals.name(short)
    with journals.client.read(name, offset=0, end_offset=journals.client.write_head(name)) as chunks:
        return b"".join(chunk.content for chunk in chunks)


def crash(table: Table, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FAILPOINT_VARIABLE, f"{point}:2:raise")
    with pytest.raises(StreamingQueryException, match=point):
        table.run()
    monkeypatch.delenv(FAILPOINT_VARIABLE)


def lived(table: Table, monkeypatch: pytest.MonkeyPatch) -> Table:
    """Fill the table through a crash, OPTIMIZE, and a RESTORE that removes rows."""
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
    table.sql(f"DELETE FROM {{t}} WHERE {where}")


def double(table: Table, where: str) -> None:
    table.rows().where(where).write.format("delta").mode("append").save(str(table.path))


def overwrite(table: Table, where: str) -> None:
    """Replace the table by all rows except some; Delta's history continues."""
    kept = table.rows().where(f"NOT ({where})").localCheckpoint()
    kept.write.format("delta").mode("overwrite").save(str(table.path))


def delete_by_vector(table: Table, where: str) -> None:
    """Delete rows by a deletion vector, which leaves their files unchanged; columns are mapped as well."""
    features = "'delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name'"
    table.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({features})")
    delete(table, where)
    log = max((table.path / "_delta_log").glob("*.json")).read_text()
    assert '"deletionVector":{' in log


DAMAGES: dict[str, Callable[[Table, str], None]] = {
    "overwritten": overwrite,
    "deleted by a vector": delete_by_vector,
}
"""Ways to lose a row; those for a hand-made table are below."""


@pytest.mark.timeout(600)
def test_raw_rows_are_verified(journals: Journals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert last.digest == digest_of([(len(bytes_of_a) - 1, b"")])
    offset, _ = records(bytes_of_a)[7]
    where = f"journal = '{journals.name('a')}' AND offset = {offset}"
    for name, damage in DAMAGES.items():
        damaged = table.copy(name)
        damage(damaged, where)
        journal, at, text = damaged.differs()
        assert (journal, at) == (journals.name("a"), offset), name
        assert text == "the record has no row in the table", name


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_parsed_rows_in_partitions_are_verified(
    journals: Journals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert "more than once" in text


@pytest.mark.soak  # unit/ledger tests cleaned-up histories in every run.
@pytest.mark.timeout(600)
def test_a_ledger_that_was_cleaned_up_begins_again(journals: Journals, tmp_path: Path) -> None:
    """The rows show where they end, the sink adopts that once, and a new query continues without a gap."""
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
    with pytest.raises(TableRefusedError, match="to continue at 3"):
        table.sink().adopt(behind, table.spark)
    entry = table.sink().adopt(offsets, table.spark)
    assert (entry.adopted, entry.txn_version) == (True, 1024)
    assert table.sink().adopt(offsets, table.spark) == entry
    with pytest.raises(TableRefusedError, match=r"has a ledger.*resume"):
        table.sink().adopt(behind, table.spark)
    table.run()
    assert table.rows().count() == 30
    unproven = verify(table.path, table.journals.broker)
    assert unproven.exit_code == 3, unproven.output
    assert json.loads(unproven.stdout)["not_verified"] == ["rows from before the ledger was adopted"]
    report = table.verified("--allow-unclaimed")
    assert [each["begin"] for each in report["journals"]] == list(offsets.read_through.values())
    assert [each["depth"] for each in report["ranges"]] == ["nothing", "bytes"] * 2


class VerifiedOrders(Orders):
    """The same orders, with the command."""

    def verify(self, *flags: str) -> Result:
        return verify(self.table, self.broker, *flags)

    def verified(self, *flags: str) -> dict[str, Any]:
        found = self.verify(*flags)
        assert found.exit_code == 0, found.output
        report: dict[str, Any] = json.loads(found.stdout)
        assert (report["result"], report["not_verified"]) == ("verified", [])
        return report

    def differs(self, *flags: str) -> tuple[int, int | None, str]:
        """Return where the command finds differences: version, offset, problem."""
        found = self.verify(*flags)
        assert (found.exit_code, found.stderr) == (1, ""), found
        difference = json.loads(found.stdout)["difference"]
        return difference["table_version"], difference["offset"], difference["problem"]

    def unproven(self, *flags: str) -> tuple[str, list[tuple[int, int, str]]]:
        """Return why the table is not verified, and how each range of offsets was compared."""
        found = self.verify(*flags)
        assert (found.exit_code, found.stderr) == (3, ""), found
        report = json.loads(found.stdout)
        assert (report["result"], report["difference"]) == ("not verified", None)
        ranges = [(each["begin"], each["end"], each["depth"]) for each in report["ranges"]]
        return "; ".join(report["not_verified"]), ranges

    def edit_log(self, version: int, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
        path = self.table / "_delta_log" / f"{version:020}.json"
        actions = [change(json.loads(line)) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(each) + "\n" for each in actions if each))


@pytest.fixture
def orders(spark: SparkSession, embedded_broker: BrokerHandle, tmp_path: Path) -> VerifiedOrders:
    return VerifiedOrders(embedded_broker, tmp_path)


def without_statistics(action: dict[str, Any]) -> dict[str, Any]:
    return {name: {k: v for k, v in each.items() if k != "stats"} for name, each in action.items()}


def without_metrics(action: dict[str, Any]) -> dict[str, Any]:
    return {name: {k: v for k, v in each.items() if k != "operationMetrics"} for name, each in action.items()}


@pytest.mark.both_engines
def test_a_table_is_verified_whatever_happened_to_it(orders: VerifiedOrders) -> None:
    """Compaction, RESTORE and a growing journal change nothing; undone entries do not count."""
    orders.commit(0, 80)
    parent = orders.attempt
    orders.commit(80, 160, [])
    DeltaTable(orders.table).restore(1)
    orders.attempt = parent
    orders.commit(80, 320)
    DeltaTable(orders.table).optimize.compact()
    with Client(orders.broker.endpoint) as client:
        client.append(orders.journal, b"not yet\n")
    report = orders.verified()
    (journal,) = report["journals"]
    assert (journal["end"], journal["commits"], journal["records"]) == (320, 2, RECORDS)
    assert [(each["begin"], each["end"], each["depth"]) for each in report["ranges"]] == [(0, 320, "bytes")]
    assert report["writers"][0]["commits"] == [
        {"table_version": 1, "rows": 10},
        {"table_version": 4, "rows": 30},
    ]
    orders.append(rows_of(88, 96))
    assert orders.differs() == (4, 88, "the record is in the table more than once")


def test_files_without_statistics_are_read(orders: VerifiedOrders) -> None:
    """Rows count even if their file's commit does not say how many there are."""
    orders.commit(0, 320)
    orders.append([(1000 + at, b"") for at in range(3)])
    orders.edit_log(2, without_statistics)
    version, offset, problem = orders.differs()
    assert (version, offset) == (2, 1000)
    assert "no visible entry" in problem


def test_commits_without_metrics_are_not_verified(orders: VerifiedOrders) -> None:
    """Without a row's origin, only row counts can be compared: the commits' with the table's."""
    orders.another_table("counted", ("-", "-", "name"))
    orders.commit(0, 160)
    orders.commit(160, 320)
    reason, ranges = orders.unproven()
    assert "columns do not show the origin of its rows" in reason
    assert ranges == [(0, 320, "counts")]
    orders.edit_log(1, without_metrics)
    reason, ranges = orders.unproven()
    assert "does not have the number of its rows" in reason
    assert ranges == [(0, 160, "counts"), (160, 320, "nothing")]
    orders.another_table("short", ("-", "-", "name"))
    orders.commit(0, 320, rows_of(0, 104))
    orders.edit_log(0, without_metrics)
    assert orders.differs()[2] == "the table has 13 rows, but its bytes contain 40 records"


def test_versions_are_those_of_the_log(orders: VerifiedOrders) -> None:
    """A commit without commitInfo must not shift the versions before it."""
    orders.commit(0, 80)
    orders.commit(80, 160, rows_of(88, 160))
    orders.append([])
    orders.edit_log(3, lambda action: None if "commitInfo" in action else action)
    assert orders.differs()[:2] == (2, 80)


@pytest.mark.both_engines
def test_changed_and_misplaced_rows_are_found(orders: VerifiedOrders) -> None:
    orders.commit(0, 80)
    orders.commit(80, 160, [*rows_of(80, 96), (96, b"row 0!2"), *rows_of(104, 160), (160, b"row 020")])
    assert orders.differs() == (2, 96, "the row's bytes differ from the record's")
    DeltaTable(orders.table).restore(1)
    orders.append([(80, b"row 010")])
    assert orders.differs() == (4, 80, "the table has a row here that no visible entry accounts for")


@pytest.mark.both_engines
def test_rows_that_cancel_out_are_found(orders: VerifiedOrders, spark: SparkSession) -> None:
    """Deleted and tripled rows differ, even where their number and every exclusive or match.

    The rows are solved for: a digest that joined rows by exclusive or accepted this table.
    """
    rows = [(at * RECORD_BYTES, b"row %03d" % at) for at in range(400)]
    with Client(orders.broker.endpoint) as client:
        client.append(orders.journal, b"".join(value + b"\n" for _, value in rows[RECORDS:]))
    orders.commit(0, len(rows) * RECORD_BYTES, rows, audit=orders.counted(rows))
    table = pa.table({"offset": [at for at, _ in rows], "value": [value for _, value in rows]})
    hashes = spark.createDataFrame(table).selectExpr("xxhash64(offset, value)").collect()
    joined = [
        (number % (1 << 64)) << 60 | int(hashlib.sha256(b"%d:%b" % row).hexdigest()[:15], 16)
        for row, (number,) in zip(rows, hashes, strict=True)
    ]
    deleted = that_cancel_out(joined)
    tripled = [at for at in range(len(rows)) if at not in deleted][: len(deleted) // 2]
    DeltaTable(orders.table).delete(f"offset IN ({', '.join(str(rows[at][0]) for at in deleted)})")
    orders.append([rows[at] for at in tripled] * 2)
    found = json.loads(orders.verify().stdout)
    assert (found["result"], found["difference"]["offset"]) == ("different", rows[min(deleted + tripled)][0])
    assert [(each["operation"], each["rows"]) for each in found["commits_of_others"]] == [
        ("DELETE", {"deleted": len(deleted)}),
        ("WRITE", {"added": len(deleted)}),
    ]


def test_spark_digests_as_the_definitions_say(spark: SparkSession) -> None:
    """Covers sums and digests of rows in several leaves and nodes, in any order, with one duplicate row."""
    rows: list[tuple[int, bytes | None]] = [(at << 18, b"\x00\xff:%d" % at) for at in range(0, 1 << 14, 7)]
    rows = [*rows[::-1], (3 << 18, b""), (4 << 18, None), rows[5]]
    offsets, contents = zip(*rows, strict=True)
    names = {"group": ["a"] * len(rows), "journal": ["a"] * len(rows)}
    table = pa.table(names | {"offset": offsets, "value": pa.array(contents, pa.binary())})
    df = spark.createDataFrame(table).repartition(3)
    (digested,) = digests(df).collect()
    assert tuple(digested) == ("a", len(rows), digest_of(rows))
    claim = CoveredRange("app", 0, "a", 0, 1 << 32, 0, ())
    bins = Bins.of([Part(claim, 0, 1 << 31), Part(claim, 1 << 31, 1 << 32)], least=1 << 31)
    for values in (True, False):
        rows_side = side(df, ROWS, journal="journal", offset="offset", value="value")
        comparison = SparkComparison(spark, rows_side, values)
        salted = [comparison.salt + row_text(at, value if values else None) for at, value in rows]
        halves = [(d[:32], d[32:]) for d in (hashlib.sha256(text).hexdigest() for text in salted)]
        folded = spark.createDataFrame(halves, "a STRING, b STRING").selectExpr("xxhash64(a)", "xxhash64(b)")
        expected = [[0] * 4, [0] * 4]
        for (offset, _), hashes in zip(rows, folded.collect(), strict=True):
            words = [word for each in hashes for word in divmod(each % (1 << 64), 1 << 32)]
            expected[offset >> 31] = [
                was + word for was, word in zip(expected[offset >> 31], words, strict=True)
            ]
        assert comparison.totals(bins)[ROWS].digests.tolist() == expected


def test_the_ledger_is_looked_at_alone(orders: VerifiedOrders) -> None:
    """Missing offsets reveal a missing entry; --entries-only says that no row was compared."""
    orders.commit(0, 80, [])
    found = orders.verified("--entries-only")
    assert (found["compared"], found["ranges"]) == ("entries", [])
    parent = orders.attempt
    orders.commit(160, 240)
    version, offset, problem = orders.differs("--entries-only")
    assert (version, offset) == (2, 80)
    assert "80 bytes are missing" in problem
    orders.attempt = parent
    orders.commit(240, 320)
    version, offset, problem = orders.differs("--entries-only")
    assert (version, offset) == (3, None)
    assert "an entry in between is missing" in problem


@pytest.mark.both_engines
@pytest.mark.parametrize(
    "columns", [("journal", "offset", "value"), ("-", "-", "name")], ids=["raw", "parsed"]
)
def test_entries_that_counted_wrong_are_found(orders: VerifiedOrders, columns: tuple[str, str, str]) -> None:
    orders.another_table("audited", columns)
    orders.commit(0, 240, audit=orders.counted(rows_of(0, 240)))
    changed = [*rows_of(240, 312), (312, b"other")]
    orders.commit(240, 320, audit=orders.counted(changed))
    difference = json.loads(orders.verify().stdout)["difference"]
    assert (difference["table_version"], difference["offset"], difference["end_offset"]) == (1, 240, 320)
    assert "digest" in difference["problem"]
    orders.commit(320, 320, [(0, b"")], audit=AuditedRows(orders.journal, 0, None))
    assert orders.differs("--entries-only") == (
        2,
        None,
        "its entry has 0 rows, but the commit wrote 1",
    )


def test_rows_that_are_not_the_records_are_not_compared(orders: VerifiedOrders) -> None:
    """Rows kept by key, and those of two writers of one journal, are listed as not compared."""
    orders.commit(0, 80)
    position = (JournalOffsets({orders.journal: 0}),)
    orders.append([], LedgerEntry("other", 0, "q", 0, position, position, position, "a", None))
    reason, ranges = orders.unproven()
    assert "several app ids" in reason
    assert ranges == [(0, 80, "nothing")]
    orders.another_table("merged", ("-", "-", "name"))
    orders.commit(0, 80, rows_of(0, 16), mode="upsert")
    reason, ranges = orders.unproven()
    assert "one row of each key by upsert" in reason
    assert ranges == [(0, 80, "nothing")]
    orders.verified("--entries-only")


def test_rows_of_a_journal_made_again_are_not_compared(orders: VerifiedOrders) -> None:
    """Rows of the old journal are not reported as strays, wherever they are."""
    orders.commit(0, 400, [(392, b"of the old one")])
    orders.commit(0, 0, [], recreated=400)
    orders.commit(0, 80)
    reason, ranges = orders.unproven()
    assert "created again" in reason
    assert ranges == [(0, 80, "nothing")]


@pytest.mark.both_engines
def test_dead_letters_have_no_row(spark: SparkSession, orders: VerifiedOrders) -> None:
    """A record is either a row or a dead letter; a record that is both is a difference."""
    dead = orders.table.with_name("dead")

    def bury(app_id: str, rows: Sequence[Row]) -> None:
        offsets, values = zip(*rows, strict=True)
        letters = {"app_id": [app_id] * len(rows), "journal": [orders.journal] * len(rows)}
        write_deltalake(dead, pa.table({**letters, "offset": offsets, "raw": values}), mode="append")

    bury("orders", rows_of(16, 32))
    assert spark.sql(f"SELECT * FROM delta.`{dead}`").cache().count() == 2  # The session's rows stay these.
    bury("another", rows_of(0, 8))
    bury("orders", rows_of(80, 96))  # From a batch whose other rows are not there yet.
    fit = [*rows_of(0, 16), *rows_of(32, 80)]
    orders.commit(0, 80, fit, audit=orders.counted(fit), dead_letters=f"delta.`{dead}`")
    report = orders.verified()
    assert (report["journals"][0]["dead_letters"], report["audited"]) == (2, 1)
    orders.commit(80, 160, rows_of(88, 160), dead_letters="shop.dead")
    refused = orders.verify()
    assert refused.exit_code == 3
    assert "--dead-letters shop.dead=URL" in refused.stderr
    where = ("--dead-letters", f"shop.dead={dead}")
    assert orders.differs(*where) == (2, 88, "the record is in the table more than once")


@pytest.mark.both_engines
def test_a_gap_that_was_recorded_is_allowed(orders: VerifiedOrders) -> None:
    """A gap includes the record that it cuts; the table must have no row of either."""
    kept = [row for row in rows_of(0, 160) if not 80 <= row[0] < 96]
    orders.commit(0, 160, kept, gaps=[(84, 96)])
    assert orders.verified()["gone"] == [
        {"journal": orders.journal, "begin": 84, "end": 96, "bytes": 12, "recorded": True}
    ]
    orders.append(rows_of(80, 88))
    assert orders.differs()[:2] == (1, 80)


def test_a_journal_that_is_gone_proves_nothing(orders: VerifiedOrders) -> None:
    """Without a byte to compare with, a table is not verified, regardless of the options."""
    orders.commit(0, 320)
    with Client(orders.broker.endpoint) as client:
        revision = client.get_journal(orders.journal).mod_revision
        change = pb.ApplyRequest.Change(delete=orders.journal, expect_mod_revision=revision)
        client.apply([change])
    assert orders.unproven() == ("the journal no longer has these bytes", [(0, 320, "nothing")])
    assert orders.unproven("--allow-gone") == ("nothing was compared", [(0, 320, "nothing")])


@pytest.mark.both_engines
def test_bytes_a_journal_has_lost_are_listed(orders: VerifiedOrders) -> None:
    """The rest is compared, and rows of lost bytes are compared with their entry's count and digest."""
    length, parts = 1101, 5
    orders.journal += "-stored"
    orders.another_table("stored", orders.columns)
    with Client(orders.broker.endpoint) as client:
        client.create_journals(journal_spec(orders.journal, length=1024, codec="NONE", refresh_interval_s=1))
        for _ in range(parts):
            client.append(orders.journal, b"x" * (length - 1) + b"\n")

        def listed() -> list[Fragment]:
            return [each.fragment for each in client.list_fragments(orders.journal) if each.fragment.mod_time]

        gone, second, *_ = wait_for(lambda: listed() if len(listed()) >= parts - 1 else None, "fragments")
        rows = [(at * length, b"x" * (length - 1)) for at in range(parts)]
        orders.commit(0, length, rows[:1], audit=orders.counted(rows[:1]))
        orders.commit(length, parts * length, rows[1:])
        for lost in (gone, second):
            (orders.broker.file_root / lost.content_path).unlink()
        begins = {gone.begin, second.begin}
        wait_for(lambda: not begins & {each.begin for each in listed()}, "the broker to list its store")
    rest = (2 * length, parts * length, "bytes")
    reason, ranges = orders.unproven()
    assert reason == "the journal no longer has these bytes"
    assert ranges == [(0, length, "entry"), (length, 2 * length, "nothing"), rest]
    assert orders.verified("--allow-gone")["audited"] == 1
    orders.append([(2 * length, b"")])
    assert orders.differs("--allow-gone")[:2] == (1, 2 * length)
    DeltaTable(orders.table).restore(1)
    DeltaTable(orders.table).update(predicate="offset = 0", new_values={"value": "X''"})
    assert "digest" in orders.differs("--allow-gone")[2]
    orders.another_table("parsed", ("_journal", "_offset", "name"))
    orders.commit(0, length, rows[:1], audit=orders.counted(rows[:1]))
    reason, ranges = orders.unproven()
    assert ranges == [(0, length, "counts")], "the entry has a digest of bytes that the table does not have"
    orders.another_table("lettered", ("journal", "offset", "value"))
    letters = orders.table.with_name("letters")
    columns = {"app_id": pa.string(), "journal": pa.string(), "offset": pa.int64(), "raw": pa.binary()}
    write_deltalake(letters, pa.schema(list(columns.items())).empty_table())
    orders.commit(0, length, rows[:1], audit=orders.counted(rows[:1]), dead_letters=f"delta.`{letters}`")
    assert orders.unproven()[1] == [(0, length, "counts")], "an entry does not count dead letters"


class Messages(VerifiedOrders):
    """A journal of messages, and tables of the committed ones. Message *n* begins at *n* lengths."""

    LENGTH = 1101
    SENT = (
        *((1, 1, CONTINUE_TXN), (2, 1, OUTSIDE_TXN), (1, 2, CONTINUE_TXN), (4, 1, CONTINUE_TXN)),
        *((1, 2, ACK_TXN), (4, 0, ACK_TXN), (3, 1, CONTINUE_TXN), (2, 2, OUTSIDE_TXN)),
    )
    END = LENGTH * len(SENT)

    def __init__(self, broker: BrokerHandle, directory: Path) -> None:
        super().__init__(broker, directory)
        self.journal += "-messages"
        self.records = [message(*each, self.LENGTH - 1) for each in self.SENT]
        self.places = {0: 4 * self.LENGTH, 2 * self.LENGTH: 4 * self.LENGTH}
        labels = {"content-type": "application/x-ndjson"}
        with Client(broker.endpoint) as client:
            client.create_journals(
                journal_spec(self.journal, labels=labels, length=1024, codec="NONE", refresh_interval_s=1)
            )
            for record in self.records:
                client.append(self.journal, record + b"\n")

    def rows(self, *numbers: int) -> list[Row]:
        return [(at * self.LENGTH, self.records[at]) for at in numbers]

    def fill(
        self,
        name: str,
        columns: tuple[str, str, str] = ("journal", "offset", "value"),
        *,
        audit: bool = True,
    ) -> None:
        self.another_table(name, columns)
        for begin, end, numbers in ((0, 3 * self.LENGTH, (1,)), (3 * self.LENGTH, self.END, (0, 2, 7))):
            rows = self.rows(*numbers)
            self.commit(begin, end, rows, audit=self.counted(rows) if audit else None)

    def lose(self, count: int) -> None:
        with Client(self.broker.endpoint) as client:
            stored = [each.fragment for each in client.list_fragments(self.journal)]
            for lost in stored[:count]:
                (self.broker.file_root / lost.content_path).unlink()
            wait_for(lambda: client.list_fragments(self.journal)[0].fragment.begin > 0, "a shorter journal")


def message(producer: int, clock: int, flags: int, length: int) -> bytes:
    made = build_uuid(ProducerId(bytes([1, 0, 0, 0, 0, producer])), Clock((1 << 62) + clock), flags)
    text = json.dumps({"_meta": {"uuid": str(made)}, "pad": ""}, separators=(",", ":"))
    return text.replace('"pad":"', '"pad":"' + "x" * (length - len(text))).encode()


@pytest.fixture
def messages(spark: SparkSession, embedded_broker: BrokerHandle, tmp_path: Path) -> Messages:
    return Messages(embedded_broker, tmp_path)


@pytest.mark.both_engines
def test_committed_messages_are_compared(messages: Messages) -> None:
    messages.fill("whole")
    report = messages.verified()
    assert (report["compared"], report["audited"], report["journals"][0]["records"]) == ("bytes", 2, 4)
    messages.append(messages.rows(6))
    version, offset, problem = messages.differs()
    assert (version, offset) == (1, 6 * messages.LENGTH), "its transaction is open"
    assert problem == "the table has a row here, but no committed message begins here"
    messages.lose(2)
    messages.fill("outlived")
    ranges = messages.verified("--allow-gone")["ranges"]
    assert [(each["begin"], each["end"], each["depth"]) for each in ranges] == [
        (0, 2 * messages.LENGTH, "entry"),
        (2 * messages.LENGTH, messages.END, "bytes"),
    ]


@pytest.mark.soak
def test_wrong_rows_of_committed_messages_are_told(messages: Messages) -> None:
    for at, wrong in ((2, "is in the table more than once"), (3, "but no committed message begins here")):
        messages.fill(f"again {at}")
        messages.append(messages.rows(at))
        version, offset, problem = messages.differs()
        assert (version, offset, wrong in problem) == (1, at * messages.LENGTH, True)
    messages.fill("elsewhere")
    DeltaTable(messages.table).update(predicate="offset = 0", new_values={"_ack_offset": "1101"})
    assert "its entry has 1 rows, but there are 2 rows in the table" in messages.differs()[2]
    messages.fill("bare", ("-", "-", "value"), audit=False)
    reason, ranges = messages.unproven()
    assert "columns do not show" in reason
    assert ranges == [(0, messages.END, "counts")]
    messages.lose(2)
    messages.fill("outlived")
    DeltaTable(messages.table).delete(f"offset = {7 * messages.LENGTH}")
    version, offset, problem = messages.differs("--allow-gone")
    assert (version, offset) == (1, 7 * messages.LENGTH)
    assert "message has no row in the table; bytes before offset 2202 are gone" in problem


def test_offsets_alone_are_compared_where_values_are_parsed(orders: VerifiedOrders) -> None:
    """A table with _journal and _offset may have any other columns."""
    orders.another_table("parsed", ("_journal", "_offset", "name"))
    orders.commit(0, 160, [(offset, b"parsed") for offset, _ in rows_of(0, 160)])
    assert [each["depth"] for each in orders.verified()["ranges"]] == ["offsets"]
    orders.commit(160, 320, rows_of(168, 320))
    assert orders.differs() == (1, 160, "the record has no row in the table")


@pytest.mark.parametrize("limit", ["SMALL_BYTES", "MAX_MEMORY"])
def test_a_table_that_is_too_large_is_left_to_spark(
    orders: VerifiedOrders, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, limit: str
) -> None:
    """Files, journals and rows in memory are limited; the log says which limit was exceeded."""
    monkeypatch.setattr(f"gazette_spark._verify.driver_engine.{limit}", 1)
    orders.commit(0, 80, rows_of(0, 80))
    with caplog.at_level("INFO", logger="gazette_spark.cli.verify"):
        assert orders.verified()["compared"] == "bytes"
    assert [record.message for record in caplog.records if "in Spark" in record.message]


def test_what_is_no_table_is_an_error(orders: VerifiedOrders, tmp_path: Path) -> None:
    orders.table = tmp_path / "none"
    orders.table.mkdir()
    missing = orders.verify()
    assert missing.exit_code == 3
    assert f"Error: not verified: table delta.`{orders.table}` cannot be compared" in missing.stderr
    orders.append([])
    assert "no visible ledger entry" in orders.verify().stderr
