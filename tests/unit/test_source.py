"""The source translates between Spark and the planner, and shows no secrets."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark import TaskContext
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

import pyspark_gazette
import pyspark_gazette_delta
import pyspark_gazette_iceberg
from gazette_spark import source
from gazette_spark._data_files import writer
from gazette_spark._data_files.target import FILES_SCHEMA, FileTarget
from gazette_spark._delta_format import DeltaFormat
from gazette_spark._formats import library
from gazette_spark._formats.fixed import frame
from gazette_spark._iceberg.iceberg_table import IcebergTable
from gazette_spark._iceberg_format import IcebergFormat
from gazette_spark._options.source import SourceOptions
from gazette_spark._options.table import TARGET_OPTION
from gazette_spark._planning import access
from gazette_spark._planning import pieces as pieces_module
from gazette_spark._planning.admission import ReadLimits
from gazette_spark._planning.columns import _warn_of_field
from gazette_spark._planning.pieces import Piece
from gazette_spark.client import Client
from gazette_spark.errors import GazetteError, OffsetError, OptionError
from gazette_spark.offsets import MAX_OFFSET, Fingerprint, JournalOffsets
from gazette_spark.protocol import protocol_pb2 as pb
from gazette_spark.source import (
    BaseStreamReader,
    GazetteDataSource,
    PiecePartition,
    RefusedStream,
    StreamReader,
    TrackingStreamReader,
)
from gazette_spark.testing import MicroBatches
from tests.oracles.lines import FakeJournal
from tests.oracles.messages import descriptor_set, order_class
from tests.oracles.stores import MemoryFiles
from tests.rig.iceberg import NAME, catalog_properties, credential_giving_properties


def struct(*columns: tuple[str, DataType] | tuple[str, DataType, bool]) -> StructType:
    """Return a schema of nullable columns by default. Spark's own parser needs a JVM."""
    schema = StructType()
    for name, kind, *nullable in columns:
        schema.add(name, kind, all(nullable))
    return schema


RAW = struct(("journal", StringType()), ("offset", LongType()), ("value", BinaryType()))

JSON = {"format": "json"}


def data_source(**options: str) -> GazetteDataSource:
    given = {"brokerAddress": "http://broker.test:80", "path": "log/a"} | options
    return GazetteDataSource(CaseInsensitiveDict(given))


def stream_reader(schema: StructType = RAW, /, **options: str) -> StreamReader:
    """Return the reader of a stream. An invalid one raises its error here instead of at its first use."""
    made = data_source(**options).streamReader(schema)
    if isinstance(made, RefusedStream):
        made.refuse()
    assert isinstance(made, StreamReader)
    return made


