"""``gazette-spark verify`` finds whole tables whole, and says where a damaged one differs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import CommitProperties, DeltaTable, write_deltalake

from gazette_spark.cli.main import main
from gazette_spark.client import Client
from gazette_spark.ledger.entry import LedgerEntry, Mode, SkippedGap
from gazette_spark.ledger.row_digest import AuditedRows, digest_of, digest_text
from gazette_spark.offsets import JournalOffsets
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.protocol.fragments import Fragment
from gazette_spark.protocol.journals import journal_spec
from tests.conformance.wire import spec, wait_for
from tests.rig.brokers import BrokerHandle

pytestmark = pytest.mark.brokers("embedded")

Row = tuple[int, bytes]

RECORD_BYTES = 8
RECORDS = 40
TEXT = b"".join(b"row %03d\n" % number for number in range(RECORDS))


def rows_of(begin: int, end: int) -> list[Row]:
    """Return the rows of a range of the journal."""
    return [(at, TEXT[at : at + RECORD_BYTES - 1]) for at in range(begin, end, RECORD_BYTES)]


class Orders:
    """A journal of 40 records of 8 bytes, and a table that is filled from it as the sink does."""

    def __init__(self, broker: BrokerHandle, directory: Path) -> None:
        self.broker = broker
        self.table = directory / "orders"
        self.journal = f"verify/{directory.name}/orders"
        self.attempt: str | None = None
        self.commits = 0
        self.columns = ("journal", "offset", "value")
        with Client(broker.endpoint) as client:
            client.create_journals(spec(self.journal))
            client.append(self.journal, TEXT)
        self.commit(0, 0)

    def another_table(self, name: str, columns: tuple[str, str, str]) -> None:
        """Fill a new table from now on, with columns of these names; "-" is left out."""
        self.table = self.table.with_name(name)
        self.columns = columns
        self.commits, self.attempt = 0, None

    def commit(
        self,
        begin: int,
        end: int,
        rows: Sequence[Row] | None = None,
        gaps: Sequence[tuple[int, int]] = (),
        *,
        audit: AuditedRows | None = None,
        mode: Mode = "append",
        dead_letters: str | None = None,
    ) -> None:
        """Commit a batch; rows others than its own if given."""
        self.commits += 1
        entry = LedgerEntry(
            app_id="orders",
            txn_version=self.commits,
            query_id="query",
            batch_id=self.commits,
            start=(JournalOffsets({self.journal: 0}),),
            begin=(JournalOffsets({self.journal: begin}),),
            end=(JournalOffsets({self.journal: end}),),
            attempt=f"attempt {self.commits}",
            parent=self.attempt,
            gaps=tuple(SkippedGap(self.journal, *gap) for gap in gaps),
            audit=None if audit is None else (audit,),
            mode=mode,
            dead_letters=dead_letters,
        )
        self.attempt = entry.attempt
        self.append(rows_of(begin, end) if rows is None else rows, entry)

    def counted(self, rows: Sequence[Row]) -> AuditedRows:
        """Return the audit of a batch with these rows."""
        return AuditedRows(self.journal, len(rows), digest_text(digest_of(rows)))

    def append(self, rows: Sequence[Row], entry: LedgerEntry | None = None) -> None:
        """Append rows, with an entry or without."""
        table = pa.table(
            {
                "journal": pa.array([self.journal] * len(rows), pa.string()),
                "offset": pa.array([offset for offset, _ in rows], pa.int64()),
                "value": pa.array([value for _, value in rows], pa.binary()),
            }
        )
        found = table.rename_columns(list(self.columns)).select(
            [name for name in self.columns if name != "-"]
        )
        properties = CommitProperties(custom_metadata={"userMetadata": entry.to_json()} if entry else {})
        write_deltalake(self.table, found, mode="append", commit_properties=properties)

    def verify(self, *flags: str) -> Result:
        """Run the command."""
        return CliRunner().invoke(main, ["verify", str(self.table), "--broker", self.broker.endpoint, *flags])

    def differs(self, *flags: str) -> tuple[int, int | None, str]:
        """Return where the command finds the table to differ: version, offset, problem."""
        found = self.verify("--format", "json", *flags)
        assert (found.exit_code, found.stderr) == (1, ""), found
        difference = json.loads(found.stdout)["difference"]
        return difference["table_version"], difference["offset"], difference["problem"]


@pytest.fixture
def orders(broker: BrokerHandle, tmp_path: Path) -> Orders:
    """A journal, and a table that holds nothing of it yet."""
    return Orders(broker, tmp_path)


@pytest.fixture
def embedded_orders(embedded_broker: BrokerHandle, tmp_path: Path) -> Orders:
    """The same, for what does not depend on the broker."""
    return Orders(embedded_broker, tmp_path)


@pytest.mark.brokers("embedded", "deployed")
def test_a_whole_table_is_verified(orders: Orders) -> None:
    """A table is verified after its files were rewritten in another order and while its journal grows."""
    orders.commit(0, 80)
    orders.commit(80, 80)
    orders.commit(80, 320)
    DeltaTable(orders.table).optimize.compact()
    with Client(orders.broker.endpoint) as client:
        client.append(orders.journal, b"not yet\n")
    found = orders.verify()
    assert found.exit_code == 0, found.output
    assert "4 entries tile each journal; each record is one row, its bytes unchanged" in found.output
    document = json.loads(orders.verify("--format", "json").stdout)
    assert document["verified"] is True
    (journal,) = document["journals"]
    assert (journal["end"], journal["commits"], journal["records"]) == (320, 2, RECORDS)
    assert document["writers"][0]["commits"] == [
        {"table_version": 1, "rows": 10},
        {"table_version": 3, "rows": 30},
    ]


@pytest.mark.parametrize(
    ("damage", "offset", "problem"),
    [
        pytest.param(lambda rows: rows[:3] + rows[4:], 104, "the record has no row", id="row missing"),
        pytest.param(lambda rows: rows[:-1], 152, "the record has no row", id="last row missing"),
        pytest.param(lambda rows: [*rows, rows[5]], 120, "more than once", id="row twice"),
        pytest.param(lambda rows: [*rows[:2], (96, b"row 0!2"), *rows[3:]], 96, "bytes", id="bytes changed"),
        pytest.param(lambda rows: [*rows, (97, b"ow 012")], 97, "no record begins", id="row in a record"),
        pytest.param(lambda rows: [*rows, (160, b"row 020")], 160, "no visible entry", id="row past the end"),
    ],
)
def test_a_damaged_row_is_found(
    orders: Orders, damage: Callable[[list[Row]], list[Row]], offset: int, problem: str
) -> None:
    """A damaged row is found by its offset, and by the version that added its bytes."""
    orders.commit(0, 80)
    orders.commit(80, 160, damage(rows_of(80, 160)))
    version, at, text = orders.differs()
    assert (version, at) == (2, offset)
    assert problem in text


def test_a_missing_entry_is_found(embedded_orders: Orders) -> None:
    """Offsets that leave bytes out, or parents that do not follow, show a missing entry."""
    orders = embedded_orders
    orders.commit(0, 80)
    parent = orders.attempt
    orders.commit(160, 240)
    version, offset, problem = orders.differs("--entries-only")
    assert (version, offset) == (2, 80)
    assert "80 bytes left out" in problem
    orders.attempt = parent
    orders.commit(240, 320)
    version, offset, problem = orders.differs("--entries-only")
    assert (version, offset) == (3, None)
    assert "one is missing in between" in problem


def test_a_row_nobody_wrote_is_found(embedded_orders: Orders) -> None:
    """One without a journal, or of a journal that no entry knows."""
    embedded_orders.commit(0, 80)
    embedded_orders.append(rows_of(80, 88))
    embedded_orders.journal = "other"
    embedded_orders.append([(0, b"row 000")])
    assert "no visible entry" in embedded_orders.differs()[2]


def test_a_restored_table_is_what_its_visible_entries_say(orders: Orders) -> None:
    """Undone entries no longer count, and those written since do."""
    orders.commit(0, 80)
    parent = orders.attempt
    orders.commit(80, 160, [])
    DeltaTable(orders.table).restore(1)
    orders.attempt = parent
    assert orders.verify().exit_code == 0
    orders.commit(80, 320)
    assert orders.verify().exit_code == 0


@pytest.mark.parametrize(
    "columns", [("journal", "offset", "value"), ("-", "-", "name")], ids=["raw", "parsed"]
)
def test_what_entries_counted_is_compared(embedded_orders: Orders, columns: tuple[str, str, str]) -> None:
    """A number of rows or a digest that is not that of the records is named with its range of offsets."""
    orders = embedded_orders
    orders.another_table("counted", columns)
    for begin, end in ((0, 80), (80, 240)):
        orders.commit(begin, end, audit=orders.counted(rows_of(begin, end)))
    found = orders.verify()
    assert found.exit_code == 0, found.output
    assert "2 ranges have the rows, and digests, that their entries say" in found.output
    changed = [*rows_of(240, 312), (312, b"other")]
    orders.commit(240, 320, audit=orders.counted(changed))
    difference = json.loads(orders.verify("--format", "json").stdout)["difference"]
    assert (difference["table_version"], difference["offset"], difference["end_offset"]) == (2, 240, 320)
    assert "digest" in difference["problem"]
    DeltaTable(orders.table).restore(1)
    orders.attempt = "attempt 2"
    orders.commit(240, 320, audit=orders.counted(rows_of(240, 312)))
    problem = orders.differs("--entries-only")[2]
    assert problem == "its entry says that it brings 9 rows, the commit wrote 10"


def test_rows_that_were_merged_are_not_compared(embedded_orders: Orders) -> None:
    """A table of one row for each key has not the journals' records; its entries are audited alone."""
    orders = embedded_orders
    orders.another_table("merged", ("-", "-", "name"))
    orders.commit(0, 80, rows_of(0, 16), mode="upsert")
    refused = orders.verify()
    assert refused.exit_code == 1
    assert "app id 'orders' keeps one row of each key by upsert" in refused.stderr
    assert "--entries-only" in refused.stderr
    assert orders.verify("--entries-only").exit_code == 0


