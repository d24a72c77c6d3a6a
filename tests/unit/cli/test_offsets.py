"""``gazette-spark offsets show`` prints a table's ledger from the Delta log, without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import CommitProperties, DeltaTable, write_deltalake

from gazette_spark._frames import deltalake_text
from gazette_spark._ledger.delta_reader import DeltaLog, log_damage
from gazette_spark._ledger.entry import LedgerEntry, SkippedGap
from gazette_spark.cli.main import main
from gazette_spark.errors import InputError
from gazette_spark.offsets import JournalOffsets


def entry(app_id: str, number: int, **heads: int) -> str:
    position = (JournalOffsets({f"shop/{name}": offset for name, offset in heads.items()}),)
    return LedgerEntry(
        app_id, number, "query", number, position, position, position, f"try-{number}", None
    ).to_json()


def commit(table: Path, version: int, metadata: str | None, operation: str = "WRITE") -> None:
    info = {"timestamp": 1_780_000_000_000 + version, "operation": operation, "operationParameters": {}}
    if metadata is not None:
        info["userMetadata"] = metadata
    log = table / "_delta_log"
    log.mkdir(exist_ok=True)
    actions = [{"protocol": {}}, {"commitInfo": info}, {"add": {}}]
    (log / f"{version:020}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with two writers whose commits alternate with those of other programs."""
    commit(tmp_path, 8, entry("orders", 0, orders=0))
    commit(tmp_path, 9, entry("returns", 3, returns=7))
    commit(tmp_path, 10, entry("orders", 1, orders=2048, telemetry=5))
    commit(tmp_path, 11, None, "OPTIMIZE")
    commit(tmp_path, 12, "a note by hand")
    return tmp_path


def run(*args: str) -> Result:
    return CliRunner().invoke(main, ["offsets", "show", *args])


def test_each_writer_shows_its_newest_entry(table: Path) -> None:
    assert run(str(table)).stdout.splitlines() == [
        "APP_ID   BATCH_ID  TABLE_VERSION  JOURNAL         READ_THROUGH",
        "orders          1             10  shop/orders             2048",
        "orders          1             10  shop/telemetry             5",
        "returns         3              9  shop/returns               7",
    ]


def test_json_is_the_entry_with_its_version(table: Path) -> None:
    (found,) = json.loads(run(str(table), "--app-id", "returns", "--format", "json").stdout)
    assert (found["table_version"], found["attempt"]) == (9, "try-3")
    assert found["end"] == [JournalOffsets({"shop/returns": 7}).to_dict()]


def test_what_was_skipped_is_shown(table: Path) -> None:
    where = (JournalOffsets({"shop/orders": 4096}),)
    for version, number, gap in [(13, 2, (0, 9)), (14, 3, (100, 164)), (16, 4, (2048, 4096))]:
        gaps = (SkippedGap("shop/orders", *gap),)
        text = LedgerEntry("orders", number, "q", number, where, where, where, f"{number}", None, gaps)
        commit(table, version, text.to_json())
    (table / "_delta_log" / f"{15:020}.json").write_text(
        json.dumps({"commitInfo": {"operation": "RESTORE", "operationParameters": {"version": "13"}}})
    )
    assert run(str(table), "--app-id", "orders").stdout.splitlines()[2:] == [
        "",
        "Bytes that were missing or skipped and are not in the table:",
        "APP_ID  BATCH_ID  TABLE_VERSION  JOURNAL      BEGIN   END  BYTES",
        "orders         4             16  shop/orders   2048  4096   2048",
        "orders         2             13  shop/orders      0     9      9",
    ]
    (found,) = json.loads(run(str(table), "--app-id", "orders", "--format", "json").stdout)
    assert found["gaps"] == [["shop/orders", 2048, 4096]]
    assert [row["begin"] for row in found["skipped"]] == [2048, 0]


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    for _ in range(3):
        write_deltalake(tmp_path / "lake", pa.table({"id": [1]}), mode="append")
    return tmp_path / "lake" / "_delta_log" / f"{1:020}.json"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(b"garbage\n", "line 1 of {} is not valid JSON", id="not JSON"),
        pytest.param(b'{"commitInfo": {}}\n{"add": {"pa', "line 2 of {} is not valid JSON", id="cut off"),
        pytest.param(b'{"commitInfo": {}}\n{"add": 5}\n', "line 2 of {} is not an action", id="another JSON"),
        pytest.param(None, "{} is missing", id="missing"),
    ],
)
def test_a_damaged_file_of_the_log_is_named(log_file: Path, content: bytes | None, problem: str) -> None:
    """Neither deltalake nor Spark names the damaged file, and their stack traces hide the relevant line."""
    log_file.unlink()
    if content is not None:
        log_file.write_bytes(content)
    table = str(log_file.parents[1])
    for command in (["offsets", "show", "--from-data", table], ["verify", "--entries-only", table]):
        answer = CliRunner().invoke(main, command)
        assert problem.format(log_file) in answer.stderr, command
        assert "Restore the file from a copy of the table" in answer.stderr
        assert len(answer.stderr.splitlines()) == 1, answer.stderr
        assert answer.exit_code == (3 if command[0] == "verify" else 1), "1 of verify is a difference"
    if content == b"garbage\n":
        assert problem.format(log_file) in run(table).stderr


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(b"[]", "line 1 of {} is not an action of Delta", id="list"),
        pytest.param(b'{"add": {}}\n5\n', "line 2 of {} is not an action of Delta", id="number"),
        pytest.param(b"[" * 100_000, "line 1 of {} is not valid JSON", id="deep"),
    ],
)
def test_a_damaged_newest_commit_hides_no_entry(table: Path, content: bytes, problem: str) -> None:
    """If the commit were skipped, an older entry would be shown as the table's position."""
    newest = table / "_delta_log" / f"{13:020}.json"
    newest.write_bytes(content)
    answer = run(str(table))
    assert (answer.exit_code, answer.stdout) == (1, "")
    assert problem.format(newest) in answer.stderr