class FakeClient:
    def __init__(self, journal: FakeJournal) -> None:
        self.journal = journal
        self.closed = False

    def read(self, journal: str, **options: Any) -> object:
        return self.journal.read(journal, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """The client that readers get instead of a connected one."""
    fake = FakeClient(FakeJournal(b'{"id":1}\n{"id":2}\n'))
    monkeypatch.setattr(access, "open_client", lambda _options: fake)
    return fake


def read(reader: BaseStreamReader, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read a partition as an executor does: from pickled copies."""
    copied, part = pickle.loads(pickle.dumps((reader, partition)))
    return copied.read(part)  # type: ignore[no-any-return]  # Unpickled.


WHOLE = PiecePartition(Piece("log/a", 0, 18, 18, starts_on_record=True))


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        pytest.param(RAW, {}, id="raw"),
        pytest.param(struct(("offset", LongType(), False), ("journal", StringType())), {}, id="projection"),
        pytest.param(
            struct(("id", IntegerType()), ("_journal", StringType(), False), ("at", TimestampType())),
            JSON,
            id="json",
        ),
    ],
)
def test_record_batches_have_exactly_the_schema_of_spark(
    client: FakeClient, schema: StructType, options: dict[str, str]
) -> None:
    """Spark refuses the first batch if types, order or nullability differ."""
    record_batches = list(read(stream_reader(schema, **options), WHOLE))
    assert [batch.schema for batch in record_batches] == [to_arrow_schema(schema, timezone="UTC")]
    assert sum(batch.num_rows for batch in record_batches) == 2
    assert client.closed


@pytest.mark.parametrize(
    ("framing", "values"),
    [
        pytest.param("lines", [b'{"id":1}', b'{"id":2}'], id="lines"),
        pytest.param("none", [b'{"id":1}\n{"id":2}\n'], id="none"),
    ],
)
def test_a_piece_is_read_in_its_own_framing(client: FakeClient, framing: str, values: list[bytes]) -> None:
    """Executors get a journal's framing only from the piece."""
    piece = Piece("log/a", 0, 18, 18, starts_on_record=True, framing=framing)
    (found,) = read(stream_reader(struct(("value", BinaryType()))), PiecePartition(piece))
    assert found["value"].to_pylist() == values


def test_tasks_do_not_get_where_the_query_starts() -> None:
    """For 10,000 journals of a table, offsets and fingerprints would add a megabyte to each task."""
    ends = {f"shop/part-{number:05}": 10**9 for number in range(10_000)}
    prints = {name: Fingerprint.of(b"x" * 512, end, 17) for name, end in ends.items()}
    offsets = JournalOffsets(ends, fingerprints=prints).to_json()
    for option in ("resumeOffsets", "startingOffsets"):
        assert len(pickle.dumps(stream_reader(**{option: offsets}))) < 10_000


def test_a_task_reads_its_pieces_one_after_the_other(client: FakeClient) -> None:
    lines = Piece("log/a", 0, 9, 18, starts_on_record=True)
    rest = Piece("log/a", 9, 18, 18, starts_on_record=False)
    whole = Piece("log/a", 0, 18, 18, starts_on_record=True, framing="none")
    rows = read(stream_reader(RAW), PiecePartition(lines, rest, whole))
    assert [value for batch in rows for value in batch["value"].to_pylist()] == [
        *(b'{"id":1}', b'{"id":2}'),
        b'{"id":1}\n{"id":2}\n',
    ]
    assert client.closed


def test_a_task_that_is_given_its_bytes_asks_no_broker(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = stream_reader(RAW)
    (expected,) = read(reader, WHOLE)
    client.journal.reads.clear()
    given = Piece("log/a", 0, 18, 18, starts_on_record=True, content=client.journal.content)
    assert list(read(reader, PiecePartition(given, given, *WHOLE.pieces))) == [expected] * 3
    assert client.journal.reads == [(0, 18)]
    assert b"id" not in repr(given).encode()
    monkeypatch.delattr(access, "open_client")
    assert list(read(reader, PiecePartition(given, given))) == [expected] * 2


def test_a_task_that_is_asked_when_bytes_were_stored_reads_them(client: FakeClient) -> None:
    """The planner, which has the bytes, does not know when they were stored."""
    given = Piece("log/a", 0, 18, 18, starts_on_record=True, content=client.journal.content)
    (kept,) = stream_reader(RAW)._partitions(LABELLED, [given])
    timed = struct(("value", BinaryType()), ("_fragment_mod_time", TimestampType()))
    (dropped,) = stream_reader(timed)._partitions(LABELLED, [given])
    assert isinstance(kept, PiecePartition)
    assert isinstance(dropped, PiecePartition)
    assert (kept.pieces, dropped.pieces) == ((given,), WHOLE.pieces)


@pytest.fixture
def unbuilt_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process without the native decoder that has not tried to load it yet."""
    with monkeypatch.context() as patch:
        patch.setattr(library, "LIBRARY", tmp_path / "library.so")
        patch.delenv(library.SWITCH, raising=False)
        for cached in (library.library, library.warn_if_missing):
            cached.cache_clear()
        yield
    for cached in (library.library, library.warn_if_missing):
        cached.cache_clear()


@pytest.mark.usefixtures("unbuilt_library")
def test_the_planner_warns_once_that_json_is_read_slowly(
    client: FakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Tasks, later batches, and queries that read no JSON do not warn."""
    columns = struct(("id", LongType()))
    stream_reader(RAW)._partitions(LABELLED, WHOLE.pieces)
    assert sum(batch.num_rows for batch in read(stream_reader(columns, **JSON), WHOLE)) == 2
    assert caplog.messages == []
    for _ in range(2):
        stream_reader(columns, **JSON)._partitions(LABELLED, WHOLE.pieces)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "decoder is missing (not built): JSON is read by pyarrow.json" in record.getMessage()
    assert "Install the wheel for this platform" in record.getMessage()


@pytest.mark.usefixtures("unbuilt_library")
def test_who_has_switched_the_native_decoder_off_is_not_warned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The user chose to do without the decoder."""
    monkeypatch.setenv(library.SWITCH, "0")
    stream_reader(struct(("id", LongType())), **JSON)._partitions(LABELLED, WHOLE.pieces)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("column", "options", "advice"),
    [
        pytest.param("_offsets", {}, "the metadata column is called _offset", id="a letter more"),
        pytest.param("_Journal", {}, "the metadata column is called _journal", id="another case"),
        pytest.param(
            "_corrupt_records", {}, "the metadata column is called _corrupt_record", id="corrupt record"
        ),
        pytest.param(
            "_uuid",
            {},
            "_uuid is a metadata column under isolationLevel=read_committed only",
            id="column of messages",
        ),
        pytest.param("_offset", {}, None, id="the name itself"),
        pytest.param("_corrupt_record", {}, None, id="the corrupt record itself"),
        pytest.param("_offsets", {"rescuedDataColumn": "_offsets"}, None, id="rescued data"),
        pytest.param("_meta", {}, None, id="a field that resembles none"),
        pytest.param("offsets", {}, None, id="without an underscore"),
    ],
)
def test_the_planner_warns_once_of_a_misspelt_metadata_column(
    client: FakeClient,
    caplog: pytest.LogCaptureFixture,
    column: str,
    options: dict[str, str],
    advice: str | None,
) -> None:
    """The column is null in every row but not an error, because records may have a field of that name."""
    _warn_of_field.cache_clear()
    kind = LongType() if column == "_offset" else StringType()
    for _ in range(2):
        reader = stream_reader(struct(("id", LongType()), (column, kind)), **JSON, **options)
        reader._partitions(LABELLED, WHOLE.pieces)
    line = f"column {column} is read from the records, and is null if they have no such field: {advice}"
    assert [record.getMessage() for record in caplog.records] == ([line] if advice else [])


def test_an_inferred_column_is_no_misspelt_one(client: FakeClient, caplog: pytest.LogCaptureFixture) -> None:
    """The records have that column, and a column of the format raw cannot have such a name."""
    _warn_of_field.cache_clear()
    columns = struct(("id", LongType()), ("_offsets", StringType()))
    stream_reader(columns, **JSON, inferSchema="true")._partitions(LABELLED, WHOLE.pieces)
    assert caplog.messages == []


def test_an_inferred_column_with_a_raw_name_is_a_field(client: FakeClient) -> None:
    """Without a format, records may have fields such as ``offset``, while raw's own columns stay raw."""
    piece = Piece("log/a", 0, 13, 13, starts_on_record=True, content=b'{"offset":7}\n')
    for columns, expected in (
        (struct(("offset", LongType())), [{"offset": 7}]),
        (RAW, [{"journal": "log/a", "offset": 0, "value": b'{"offset":7}'}]),
    ):
        reader = stream_reader(columns, inferSchema="true")
        (record_batch,) = reader.read(PiecePartition(piece))
        assert record_batch.to_pylist() == expected


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED"])
def test_a_task_logs_what_it_could_not_read(
    client: FakeClient, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream_reader(struct(("id", LongType())), mode=mode, failOnDataLoss="false")
    list(read(reader, WHOLE))
    assert caplog.messages == []
    client.journal = FakeJournal(b'{"id":1}\nnone\n{"id":2}\n{"id":"x"}\n', holes=[(1, 9)])
    piece = Piece("log/a", 0, 34, 34, starts_on_record=True)
    list(read(reader, PiecePartition(piece)))
    behind = "bytes after missing ones may belong to a cut record"
    assert caplog.messages == [
        (
            f"malformed records mode={mode} journal=log/a begin=0 end=34 count=1 first='offset 23: "
            "field id does not fit int64: it is a string': to keep their text, use mode=PERMISSIVE and a "
            "column _corrupt_record STRING in the schema, or dead letters"
        ),
        "bytes are gone, skipped journal=log/a begin=1 end=9",
        f"{behind}, skipped journal=log/a begin=9 end=14",
    ]


def test_a_task_that_runs_again_parses_in_a_child(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client.journal = FakeJournal(b'{"id":1}\nnone\n{"id":2}\n')
    schema = struct(("id", LongType()), ("_offset", LongType()), ("_corrupt_record", StringType()))
    piece = PiecePartition(Piece("log/a", 0, 23, 23, starts_on_record=True))
    (first,) = read(stream_reader(schema, **JSON), piece)
    monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(attemptNumber=lambda: 1))
    (again,) = read(stream_reader(schema, **JSON), piece)
    assert again.equals(first)
    assert again["id"].to_pylist() == [1, None, 2]
    line = (
        "malformed records mode=PERMISSIVE journal=log/a begin=0 end=23 count=1 first='offset 9: not a JSON "
        "object: Expecting value at character 0': the column _corrupt_record has their text"
    )
    assert caplog.messages == [line, line]


def test_the_format_follows_from_the_framing(client: FakeClient) -> None:
    reader = stream_reader(struct(("id", LongType())))
    (found,) = read(reader, WHOLE)
    assert found.to_pydict() == {"id": [1, 2]}
    with pytest.raises(OptionError, match="framing none implies no format"):
        reader._partitions(LABELLED, [Piece("log/a", 0, 18, 18, starts_on_record=True, framing="none")])


class FakeLabels:
    """The part of a planner that returns a journal's labels."""

    def labels(self, _journal: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return (("app", ("clicks",)), ("region", ("eu", "us")))


LABELLED: Any = FakeLabels()


@pytest.mark.parametrize("options", [{}, JSON], ids=["raw", "json"])
def test_metadata_columns_come_when_the_schema_names_them(
    client: FakeClient, options: dict[str, str]
) -> None:
    own = ("value", BinaryType()) if not options else ("id", LongType())
    labels = MapType(StringType(), ArrayType(StringType()))
    time = ("_fragment_mod_time", TimestampType())
    ends, record = ("_end_offset", LongType(), False), ("_record", BinaryType())
    schema = struct(own, ("_labels", labels), ends, ("_offset", LongType()), time, record)
    client.journal.stored = [(5, 60)]
    reader = stream_reader(schema, **options)
    (partition,) = reader._partitions(LABELLED, WHOLE.pieces)
    (found,) = read(reader, partition)
    assert found.schema == to_arrow_schema(schema, timezone="UTC")
    assert found["_offset"].to_pylist() == [0, 9]
    assert found["_end_offset"].to_pylist() == [9, 18]
    assert found["_record"].to_pylist() == [b'{"id":1}', b'{"id":2}']
    assert found["_fragment_mod_time"].to_pylist() == [None, datetime(1970, 1, 1, 0, 1, tzinfo=UTC)]
    assert found["_labels"].to_pylist() == [[("app", ["clicks"]), ("region", ["eu", "us"])]] * 2
    (partition,) = stream_reader()._partitions(LABELLED, WHOLE.pieces)
    assert isinstance(partition, PiecePartition)
    assert partition.pieces == WHOLE.pieces


def test_a_store_is_read_without_a_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces contain all that reading requires. Only brokers have labels, so those are refused."""
    monkeypatch.setattr(pieces_module, "ENOUGH_PIECES", 1)  # So one task reads both journals.
    files = MemoryFiles()
    files.put("log/a", 0, b'{"id":1}\n{"id"')
    files.put("log/a", 14, b":2}\n", pb.GZIP)
    files.put("log/b", 0, b'{"id":3}\n')
    files.write_to(tmp_path)
    options = {"fragmentStore": f"file://{tmp_path}", "path": "log/", "framing": "lines"}
    made = GazetteDataSource(CaseInsensitiveDict(options))
    assert "brokerAddress" not in made.options
    (partition,) = made.reader(RAW).partitions()
    reader = pickle.loads(pickle.dumps(made.reader(RAW)))
    first, second = reader.read(pickle.loads(pickle.dumps(partition)))
    assert first["value"].to_pylist() == [b'{"id":1}', b'{"id":2}']
    assert second["value"].to_pylist() == [b'{"id":3}']
    assert f"file://{tmp_path}" in repr(reader)
    inferring = GazetteDataSource(CaseInsensitiveDict(options | {"inferSchema": "true"}))
    assert inferring.schema() == struct(("id", LongType()))
    labels = struct(("_labels", MapType(StringType(), ArrayType(StringType()))))
    with pytest.raises(OptionError, match="_labels with fragmentStore"):
        GazetteDataSource(CaseInsensitiveDict(options | {"format": "json"})).reader(labels)


def test_rescued_data_is_a_column_of_json_alone(client: FakeClient) -> None:
    """Without the column, the option would silently lose what does not fit."""
    text = StringType()
    with pytest.raises(OptionError, match="'rescuedDataColumn': got 'rest', which is not a column"):
        stream_reader(struct(("id", LongType())), format="json", rescuedDataColumn="rest")
    with pytest.raises(OptionError, match="format=raw"):
        stream_reader(rescuedDataColumn="rest")
    with pytest.raises(OptionError, match="rest string"):
        stream_reader(
            struct(("id", LongType()), ("rest", LongType())), format="json", rescuedDataColumn="rest"
        )
    reader = stream_reader(
        struct(("ID", LongType()), ("rest", text)), format="json", rescuedDataColumn="rest"
    )
    (found,) = read(reader, WHOLE)
    assert found["rest"].to_pylist() == [
        '{"_journal":"log/a","_offset":0,"id":1}',
        '{"_journal":"log/a","_offset":9,"id":2}',
    ]


def test_csv_is_read_by_the_order_of_the_columns(client: FakeClient) -> None:
    content = b'id,text\n1,"a\nb"\n2,\n'
    client.journal = FakeJournal(content)
    piece = Piece("log/a", 0, len(content), len(content), starts_on_record=True, framing="csv")
    schema = struct(("id", IntegerType()), ("_end_offset", LongType()), ("text", StringType()))
    (found,) = read(stream_reader(schema, header="true"), PiecePartition(piece))
    assert found.schema == to_arrow_schema(schema, timezone="UTC")
    assert found.to_pydict() == {"id": [1, 2], "_end_offset": [16, 19], "text": ["a\nb", None]}


def test_messages_need_no_file_on_executors(client: FakeClient, tmp_path: Path) -> None:
    """The driver reads the descriptor file, and its bytes travel with the reader."""
    file = tmp_path / "shop.desc"
    file.write_bytes(descriptor_set())
    content = frame(order_class()(id=7, name="x").SerializeToString())
    client.journal = FakeJournal(content)
    piece = Piece("log/a", 0, len(content), len(content), starts_on_record=True, framing="fixed")
    schema = struct(("name", StringType()), ("id", LongType()), ("at", TimestampType()))
    given = {"descriptorFile": str(file), "messageName": "shop.Order"}
    reader = stream_reader(schema, **given)
    stream_reader(schema, format="protobuf", **given)
    file.unlink()
    (found,) = read(reader, PiecePartition(piece))
    assert found.to_pydict() == {"name": ["x"], "id": [7], "at": [None]}
    with pytest.raises(OptionError, match=r"descriptorFile.*cannot be read: No such file"):
        stream_reader(schema, **given)


def test_columns_are_checked_before_the_first_task(tmp_path: Path) -> None:
    file = tmp_path / "shop.desc"
    file.write_bytes(descriptor_set())
    given = {"descriptorFile": str(file), "messageName": "shop.Order"}
    schema = struct(("nothing", LongType()))
    with pytest.raises(OptionError, match="column nothing"):
        stream_reader(schema, format="protobuf", **given)
    reader = stream_reader(schema, **given)
    with pytest.raises(OptionError, match="column nothing"):
        reader._partitions(LABELLED, [Piece("log/a", 0, 9, 9, starts_on_record=True, framing="fixed")])


def test_a_task_of_another_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options are pickled by position, so one would be taken for another."""
    sent = pickle.dumps(WHOLE)
    assert pickle.loads(sent).pieces == WHOLE.pieces
    monkeypatch.setattr(source, "VERSION", "9.9.9")
    with pytest.raises(OptionError, match=r"release 9\.9\.9 of gazette_spark on .*, and 0\..* on the driver"):
        pickle.loads(sent)


def test_the_empty_partition_of_spark_reads_nothing(client: FakeClient) -> None:
    """Spark plans one such partition for a batch without partitions. It must not connect to a broker."""
    assert list(read(stream_reader(), InputPartition(None))) == []
    assert not client.closed


def test_a_raw_stream_needs_no_schema_and_a_json_stream_does() -> None:
    """Without a schema or inferSchema, the columns of JSON are unknown."""
    columns = struct(("journal", StringType()), ("offset", LongType()), ("value", BinaryType()))
    assert data_source().schema() == columns
    with pytest.raises(OptionError, match="json without a schema"):
        data_source(format="json").schema()


@pytest.mark.parametrize(
    ("schema", "options", "problem"),
    [
        pytest.param(struct(("value", StringType())), {}, "column value string under format=raw", id="type"),
        pytest.param(struct(("Value", BinaryType())), {}, "column Value binary", id="case"),
        pytest.param(struct(("id", LongType())), {"format": "raw"}, "or another format", id="not_raw"),
        pytest.param(struct(("id", LongType(), False)), JSON, "column id NOT NULL", id="not_null"),
        pytest.param(
            struct(("a", ArrayType(struct(("x", LongType(), False))))),
            JSON,
            "a.element.x NOT NULL",
            id="field",
        ),
        pytest.param(
            struct(("a", ArrayType(LongType(), containsNull=False))), JSON, "a.element NOT NULL", id="element"
        ),
        pytest.param(
            struct(("m", MapType(StringType(), LongType(), valueContainsNull=False))),
            JSON,
            "m.value NOT NULL",
            id="map_value",
        ),
        pytest.param(
            struct(("_fragment_mod_time", TimestampType(), False)),
            {},
            "mod_time NOT NULL",
            id="time_not_null",
        ),
        pytest.param(struct(("id", LongType()), ("ID", LongType())), JSON, "column 'ID' twice", id="twice"),
        pytest.param(struct(("_offset", IntegerType())), JSON, "_offset bigint", id="metadata"),
        pytest.param(struct(("_corrupt_record", LongType())), JSON, "_corrupt_record string", id="corrupt"),
        pytest.param(
            struct(("_journal", StringType())),
            JSON | {"columnNameOfCorruptRecord": "_journal"},
            "'_journal', which is a metadata column",
            id="corrupt_like_metadata",
        ),
        pytest.param(struct(("v", DayTimeIntervalType())), JSON, "option 'schema'", id="no_json_type"),
        pytest.param(
            struct(("value", BinaryType())), {"header": "true"}, "'header': got format=raw", id="header"
        ),
        pytest.param(
            struct(("value", BinaryType())),
            {"framing": "csv", "nullValue": "-"},
            "option 'nullValue': got format=raw",
            id="null_value",
        ),
    ],
)
def test_a_schema_that_cannot_be_read_is_refused(
    schema: StructType, options: dict[str, str], problem: str
) -> None:
    with pytest.raises(OptionError) as caught:
        stream_reader(schema, **options)
    assert problem in str(caught.value)


def test_a_schema_without_columns_is_refused() -> None:
    with pytest.raises(OptionError, match="no columns"):
        stream_reader(StructType([]))


def test_the_read_limit_is_the_option() -> None:
    assert stream_reader().getDefaultReadLimit() == ReadAllAvailable()
    assert stream_reader(maxBytesPerTrigger="2k").getDefaultReadLimit() == ReadMaxBytes(2048)


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        pytest.param({"maxFragmentsPerTrigger": "3"}, ReadLimits(MAX_OFFSET, 3), id="fragments"),
        pytest.param(
            {"maxRecordsPerTrigger": "7", "maxBytesPerTrigger": "1k"},
            ReadLimits(1024, max_records=7),
            id="records",
        ),
        pytest.param({"minBytesPerTrigger": "1k"}, ReadLimits(MAX_OFFSET, None, 1024, 900), id="minimum"),
        pytest.param(
            {"minBytesPerTrigger": "1k", "maxTriggerDelay": "90s", "maxBytesPerTrigger": "2k"},
            ReadLimits(2048, None, 1024, 90),
            id="both",
        ),
    ],
)
def test_limits_spark_has_no_name_for_come_back_with_its_own(
    reader: StreamReader, options: dict[str, str], limits: ReadLimits
) -> None:
    """A limit of bytes that is never reached replaces those Spark cannot pass on; Trigger.Once drops it."""
    reader._options = stream_reader(**options)._options
    limit = reader.getDefaultReadLimit()
    reader.latestOffset(START, limit)
    reader.latestOffset(START, ReadAllAvailable())
    assert reader.fake.limits == [limits, ReadLimits()]  # type: ignore[attr-defined]  # The reader of the test has a fake planner.


class FakePlanner:
    """A planner that records its arguments and never has new bytes."""

    def __init__(self) -> None:
        self.limits: list[ReadLimits] = []

    def next(self, start: object, limits: ReadLimits) -> object:
        self.limits.append(limits)
        return start

    def freeze(self) -> None:
        self.frozen = True


START = {"format_version": 1, "journals": {"log/a": 5}}


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> StreamReader:
    made = stream_reader()
    planner = FakePlanner()
    monkeypatch.setattr(made, "_plan", lambda: planner)
    monkeypatch.setattr(made, "fake", planner, raising=False)
    return made


def test_the_limit_of_the_engine_is_obeyed(reader: StreamReader) -> None:
    """Trigger.Once passes ReadAllAvailable, which overrides the option."""
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(START, ReadAllAvailable()) == START
    reader.latestOffset(START, ReadMaxBytes(7))
    assert reader.fake.limits == [ReadLimits(), ReadLimits(7)]  # type: ignore[attr-defined]  # The reader of the test has a fake planner.
    with pytest.raises(OptionError, match="ReadMaxRows"):
        reader.latestOffset(START, ReadMaxRows(3))


def test_a_trigger_that_reads_nothing_at_first_is_warned_of(
    reader: StreamReader, caplog: pytest.LogCaptureFixture
) -> None:
    """Trigger.Once ends with the batch that records the start. It is recognized by ReadAllAvailable."""
    first = START | {"position": "initial"}
    reader._options = stream_reader(maxBytesPerTrigger="1k")._options
    reader.latestOffset(first, reader.getDefaultReadLimit())
    reader.latestOffset(START, ReadAllAvailable())
    assert not caplog.records
    reader.latestOffset(first, ReadAllAvailable())
    assert "use Trigger.AvailableNow" in caplog.text


@pytest.mark.parametrize("start", [None, "5", {"journals": {}}], ids=["null", "text", "no_version"])
def test_a_position_that_is_none_is_refused(reader: StreamReader, start: Any) -> None:
    """Spark passes on whatever the checkpoint contains."""
    with pytest.raises(OffsetError):
        reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(OffsetError):
        reader.partitions(start, START)
    with pytest.raises(OffsetError):
        reader.partitions(START, start)


def test_a_pinned_batch_is_empty_even_without_a_start(reader: StreamReader) -> None:
    """For a repeated batch 0, Spark may have no start."""
    assert reader.partitions(None, START | {"position": "pinned"}) == []


def test_a_spark_without_admission_control_has_its_own_reader(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(source, "ADMISSION_CONTROL", False)
    made = data_source(maxBytesPerTrigger="7").streamReader(RAW)
    assert isinstance(made, TrackingStreamReader)
    assert not hasattr(pickle.loads(pickle.dumps(made)), "prepareForTriggerAvailableNow")
    planner = FakePlanner()
    monkeypatch.setattr(made, "_plan", lambda: planner)
    assert made.partitions(START, START) == []
    assert [made.latestOffset(), made.latestOffset()] == [START, START]
    assert planner.limits == [ReadLimits(7), ReadLimits(7)]
    assert not caplog.records
    with pytest.raises(OffsetError, match="Spark plans a batch that ends at"):
        made.partitions(START, START | {"journals": {"log/a": 6}})


def test_no_repr_shows_the_token() -> None:
    """Reprs end up in logs and in Spark's own errors."""
    made = data_source(**{"auth.token": "s3cret-token"})
    reader = made.streamReader(RAW)
    assert "s3cret" not in repr(made) + repr(reader) + repr(WHOLE)
    shown = (
        "Piece(journal='log/a', begin=0, end=18, limit=18, starts_on_record=True, framing='lines', labels=())"
    )
    assert repr(WHOLE) == f"PiecePartition(pieces=({shown},), security=Security(), store=None)"


def test_each_batchs_tasks_enter_by_what_the_drivers_file_holds(
    tmp_path: Path, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader lives as long as its query, so it must take the current token for each batch."""
    path = tmp_path / "token"
    reader = data_source(**{"auth.tokenFile": str(path)}).streamReader(RAW)
    partitions = []
    for text in ("first", "second"):
        path.write_text(text)
        partitions += reader._partitions(LABELLED, WHOLE.pieces)
    path.unlink()
    entered = []

    def open_client(options: SourceOptions) -> FakeClient:
        entered.append(options.security.token)
        return client

    monkeypatch.setattr(access, "open_client", open_client)
    for partition in partitions:
        assert [row for found in read(reader, partition) for row in found["offset"].to_pylist()] == [0, 9]
    assert entered == ["first", "second"]


def test_each_batchs_tasks_write_with_the_credentials_that_the_catalog_gives_then(
    tmp_path: Path, client: FakeClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Credentials of an Iceberg table's store expire. If the catalog does not answer, the last ones stay."""
    properties = credential_giving_properties(tmp_path)
    columns = struct(("_journal", StringType()), ("_offset", LongType()))
    target, _ = IcebergTable(NAME, properties, "orders").prepare(columns)
    reader = data_source(**JSON, **{TARGET_OPTION: target.to_json()}).streamReader(FILES_SCHEMA)
    partitions = [*reader._partitions(LABELLED, WHOLE.pieces), *reader._partitions(LABELLED, WHOLE.pieces)]

    def fail(*_: object) -> None:
        raise OSError("restarting")

    monkeypatch.setattr(SqlCatalog, "load_table", fail)
    partitions += reader._partitions(LABELLED, WHOLE.pieces)
    assert "credentials_reused table=iceberg:prod/shop.orders" in caplog.text
    targets: list[FileTarget] = []

    def note(_pieces: object, target: FileTarget) -> Iterator[pa.RecordBatch]:
        targets.append(target)
        return iter(())

    monkeypatch.setattr(writer, "write_files", note)
    for partition in partitions:
        assert [*read(reader, partition)] == []
    first, second, third = [target.iceberg.store.properties for target in targets if target.iceberg]
    assert first != second == third
    assert b"password of the catalog" not in pickle.dumps((reader, partitions))
    assert "token" not in repr(partitions)


def test_credentials_that_last_are_not_asked_for_again(tmp_path: Path) -> None:
    """If the user gives credentials, for example, the query loads no table when it plans a batch."""
    properties = catalog_properties(tmp_path) | {"s3.access-key-id": "key"}
    target, _ = IcebergTable(NAME, properties, "orders").prepare(struct(("id", LongType())))
    assert target.iceberg is not None
    assert (target.iceberg.issuer, target.iceberg.store.properties) == (None, {"s3.access-key-id": "key"})


def test_the_address_is_looked_up_on_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors have another environment."""
    monkeypatch.setenv("BROKER_ADDRESS", "http://from.environment:1")
    made = GazetteDataSource(CaseInsensitiveDict({"path": "log/a"}))
    monkeypatch.delenv("BROKER_ADDRESS")
    assert pickle.loads(pickle.dumps(made)).options["brokeraddress"] == "http://from.environment:1"


def test_a_wrong_option_is_refused_when_the_data_source_is_made() -> None:
    with pytest.raises(OptionError, match="failOnDataLoss"):
        data_source(failOnDataLoss="perhaps")


def test_options_of_the_other_use_are_refused_by_the_reader() -> None:
    """Spark does not say at load() whether a stream or a batch is read."""
    made = data_source(maxBytesPerTrigger="1m")
    with pytest.raises(OptionError, match="stream query only"):
        made.reader(RAW)
    refused = data_source(endingOffsets="latest").streamReader(RAW)
    assert isinstance(refused, RefusedStream)
    for ask in (
        refused.initialOffset,
        refused.getDefaultReadLimit,
        partial(refused.latestOffset, {}, ReadAllAvailable()),
        partial(MicroBatches().start, lambda: refused),
    ):
        with pytest.raises(OptionError, match="batch query only"):
            ask()
    refused.stop()  # PySpark calls stop() whatever happened before.


def read_malformed() -> None:
    reader = stream_reader(struct(("id", LongType())), **JSON, mode="FAILFAST")
    list(reader.read(PiecePartition(Piece("log/a", 0, 15, 15, starts_on_record=True))))


@pytest.mark.parametrize(
    ("act", "text"),
    [
        pytest.param(
            partial(data_source, startingOffset="x"), "OptionError: option 'startingoffset'", id="option"
        ),
        pytest.param(
            partial(IcebergFormat, CaseInsensitiveDict({"path": "x"})),
            "OptionError: option 'path'",
            id="format",
        ),
        pytest.param(read_malformed, "RecordError: journal 'log/a'", id="record"),
    ],
)
def test_errors_arrive_without_the_frames_that_lead_to_them(
    client: FakeClient, act: Callable[[], object], text: str
) -> None:
    """Spark prints an error's text only below the frame of the method that it called."""
    client.journal = FakeJournal(b"{bad\n" * 3)
    with pytest.raises(GazetteError) as caught:
        act()
    shown = "".join(traceback.format_exception(caught.value)).splitlines()
    frames = [Path(line.split('"')[1]).name for line in shown if line.startswith("  File")]
    assert (set(frames[:-1]), frames[-1]) == ({"test_source.py"}, "_frames.py")
    assert text in shown[-1]


def test_the_client_gets_the_options() -> None:
    """The client takes seconds, and the options are in milliseconds."""
    options = data_source(requestTimeoutMs="1500", fragmentRoot="/data").streamReader(RAW)._options
    with access.open_client(options) as opened:
        assert isinstance(opened, Client)
        assert (opened.endpoint, opened.fragment_root) == ("http://broker.test:80", "/data")


def test_pyspark_finds_the_format_by_itself() -> None:
    """PySpark looks for this name in every module named pyspark_*, and for no other name."""
    assert pyspark_gazette.DefaultSource is GazetteDataSource
    assert GazetteDataSource.name() == "gazette"
    assert pyspark_gazette_delta.DefaultSource is DeltaFormat
    assert DeltaFormat.name() == "gazette_delta"
    assert not hasattr(pyspark_gazette, "OtherSource")
    assert not hasattr(pyspark_gazette_delta, "OtherSource")
    assert pyspark_gazette_iceberg.DefaultSource is IcebergFormat
    assert IcebergFormat.name() == "gazette_iceberg"
    assert not hasattr(pyspark_gazette_iceberg, "OtherSource")


@pytest.mark.parametrize(("given", "expected"), [(None, "0"), ("1", "1")], ids=["default", "of_the_user"])
def test_grpc_stays_out_of_forks(given: str | None, expected: str) -> None:
    """The fork handlers of gRPC sometimes kill a JVM's start, so they stay off unless the user chose."""
    environ = {name: text for name, text in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    environ |= {"GRPC_ENABLE_FORK_SUPPORT": given} if given else {}
    code = "import gazette_spark, os; print(os.environ['GRPC_ENABLE_FORK_SUPPORT'])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, env=environ
    )
    assert done.stdout.strip() == expected


def test_a_python_without_the_dependencies_says_how_to_set_another() -> None:
    """A driver started as .venv/bin/python has python3 workers unless PYSPARK_PYTHON says otherwise."""
    code = "import sys; sys.modules['pyarrow'] = None; import gazette_spark.source"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = ended.stderr.strip().splitlines()[-1]
    assert f"workers run {sys.executable}, which has no module 'pyarrow'" in last
    assert "PYSPARK_PYTHON" in last
