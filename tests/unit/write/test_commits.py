"""A writer commits what all tasks returned, and never rolls back what may have been committed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, WriterCommitMessage
from pyspark.sql.types import BinaryType, StructField, StructType

from gazette_spark._write.producer import TaskIntent
from gazette_spark._write.spark_writer import StreamWriter, TaskJob, Written
from gazette_spark._write.task import TaskAppends
from gazette_spark._write.transaction_journal import read_state
from gazette_spark._write.transactions import OPENING, TransactionRecord
from gazette_spark.broker import EmbeddedBroker
from gazette_spark.client import Client
from gazette_spark.errors import AuthError, JournalNotFoundError, OptionError, TransactionError
from gazette_spark.protocol.journal_specs import journal_spec
from gazette_spark.protocol.tokens import Capability
from gazette_spark.source import GazetteDataSource
from tests.rig.secured import KEYS, token

ROWS = StructType([StructField("value", BinaryType())])
JOB = TaskJob("query-1", "run-a", "0")


@pytest.fixture
def journals(gazette_client: Client, fresh_prefix: str) -> list[str]:
    names = [f"{fresh_prefix}rows", f"{fresh_prefix}transactions"]
    gazette_client.create_journals(*(journal_spec(name) for name in names))
    return names


def source(client: Client, journals: Sequence[str], **options: str) -> GazetteDataSource:
    given = {
        "brokerAddress": client.endpoint,
        "path": journals[0],
        "deliveryGuarantee": "exactly_once",
        "transactionJournal": journals[1],
    }
    return GazetteDataSource(CaseInsensitiveDict(given | options))


def stream_writer(client: Client, journals: Sequence[str]) -> StreamWriter:
    return source(client, journals).streamWriter(ROWS, overwrite=False)


def task(journal: str, number: int, job: TaskJob = JOB) -> Written:
    intent = TaskIntent(journal, b"commit %d\n" % number, b"rollback %d\n" % number)
    return Written({journal: TaskAppends(number, 10, 10)}, (intent,), job)


def content(client: Client, journal: str) -> bytes:
    head = client.write_head(journal)
    with client.read(journal, end_offset=head) as reader:
        return reader.read() if head else b""


def test_the_intents_of_all_tasks_are_one_record(gazette_client: Client, journals: list[str]) -> None:
    rows, transactions = journals
    messages = [task(rows, 1), Written(job=JOB), task(rows, 2)]
    stream_writer(gazette_client, journals).commit(messages, 0)
    newest = read_state(gazette_client, transactions).newest
    assert newest == TransactionRecord("query-1", 0, "run-a", {rows: b"commit 1\ncommit 2\n"}, rows=3)
    assert content(gazette_client, rows) == b"commit 1\ncommit 2\n"


def test_a_repetition_rolls_its_own_rows_back(gazette_client: Client, journals: list[str]) -> None:
    rows, _ = journals
    stream_writer(gazette_client, journals).commit([task(rows, 1)], 0)
    again = TaskJob("query-1", "run-b", "0")
    stream_writer(gazette_client, journals).commit([task(rows, 2, again)], 0)
    assert content(gazette_client, rows) == b"commit 1\ncommit 1\nrollback 2\n"


def test_only_a_job_that_lacks_a_task_is_rolled_back(gazette_client: Client, journals: list[str]) -> None:
    """With a message of each task the commit may have begun, and a rollback would lose recorded rows."""
    rows, _ = journals
    writer = stream_writer(gazette_client, journals)
    writer.abort([task(rows, 1), task(rows, 2)], 0)
    assert content(gazette_client, rows) == b""
    writer.abort([task(rows, 1), None, task(rows, 2)], 0)
    assert content(gazette_client, rows) == b"rollback 1\nrollback 2\n"
    batch = source(gazette_client, journals).writer(ROWS, overwrite=False)
    batch.abort([task(rows, 3)])
    batch.abort([task(rows, 4), None])
    assert content(gazette_client, rows).endswith(b"rollback 2\nrollback 4\n")


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param([TaskJob()], id="no_names"),
        pytest.param([JOB, TaskJob("query-2", "run-a", "0")], id="two_queries"),
        pytest.param([TaskJob("query-1", "run-a", "1")], id="another_batch"),
        pytest.param([], id="no_task"),
    ],
)
def test_a_batch_that_spark_does_not_name_is_not_committed(
    gazette_client: Client, journals: list[str], jobs: list[TaskJob]
) -> None:
    rows, transactions = journals
    messages: list[WriterCommitMessage | None] = [task(rows, 1, job) for job in jobs]
    with pytest.raises(TransactionError, match="tasks of batch 0 do not name one query"):
        stream_writer(gazette_client, journals).commit(messages, 0)
    assert content(gazette_client, transactions) == b""


def test_a_batch_write_has_one_id_for_all_its_tries(gazette_client: Client, journals: list[str]) -> None:
    """Two tries under one id are one write. Two writes without an id are separate."""
    rows, transactions = journals
    for options in ({"transactionId": "monday"}, {"transactionId": "monday"}, {}, {}):
        writer = source(gazette_client, journals, **options).writer(ROWS, overwrite=False)
        writer.commit([task(rows, 1)])
    first, *lines = content(gazette_client, transactions).splitlines(keepends=True)
    assert first == OPENING
    records = [TransactionRecord.from_json(line) for line in lines]
    assert records[0].query == "monday"
    assert len({record.query for record in records}) == len(records) == 3
    assert content(gazette_client, rows).count(b"rollback 1\n") == 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        pytest.param({"transactionId": "monday"}, "to be used by a batch write only", id="id_of_a_stream"),
        pytest.param({"framing": "none"}, "lines, csv or fixed", id="no_messages"),
        pytest.param({"framing": "csv", "uuidPath": "/a"}, "index of a CSV column", id="path"),
        pytest.param({"sep": ";"}, "'sep'.*as in Gazette's CSV messages", id="separator"),
        pytest.param(
            {"deliveryGuarantee": "at_least_once"}, "to be used with exactly_once only", id="no_guarantee"
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(
    gazette_client: Client, journals: list[str], options: dict[str, str], problem: str
) -> None:
    with pytest.raises(OptionError, match=problem):
        source(gazette_client, journals, **options).streamWriter(ROWS, overwrite=False)


def test_the_transaction_journal_is_looked_up_first(gazette_client: Client, journals: list[str]) -> None:
    rows, transactions = journals
    with pytest.raises(JournalNotFoundError, match=f"{transactions}-2.*'transactionJournal' names it"):
        stream_writer(gazette_client, [rows, f"{transactions}-2"])
    gazette_client.create_journals(journal_spec(f"{transactions}-csv", labels={"content-type": "text/csv"}))
    with pytest.raises(OptionError, match="content-type=text/csv; expected a journal of lines"):
        stream_writer(gazette_client, [rows, f"{transactions}-csv"])


def test_a_token_has_to_allow_reading_the_transaction_journal(tmp_path: Path) -> None:
    """The first batch does not read that journal, so the missing permission would show up too late."""
    with EmbeddedBroker(tmp_path, auth_keys=KEYS) as broker:
        with Client(broker.endpoint, auth_keys=KEYS) as client:
            client.create_journals(journal_spec("a/rows"), journal_spec("a/transactions"))
            few, all_of_them = (
                source(client, ["a/rows", "a/transactions"], **{"auth.token": token(capability=each)})
                for each in (Capability.LIST | Capability.APPEND, Capability.ALL)
            )
        with pytest.raises(AuthError, match="READ"):
            few.streamWriter(ROWS, overwrite=False)
        all_of_them.streamWriter(ROWS, overwrite=False)


def test_the_transaction_journal_is_no_target(gazette_client: Client, journals: list[str]) -> None:
    prefix = journals[0].removesuffix("rows")
    for path in (journals[1], prefix):
        with pytest.raises(OptionError, match=f"'transactionJournal': got '{journals[1]}', which rows"):
            source(gazette_client, journals, path=path).streamWriter(ROWS, overwrite=False)
    given = {"brokerAddress": gazette_client.endpoint, "deliveryGuarantee": "exactly_once"}
    with pytest.raises(OptionError, match="'transactionJournal': got nothing"):
        GazetteDataSource(CaseInsensitiveDict(given)).streamWriter(ROWS, overwrite=False)
