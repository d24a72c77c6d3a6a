"""Tables and states in a bucket of a real S3 server, S3Proxy, behind a proxy that makes requests fail."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, Row
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from gazette_spark._data_files.target import FileTarget, checked_storage_options
from gazette_spark._data_files.writer import write_files
from gazette_spark._delta.file_commits import FileCommits
from gazette_spark._ledger.delta_reader import DeltaLog
from gazette_spark._ledger.entry import LedgerEntry
from gazette_spark._options.source import SourceOptions
from gazette_spark._planning.pieces import Piece
from gazette_spark._planning.stores import StoreFiles, open_store
from gazette_spark._verify.driver_engine import DriverEngine
from gazette_spark.cli.doctor import check_commits
from gazette_spark.errors import (
    DataFileError,
    DataLossError,
    DirectReadError,
    FragmentStoreError,
    OptionError,
    TableRefusedError,
)
from gazette_spark.locations import deltalake_location
from gazette_spark.offsets import JournalOffsets
from gazette_spark.protocol import protocol_pb2 as pb
from tests.oracles.stores import encoded, fragment_of, plan, read, store_options
from tests.rig.object_store import KEY_ID, SECRET, ObjectStore
from tests.unit.planning.test_producer_states import JOURNAL, check_states_are_read_back

URL = "s3://lake/tables/orders"
SCHEMA = StructType(
    [StructField("p", StringType()), StructField("n", LongType()), StructField("value", BinaryType())]
)
ARROW = pa.schema([("p", pa.string()), ("n", pa.int64()), ("value", pa.binary())])


@pytest.fixture
def store(object_store: ObjectStore) -> ObjectStore:
    DeltaTable.create(URL, ARROW, partition_by=["p"], storage_options=object_store.options())
    object_store.forget_requests()
    return object_store


class Files(DataFrame):
    """Stands in for a DataFrame: the report of a task that has written the row ``n``."""

    def __new__(cls, store: ObjectStore, n: int, value: bytes = b"", url: str = URL) -> Self:
        """Create the object without a Spark session."""
        return object.__new__(cls)

    def __init__(self, store: ObjectStore, n: int, value: bytes = b"", url: str = URL) -> None:
        shape = json.dumps(SCHEMA.jsonValue())
        self._target = FileTarget(
            "t", url, shape, shape, partition_by=("p",), storage_options=store.options()
        )
        self._rows = pa.RecordBatch.from_arrays([["a b%/é"], [n], [value]], schema=ARROW)

    def collect(self) -> list[Row]:
        target = FileTarget.from_json(self._target.to_json())
        told = write_files([("journal=a/journal", [self._rows])], target)
        return [
            Row(**row | {"partition_values": dict(row["partition_values"])})
            for each in told
            for row in each.to_pylist()
        ]


def entry(number: int) -> LedgerEntry:
    at = (JournalOffsets({"a/journal": number}),)
    return LedgerEntry("orders", number, "query", number, at, at, at, f"try {number}", None)


def commits(store: ObjectStore) -> FileCommits:
    """Return the object that commits files of the table at ``s3a:``, Spark's form of the URL."""
    spelled = URL.replace("s3:", "s3a:")
    return FileCommits("t", spelled, str(table(store).metadata().id), store.options())


def table(store: ObjectStore) -> DeltaTable:
    return DeltaTable(URL, storage_options=store.options())


def numbers(store: ObjectStore) -> list[int]:
    found: list[int] = table(store).to_pyarrow_table().column("n").to_pylist()
    return sorted(found)


def test_files_and_commits_are_read_back(store: ObjectStore) -> None:
    large = os.urandom(6_000_000)
    ours = commits(store)
    for number, value in ((1, b""), (2, large)):
        ours.open()
        assert ours.commit(Files(store, number, value), entry(number)) is None
    ours.open()
    assert ours.commit(None, entry(3)) is None
    rows = table(store).to_pyarrow_table().sort_by("n").to_pylist()
    assert rows == [{"p": "a b%/é", "n": 1, "value": b""}, {"p": "a b%/é", "n": 2, "value": large}]
    log = [f"tables/orders/_delta_log/{version:020}.json" for version in (1, 2, 3)]
    assert store.requests("put if absent") == log
    assert len([key for key in store.requests("put") if key.endswith(".parquet")]) == 2
    assert table(store).history(1)[0]["userMetadata"] == entry(3).to_json()


ODD_NAMES = ("a b#c?d+e%f'g\"h`i é日;&,[x]{y}*=~|<z>^@v1", "back\\slash", "100%", "a%zz")