@pytest.mark.parametrize(
    "columns", [("journal", "offset", "value"), ("-", "-", "name")], ids=["raw", "parsed"]
)
def test_dead_letters_have_no_row(embedded_orders: Orders, columns: tuple[str, str, str]) -> None:
    """A record is a row or a dead letter; one that is both, or neither, is a difference."""
    orders = embedded_orders
    orders.another_table("parted", columns)
    dead = orders.table.with_name("dead")
    name = f"delta.`{dead}`"

    def bury(app_id: str, rows: Sequence[Row]) -> None:
        offsets, values = zip(*rows, strict=True)
        letters = {"app_id": [app_id] * len(rows), "journal": [orders.journal] * len(rows)}
        write_deltalake(dead, pa.table({**letters, "offset": offsets, "raw": values}), mode="append")

    bury("orders", rows_of(16, 32))
    bury("another", rows_of(0, 8))
    fit = [*rows_of(0, 16), *rows_of(32, 80)]
    orders.commit(0, 80, fit, audit=orders.counted(fit), dead_letters=name)
    found = orders.verify()
    assert found.exit_code == 0, found.output
    assert "2 records are dead letters" in found.output
    bury("orders", rows_of(80, 96))  # Of a batch whose other rows are not there yet.
    assert orders.verify().exit_code == 0
    orders.commit(80, 160, rows_of(88, 160), dead_letters="shop.dead")
    refused = orders.verify()
    assert refused.exit_code == 1
    assert "--dead-letters shop.dead=URL" in refused.stderr
    where = ("--dead-letters", f"shop.dead={dead}")
    assert orders.verify("--dead-letters", "shop.dead").exit_code == 2
    problem = json.loads(orders.verify("--format", "json", *where).stdout)["difference"]
    assert problem["table_version"] == 1
    assert problem["problem"] in (
        "the record is in the table more than once",
        "the commit wrote 9 rows, its bytes hold 8 records",
    )