def test_a_damaged_commit_before_a_checkpoint_is_named(table: Path) -> None:
    """Delta itself no longer reads that commit."""
    (table / "_delta_log" / f"{11:020}.checkpoint.parquet").touch()
    (table / "_delta_log" / f"{9:020}.json").write_bytes(b"{")
    with pytest.raises(InputError, match=f"line 1 of _delta_log/{9:020}.json is not valid JSON"):
        DeltaLog(str(table)).rows(None)


def test_a_history_ends_where_a_commit_was_cleaned_up(tmp_path: Path) -> None:
    """An interrupted clean-up may leave older commits behind, and nothing shows what they lead to."""
    for version in range(4):
        start, begin, end = (
            (JournalOffsets({"shop/orders": at}),) for at in (0, max(0, 8 * version - 8), 8 * version)
        )
        parent = f"try-{version - 1}" if version else None
        made = LedgerEntry("orders", version, "query", version, start, begin, end, f"try-{version}", parent)
        properties = CommitProperties(custom_metadata={"userMetadata": made.to_json()})
        rows = pa.table({"id": [version]})
        write_deltalake(tmp_path, rows, mode="append", commit_properties=properties)
    DeltaTable(tmp_path).create_checkpoint()
    (tmp_path / "_delta_log" / f"{1:020}.json").unlink()
    assert [row.version for row in DeltaLog(str(tmp_path)).rows(None)] == [3, 2]
    answer = CliRunner().invoke(main, ["verify", "--entries-only", str(tmp_path)])
    assert answer.exit_code == 0, answer.output


def test_an_error_of_deltalake_is_shown_without_its_frames() -> None:
    """The error ends in stack frames that are addresses without symbols."""
    error = OSError("Kernel error\n  \u21b3 Json error: truncated\n   0: <unknown>\n   1: start_thread\n")
    assert deltalake_text(error) == "Kernel error: Json error: truncated"


def test_files_that_delta_has_deleted_are_no_damage(log_file: Path) -> None:
    """Delta deletes the oldest log files once a checkpoint replaces them."""
    assert log_damage(str(log_file.parents[1])) is None
    log_file.with_name(f"{1:020}.checkpoint.parquet").touch()
    log_file.with_name(f"{0:020}.json").unlink()
    log_file.unlink()
    assert log_damage(str(log_file.parents[1])) is None


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        pytest.param(
            ["--app-id", "nobody"],
            "no ledger entry of app id 'nobody' in its 5 commits, only of 'orders'",
            id="other",
        ),
        pytest.param([], "not a Delta table", id="not a table"),
    ],
)
def test_what_is_not_there_is_said(table: Path, tmp_path: Path, args: list[str], problem: str) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    answer = run(str(table if args else empty), *args)
    assert answer.exit_code == 1
    assert problem in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_a_table_is_named_by_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table's URL may contain secrets, which must not be printed."""
    properties = CommitProperties(custom_metadata={"userMetadata": entry("orders", 1, orders=2048)})
    write_deltalake(tmp_path, pa.table({"id": [1]}), commit_properties=properties)
    local = [run(str(tmp_path)).stdout, run(tmp_path.as_uri()).stdout]
    asked = []

    def opened(url: str) -> DeltaLog:
        asked.append(url)
        return DeltaLog(str(tmp_path))

    monkeypatch.setattr("gazette_spark._ledger.table_log.DeltaLog", opened)
    url = "s3://key:secret@lake/orders"
    stored = run(url)
    assert [stored.stdout, *local] == [stored.stdout] * 3
    assert stored.stdout.splitlines()[1].split() == ["orders", "1", "0", "shop/orders", "2048"]
    assert asked == [url]
    assert "s3://***@lake/orders has no ledger entry" in run(url, "--app-id", "nobody").stderr


def test_a_missing_directory_is_wrong_usage(tmp_path: Path) -> None:
    answer = run(str(tmp_path / "none"))
    assert answer.exit_code == 2
    assert "TABLE is a directory, a URL" in answer.stderr


def test_a_location_is_not_percent_encoded(tmp_path: Path) -> None:
    for name in ("h#sh 100%?", "day%201"):
        table = tmp_path / name
        table.mkdir()
        commit(table, 3, entry(name, 1, orders=2048))
        for location in (str(table), f"file:{table}", f"file://{table}"):
            assert name in run(location).stdout
        assert [row.version for row in DeltaLog(f"file:{table}").rows(1)] == [3]
    quoted = run(f"file://{tmp_path}/h%23sh%20100%25%3F")
    assert quoted.exit_code == 2
    assert "Write it without quoting" in quoted.stderr
    with pytest.raises(InputError, match="there is no commit in its _delta_log"):
        DeltaLog(str(tmp_path)).rows(None)
    with pytest.raises(InputError, match="none is not a Delta table: there is no such directory"):
        DeltaLog(str(tmp_path / "none")).rows(None)