def test_a_prefix_of_any_name_is_the_one_that_spark_has(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in store.options().items():
        monkeypatch.setenv(name, value)
    for name in ODD_NAMES:
        check_prefix(store, name)
        newest, _created = DeltaLog(f"s3a://lake/odd/{name}").rows(None)
        assert (newest.version, newest.user_metadata) == (1, entry(1).to_json())
        assert DeltaLog(f"s3a://lake/odd/{name}").rows(1) == [newest]
        engine = DriverEngine(f"s3a://lake/odd/{name}", {}, {})
        assert [row.version for row in engine.history()] == [1, 0]
        assert engine.count(1) == 1


def check_prefix(store: ObjectStore, name: str) -> None:
    spelled = f"s3a://lake/odd/{name}"
    url = deltalake_location(spelled)
    empty = DeltaTable.create(url, ARROW, partition_by=["p"], storage_options=store.options())
    ours = FileCommits("t", spelled, str(empty.metadata().id), store.options())
    ours.open()
    assert ours.commit(Files(store, 1, url=ours.location), entry(1)) is None
    read = DeltaTable(url, storage_options=store.options())
    assert read.to_pyarrow_table().column("n").to_pylist() == [1]
    keys = store.keys(f"odd/{name}/")
    assert [Path(key).suffix for key in keys] == [".json", ".json", ".parquet"]


def test_of_two_writers_in_a_race_one_commits(store: ObjectStore) -> None:
    writers = [commits(store), commits(store)]
    landed = []
    for number in range(1, 5):
        for each in writers:
            each.open()
        ready = threading.Barrier(2)
        outcomes: dict[int, Exception | None] = {}

        def write(
            which: int, number: int = number, ready: threading.Barrier = ready, outcomes: Any = outcomes
        ) -> None:
            files = Files(store, 10 * number + which)
            ready.wait()
            outcomes[which] = writers[which].commit(files, entry(number))

        threads = [threading.Thread(target=write, args=(which,)) for which in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        won = [which for which, conflict in outcomes.items() if conflict is None]
        assert len(won) == 1
        landed.append(10 * number + won[0])
    assert numbers(store) == landed


def test_files_of_a_crash_before_the_commit_are_referred_to_nowhere(store: ObjectStore) -> None:
    """The next run writes and commits its own files; VACUUM removes the old ones."""
    crashed = commits(store)
    crashed.open()
    lost = Files(store, 1).collect()
    again = commits(store)
    again.open()
    assert again.commit(Files(store, 1), entry(1)) is None
    assert numbers(store) == [1]
    removed = table(store).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert [Path(path).name for path in removed] == [Path(row.path).name for row in lost]
    assert numbers(store) == [1]


def test_a_commit_whose_answer_is_lost_is_made_once(store: ObjectStore) -> None:
    """The result is a conflict or success, but never a second commit: the sink checks the history."""
    ours = commits(store)
    ours.open()
    store.lose_answer(f"{1:020}.json")
    ours.commit(Files(store, 1), entry(1))
    assert numbers(store) == [1]
    assert [each.get("userMetadata") for each in table(store).history()] == [entry(1).to_json(), None]
    assert not store.loses_answer()


def test_a_file_whose_last_answer_is_lost_is_told_of_once(store: ObjectStore) -> None:
    ours = commits(store)
    ours.open()
    store.lose_answer(".parquet")
    assert ours.commit(Files(store, 1), entry(1)) is None
    assert numbers(store) == [1]
    assert not store.loses_answer()


def test_a_store_that_lets_nobody_in_is_an_error_without_secrets(store: ObjectStore) -> None:
    denied = FileCommits("t", URL, "id", store.options(AWS_ACCESS_KEY_ID="OTHER"))
    with pytest.raises(
        TableRefusedError, match=r"deltalake cannot open it at s3://lake/tables/orders"
    ) as seen:
        denied.open()
    assert SECRET not in str(seen.value)
    target = FileTarget("t", URL, "{}", "{}", storage_options=denied.storage_options)
    assert SECRET not in repr(target) + repr(denied)
    assert store.requests("denied")


@pytest.mark.parametrize("name", ["AWS_S3_ALLOW_UNSAFE_RENAME", "aws_s3_locking_provider"])
def test_options_that_lose_commits_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name}; expected it to be unset"):
        checked_storage_options({name: "dynamodb"}, URL, {})
    with pytest.raises(OptionError, match=f"{name} in the environment"):
        checked_storage_options({}, URL, {name: "true"})
    assert checked_storage_options({name: "false"}, URL, {}) == {name: "false"}
    assert checked_storage_options({}, "/lake/orders", {name: "true"}) == {}


def test_an_option_that_is_no_text_is_refused() -> None:
    """Deltalake's own error would not name the option."""
    with pytest.raises(OptionError, match=r"AWS_ALLOW_HTTP.*got a bool"):
        checked_storage_options({"AWS_ALLOW_HTTP": True}, URL, {})  # type: ignore[dict-item]  # Not a string, on purpose.


def test_producer_states_are_in_a_bucket(object_store: ObjectStore) -> None:
    """No directory object is created, because that needs more rights on the bucket."""
    check_states_are_read_back(object_store.url("states"))
    assert object_store.keys("") == [f"states/{JOURNAL}/2000"]


@pytest.mark.parametrize("careless", [False, True])
def test_two_writers_commit_to_a_store_at_once(object_store: ObjectStore, careless: bool) -> None:
    """A store that ignores ``If-None-Match`` loses commits, so the check must detect it and clean up."""
    if careless:
        object_store.ignore_conditions()
    finding = check_commits(object_store.url("tables/"))
    assert finding.check == "commits"
    assert SECRET not in finding.text
    if careless:
        assert finding.state == "problem"
        assert "of 10 commits by two writers at once" in finding.text
        assert "If-None-Match" in finding.remedy
    else:
        assert (finding.state, finding.remedy) == ("ok", "")
        assert finding.text.endswith(": of 10 commits by two writers at once, none was lost")
    assert object_store.keys("") == []


def test_a_store_that_cannot_be_entered(object_store: ObjectStore) -> None:
    finding = check_commits(object_store.url("tables/").replace(KEY_ID, "AKIASTRANGER"))
    assert finding.state == "problem"
    assert "two writers could not commit" in finding.text
    assert "\n" not in finding.text


@dataclass
class FragmentQuery:
    store: ObjectStore

    def __post_init__(self) -> None:
        for begin, content in ((0, b"one\ntwo\n"), (8, b"three\n")):
            fragment = fragment_of("log/a", begin, content, pb.GZIP)
            path = self.store.root / "fragments" / fragment.content_path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(content, pb.GZIP))

    def plan(self, bucket: str = "lake") -> tuple[StoreFiles, SourceOptions, list[Piece]]:
        host = self.store.endpoint.removeprefix("http://")
        url = f"s3://{bucket}/fragments/?scheme=http&region=us-east-1&endpoint_override={host}"
        options = store_options(fragmentStore=url)
        files = open_store(url)
        return files, options, plan(files, options)