def test_where_rows_end_is_read_from_them(embedded_orders: Orders) -> None:
    """The last record, read again, tells the end; other bytes there, or rows without origin, are errors."""
    orders = embedded_orders
    show = ["offsets", "show", str(orders.table), "--from-data", "--broker", orders.broker.endpoint]

    def shown(*flags: str) -> Result:
        return CliRunner().invoke(main, [*show, *flags])

    orders.commit(0, 80)
    assert JournalOffsets.from_json(shown("--format", "json").stdout) == JournalOffsets({orders.journal: 80})
    (line,) = shown().stdout.splitlines()[1:]
    assert line.split() == [orders.journal, "10", "72", "80"]
    orders.commit(80, 88, [(80, b"other")])
    assert "has other bytes there" in shown().stderr
    orders.another_table("parsed", ("-", "-", "name"))
    orders.commit(0, 80)
    show[2] = str(orders.table)
    assert "do not say where rows come from" in shown().stderr


def test_rows_that_say_where_they_end_need_no_broker(tmp_path: Path) -> None:
    """Rows with their ends need no broker, unless a query without that column wrote the last one."""

    def rows(journals: list[str], offsets: list[int], ends: list[int | None]) -> None:
        columns = {"_journal": journals, "_offset": offsets, "_end_offset": pa.array(ends, pa.int64())}
        write_deltalake(tmp_path, pa.table(columns), mode="append", partition_by=["_journal"])

    show = [
        "offsets",
        "show",
        str(tmp_path),
        "--from-data",
        "--broker",
        "http://localhost:1",
        "--timeout",
        "1",
    ]
    rows(["a/%2B=+", "b", "b"], [0, 5, 0], [7, 9, 5])
    found = CliRunner().invoke(main, [*show, "--format", "json"])
    assert found.exit_code == 0, found.output
    assert JournalOffsets.from_json(found.stdout) == JournalOffsets({"a/%2B=+": 7, "b": 9})
    rows(["b"], [9], [None])
    assert CliRunner().invoke(main, show).exit_code == 1


