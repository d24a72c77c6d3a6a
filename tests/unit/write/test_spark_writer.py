"""Writers check their arguments before anything is written, and can be sent to executors."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, WriterCommitMessage
from pyspark.sql.types import BinaryType, LongType, Row, StringType, StructField, StructType

from gazette_spark import source
from gazette_spark._write import spark_writer as writer
from gazette_spark._write.spark_writer import (
    BatchWriter,
    RowStreamWriter,
    StreamWriter,
    Written,
    record_batches,
)
from gazette_spark._write.task import TaskAppends
from gazette_spark.errors import OptionError
from gazette_spark.source import GazetteDataSource

ADDRESS = {"brokerAddress": "http://broker.test:80", "auth.token": "s3cret-token"}
ROWS = StructType([StructField("journal", StringType()), StructField("value", BinaryType())])


def data_source(**options: str) -> GazetteDataSource:
    return GazetteDataSource(CaseInsensitiveDict(ADDRESS | options))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param("writer", BatchWriter, id="batch"),
        pytest.param("streamWriter", StreamWriter, id="stream"),
    ],
)
def test_a_writer_travels_to_executors(name: str, kind: type) -> None:
    made = pickle.loads(pickle.dumps(getattr(data_source(), name)(ROWS, overwrite=False)))
    assert isinstance(made, kind)
    assert repr(made) == f"{kind.__name__}(None, http://broker.test:80)"


def test_a_writers_tasks_enter_by_what_the_drivers_file_holds(tmp_path: Path) -> None:
    """Spark makes a writer for each batch, which takes the token that the file has at that time."""
    path = tmp_path / "token"
    path.write_text("first\n")
    options = {"brokerAddress": "http://broker.test:80", "auth.tokenFile": str(path)}
    made = GazetteDataSource(CaseInsensitiveDict(options)).streamWriter(ROWS, overwrite=False)
    path.unlink()
    assert pickle.loads(pickle.dumps(made))._options.security.token == "first"
    with pytest.raises(OptionError, match=r"auth\.tokenFile.*token"):
        GazetteDataSource(CaseInsensitiveDict(options)).streamWriter(ROWS, overwrite=False)


def test_rows_of_spark_4_0_become_record_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4.0 passes rows to streams. The writer converts a few at a time to columns."""
    monkeypatch.setattr(source, "ARROW_STREAM_WRITES", False)
    made = data_source().streamWriter(ROWS, overwrite=False)
    assert isinstance(pickle.loads(pickle.dumps(made)), RowStreamWriter)
    assert made.write(iter([])) == Written({})
    monkeypatch.setattr(writer, "ROWS_AT_ONCE", 2)
    rows = [
        Row(journal="log/a", value=b"\x00one"),
        Row(journal=None, value=None),
        Row(journal="log/b", value=b""),
    ]
    found = [batch.to_pylist() for batch in record_batches(iter(rows), ROWS)]
    assert found == [
        [{"journal": "log/a", "value": b"\x00one"}, {"journal": None, "value": None}],
        [{"journal": "log/b", "value": b""}],
    ]


def test_a_task_without_rows_connects_to_nothing() -> None:
    made = data_source().writer(ROWS, overwrite=False)
    assert made.write(iter([])) == Written({})


@pytest.mark.parametrize("name", ["writer", "streamWriter"])
def test_journals_are_not_overwritten(name: str) -> None:
    with pytest.raises(OptionError, match="journals only grow"):
        getattr(data_source(), name)(ROWS, overwrite=True)


def test_columns_are_checked_on_the_driver() -> None:
    with pytest.raises(OptionError, match="column value bigint"):
        data_source().writer(StructType([StructField("value", LongType())]), overwrite=False)


def test_a_batch_whose_tasks_had_no_writer_is_refused() -> None:
    """Under a continuous trigger Spark 4.2 passes no rows, and would continue as if they were written."""
    with pytest.raises(OptionError, match="'trigger': got continuous"):
        data_source().streamWriter(ROWS, overwrite=False).commit([None, None], 0)


def test_what_was_written_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    messages: list[WriterCommitMessage | None] = [
        Written({"log/a": TaskAppends(2, 20, 120), "log/b": TaskAppends(1, 5, 5)}),
        Written({"log/a": TaskAppends(3, 30, 150)}),
        None,
    ]
    with caplog.at_level(logging.INFO, logger=writer.__name__):
        data_source().streamWriter(ROWS, overwrite=False).commit(messages[:2], 7)
        data_source().writer(ROWS, overwrite=False).abort(messages)
    assert caplog.messages == [
        "wrote batch_id=7 rows=6 bytes=55 journals=2 tasks=2",
        "failed, and rows it wrote stay in their journals rows=6 bytes=55 journals=2 tasks=3",
    ]