@pytest.fixture
def fragments(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> FragmentQuery:
    for name, value in object_store.options().items():
        monkeypatch.setenv(name, value)
    return FragmentQuery(object_store)


REFUSE = {"slowed down": ObjectStore.slow_down, "broken off": ObjectStore.break_connections}


@pytest.mark.parametrize("how", REFUSE)
def test_a_store_that_fails_for_a_moment_is_asked_again(
    fragments: FragmentQuery, store: ObjectStore, how: str
) -> None:
    refuse = REFUSE[how]
    refuse(store, 3)
    planned = fragments.plan()
    refuse(store, 3)
    assert [row[2] for row in read(*planned)] == [b"one", b"two", b"three"]
    ours = commits(store)
    refuse(store, 3)
    ours.open()
    refuse(store, 3)
    ours.commit(Files(store, 1), entry(1))
    assert numbers(store) == [1]
    refuse(store, 3)
    check_states_are_read_back(store.url("states"))


@pytest.mark.parametrize("how", ["slowed down", pytest.param("broken off", marks=pytest.mark.soak)])
def test_a_store_that_fails_for_good_is_named(fragments: FragmentQuery, store: ObjectStore, how: str) -> None:
    planned, unopened = fragments.plan(), commits(store)
    REFUSE[how](store, 1000)
    with pytest.raises(FragmentStoreError, match="fragment store s3://lake/fragments/") as listing:
        fragments.plan()
    with pytest.raises(DirectReadError, match="fragment s3://lake/fragments/log/a/0000") as reading:
        read(*planned)
    with pytest.raises(
        DataFileError, match="written at s3://lake/tables/orders: Generic S3 error"
    ) as writing:
        Files(store, 1).collect()
    with pytest.raises(TableRefusedError, match="cannot open it at s3://lake/tables/orders: ") as opening:
        unopened.open()
    for seen in (listing, reading, writing, opening):
        text = str(seen.value)
        assert text.isprintable(), text
        assert SECRET not in text
    store.recover()
    assert numbers(store) == []


def test_a_bucket_that_does_not_exist_is_named(fragments: FragmentQuery) -> None:
    """A missing bucket is not an empty store."""
    with pytest.raises(FragmentStoreError, match="s3://typo/fragments/: bucket 'typo' does not exist"):
        fragments.plan("typo")


def test_credentials_that_are_no_longer_valid_are_named(
    fragments: FragmentQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXPIRED")
    with pytest.raises(FragmentStoreError, match=r"INVALID_ACCESS_KEY_ID|ACCESS_DENIED") as seen:
        fragments.plan()
    assert SECRET not in str(seen.value)


def test_a_fragment_that_the_listing_still_has_is_data_loss(fragments: FragmentQuery) -> None:
    """As by the journal's retention, it was deleted after the query was planned."""
    planned = fragments.plan()
    fragments.store.empty()
    with pytest.raises(DataLossError, match="cannot read offset 0: the next available byte is at 14"):
        read(*planned)