def test_a_gap_that_was_recorded_is_allowed(orders: Orders) -> None:
    """A gap is allowed with the record it cut: no rows of theirs are in the table, and none may be."""
    kept = [row for row in rows_of(0, 160) if not 80 <= row[0] < 96]
    orders.commit(0, 160, kept, gaps=[(84, 96)])
    found = orders.verify()
    assert found.exit_code == 0, found.output
    assert "recorded" in found.output
    document = json.loads(orders.verify("--format", "json").stdout)
    assert document["gone"] == [
        {"journal": orders.journal, "begin": 84, "end": 96, "bytes": 12, "recorded": True}
    ]
    orders.append(rows_of(80, 88))
    assert orders.differs()[:2] == (1, 80)


def test_a_journal_that_is_gone_is_named(embedded_orders: Orders) -> None:
    """A journal that is gone is an error, or is allowed: then its rows are not compared."""
    embedded_orders.commit(0, 320)
    with Client(embedded_orders.broker.endpoint) as client:
        revision = client.get_journal(embedded_orders.journal).mod_revision
        change = pb.ApplyRequest.Change(delete=embedded_orders.journal, expect_mod_revision=revision)
        client.apply([change])
    missing = embedded_orders.verify()
    assert missing.exit_code == 1
    assert embedded_orders.journal in missing.stderr
    document = json.loads(embedded_orders.verify("--allow-gone", "--format", "json").stdout)
    assert document["verified"] is True
    assert [(each["begin"], each["end"], each["recorded"]) for each in document["gone"]] == [(0, 320, False)]


def test_bytes_a_journal_has_lost_are_named(orders: Orders) -> None:
    """Lost bytes are a difference, or are allowed: then what is left is compared."""
    length, parts = 1101, 5
    orders.journal += "-stored"
    orders.another_table("stored", orders.columns)
    with Client(orders.broker.endpoint) as client:
        client.create_journals(journal_spec(orders.journal, length=1024, codec="NONE", refresh_interval_s=1))
        for _ in range(parts):
            client.append(orders.journal, b"x" * (length - 1) + b"\n")

        def listed() -> list[Fragment]:
            return [each.fragment for each in client.list_fragments(orders.journal) if each.fragment.mod_time]

        gone, *_ = wait_for(lambda: listed() if len(listed()) >= parts - 1 else None, "stored fragments")
        rows = [(at * length, b"x" * (length - 1)) for at in range(parts)]
        orders.commit(0, 3 * length, rows[:3], audit=orders.counted(rows[:3]))
        orders.commit(3 * length, parts * length, rows[3:])
        assert orders.verify().exit_code == 0
        (orders.broker.file_root / gone.content_path).unlink()
        wait_for(lambda: gone.begin not in [each.begin for each in listed()], "the broker to list its store")
    version, offset, problem = orders.differs()
    assert (version, offset) == (0, gone.begin)
    assert "no longer has the bytes" in problem
    allowed = orders.verify("--allow-gone")
    assert allowed.exit_code == 0, allowed.output
    assert str(gone.length) in allowed.output
    assert f"[0, {3 * length}): the table's rows are what their commit's entry says" in allowed.output
    orders.append([(2 * length, b"")])
    assert orders.differs("--allow-gone")[:2] == (0, 2 * length)
    DeltaTable(orders.table).restore(1)
    orders.append([(parts * length, b"")])
    assert "no visible entry" in orders.differs("--allow-gone")[2]
    DeltaTable(orders.table).restore(1)
    DeltaTable(orders.table).update(predicate=f"offset = {gone.begin}", new_values={"value": "X''"})
    assert "digest" in orders.differs("--allow-gone")[2]


def test_offsets_alone_are_compared_where_values_are_parsed(embedded_orders: Orders) -> None:
    """A table with _journal and _offset may hold anything else."""
    orders = embedded_orders
    orders.another_table("parsed", ("_journal", "_offset", "name"))
    orders.commit(0, 160, [(offset, b"parsed") for offset, _ in rows_of(0, 160)])
    assert "each record has one row at its offset" in orders.verify().output
    orders.commit(160, 320, rows_of(168, 320))
    assert orders.differs()[:2] == (1, 160)


def test_rows_are_counted_where_nothing_says_where_they_come_from(embedded_orders: Orders) -> None:
    """Rows without an origin are counted commit by commit."""
    orders = embedded_orders
    orders.another_table("counted", ("-", "-", "name"))
    orders.commit(0, 160)
    assert "records were counted" in orders.verify().output
    orders.commit(160, 320, rows_of(168, 320))
    version, offset, problem = orders.differs()
    assert (version, offset) == (1, None)
    assert "wrote 19 rows, its bytes hold 20 records" in problem


def test_two_writers_of_one_journal_are_not_told_apart(embedded_orders: Orders) -> None:
    """Two writers' entries are audited, each for itself; their rows cannot be."""
    orders = embedded_orders
    orders.commit(0, 80)
    position = (JournalOffsets({orders.journal: 0}),)
    orders.append([], LedgerEntry("other", 0, "q", 0, position, position, position, "a", None))
    refused = orders.verify()
    assert refused.exit_code == 1
    assert "audit the entries alone" in refused.stderr
    assert orders.verify("--entries-only").exit_code == 0


def test_what_is_no_table_is_an_error(embedded_orders: Orders, tmp_path: Path) -> None:
    """A path that is no table is an error of one line, and so is a table without entries."""
    embedded_orders.table = tmp_path / "none"
    assert "cannot be read" in embedded_orders.verify().stderr
    embedded_orders.append([])
    assert "no visible ledger entry" in embedded_orders.verify().stderr
