"""The newest record of a transaction journal decides whether a batch is recorded, repeated or refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gazette_spark._write.transactions import (
    Attempt,
    TransactionPlan,
    TransactionRecord,
    TransactionRefusal,
    decide,
)
from gazette_spark.errors import TransactionError
from gazette_spark.strict_json import MAX_BYTES

GOLDEN = Path(__file__).parents[2] / "golden" / "transactions" / "record_v1.json"

MINE, OTHERS = {"log/a": b"mine"}, {"log/a": b"others"}
NEW = Attempt("q1", 7, "run-b", MINE, rows=3)
BEFORE = TransactionRecord("q1", 6, "run-a", OTHERS, rows=2)
SAME = TransactionRecord("q1", 7, "run-a", OTHERS, rows=3)
WRITE = Attempt("w1", None, "try-b", MINE)


def decided(
    attempt: Attempt, newest: TransactionRecord | None, **registers: str
) -> TransactionPlan | TransactionRefusal:
    return decide(attempt, newest, registers or (newest.registers if newest else {}))


def test_the_next_batch_is_recorded() -> None:
    own = TransactionRecord("q1", 6, "run-b", OTHERS, replaced={"run-0": 5, "run-a": 6})
    recorded = TransactionRecord("q1", 7, "run-b", MINE, rows=3, replaced={"run-a": 6})
    assert decided(NEW, own) == TransactionPlan(record=recorded, commit=MINE)
    assert decided(NEW, BEFORE) == TransactionPlan(finish=OTHERS, record=recorded, commit=MINE)
    first = replace(NEW, batch=0)
    assert decided(first, None) == TransactionPlan(
        record=TransactionRecord("q1", 0, "run-b", MINE, 3), commit=MINE
    )


def test_a_recorded_batch_is_repeated() -> None:
    taken = TransactionRecord("q1", 7, "run-b", OTHERS, rows=3, replaced={"run-a": 7})
    assert decided(NEW, SAME) == TransactionPlan(record=taken, commit=OTHERS, rolls_back=True)
    own = replace(SAME, author="run-b", intents=MINE)
    assert decided(NEW, own) == TransactionPlan(commit=MINE)
    assert decided(WRITE, TransactionRecord("w1", None, "try-a", OTHERS)) == TransactionPlan(
        commit=OTHERS, rolls_back=True
    )


def test_batch_writes_follow_each_other() -> None:
    newest = TransactionRecord("w0", None, "try-a", OTHERS, earlier=("v",))
    recorded = TransactionRecord("w1", None, "try-b", MINE, earlier=("v", "w0"))
    assert decided(WRITE, newest) == TransactionPlan(finish=OTHERS, record=recorded, commit=MINE)
    late = replace(WRITE, query="v")
    assert decided(late, newest) == TransactionPlan(rolls_back=True)
    many = replace(newest, earlier=tuple(map(str, range(100))))
    plan = decided(WRITE, many)
    assert isinstance(plan, TransactionPlan)
    assert plan.record is not None
    assert plan.record.earlier == (*map(str, range(1, 100)), "w0")


FIRST = replace(NEW, first_batch=7)


@pytest.mark.parametrize(
    ("newest", "registers"),
    [
        pytest.param(None, {}, id="no_record"),
        pytest.param(None, {"query": "q1", "batch": "6", "author": "run-a"}, id="a_lost_record"),
        pytest.param(replace(BEFORE, batch=4), {}, id="a_gap"),
        pytest.param(replace(BEFORE, query="q0"), {}, id="another_query"),
        pytest.param(TransactionRecord("w1", None, "try-a"), {}, id="a_batch_write"),
        pytest.param(BEFORE, {"author": "somebody"}, id="other_registers"),
    ],
)
def test_a_first_batch_may_be_ordered(newest: TransactionRecord | None, registers: dict[str, str]) -> None:
    assert isinstance(decided(NEW, newest, **registers), TransactionRefusal)
    assert isinstance(decided(replace(NEW, first_batch=8), newest, **registers), TransactionRefusal)
    plan = decided(FIRST, newest, **registers)
    assert isinstance(plan, TransactionPlan)
    assert plan.record is not None
    assert (plan.record.query, plan.record.batch, plan.commit) == ("q1", 7, MINE)


@pytest.mark.parametrize(
    ("attempt", "newest", "problem", "advice"),
    [
        pytest.param(NEW, None, "has no record, and batch 7", "transactionFirstBatch=7", id="no_record"),
        pytest.param(
            NEW, replace(BEFORE, batch=4), "newest record is of batch 4", "transactionFirstBatch=7", id="gap"
        ),
        pytest.param(
            FIRST, replace(BEFORE, batch=9), "after batch 9 was committed", "newest checkpoint", id="back"
        ),
        pytest.param(
            NEW,
            replace(BEFORE, author="run-c", replaced={"run-b": 6}),
            "run run-b of query q1 was replaced by run run-c",
            "Stop this run",
            id="replaced",
        ),
        pytest.param(
            NEW,
            replace(BEFORE, query="q0"),
            "belongs to query q0, not to q1",
            "another transactionJournal",
            id="another_query",
        ),
        pytest.param(
            NEW,
            TransactionRecord("w0", None, "try-a"),
            "a batch write, transaction w0",
            "another",
            id="stream_after_write",
        ),
        pytest.param(WRITE, BEFORE, "belongs to query q1, not to w1", "another", id="write_after_stream"),
        pytest.param(
            WRITE, replace(BEFORE, query="w1"), "both have the id w1", "another", id="one_id_of_both"
        ),
    ],
)
def test_what_cannot_follow_is_refused(
    attempt: Attempt, newest: TransactionRecord | None, problem: str, advice: str
) -> None:
    refused = decided(attempt, newest)
    assert isinstance(refused, TransactionRefusal)
    assert problem in refused.problem
    assert advice in refused.advice


def test_empty_registers_leave_the_record_to_decide() -> None:
    assert decide(NEW, BEFORE, {}) == decided(NEW, BEFORE)
    refused = decide(NEW, BEFORE, SAME.registers)
    assert isinstance(refused, TransactionRefusal)
    assert "author=run-a, batch=7, query=q1" in refused.problem
    write_after_loss = decide(WRITE, None, SAME.registers)
    assert isinstance(write_after_loss, TransactionRefusal)


def test_the_stored_form_stays() -> None:
    """Records outlive releases, so the form must stay readable and unchanged."""
    record = TransactionRecord(
        "2644227d-a84e-4055-9856-aabe4217289f",
        7,
        "932df5a0-b64b-4674-ad4e-b224eeaf3cd0",
        {"log/b": b"\x00\xff", "log/a": b"{}\n"},
        rows=12,
        replaced={"7c0b3484-767a-41eb-8b69-e6d33b239ccf": 6},
        earlier=(),
    )
    assert TransactionRecord.from_json(GOLDEN.read_bytes()) == record
    assert record.to_json() == GOLDEN.read_bytes()
    write = TransactionRecord("w1", None, "try-a", earlier=("w0",))
    assert TransactionRecord.from_json(write.to_json()) == write


BROKEN = {
    "no_json": b"rubbish\n",
    "no_object": b"[1]\n",
    "no_intents": b'{"format_version":1,"query":"q","batch":1,"author":"a","rows":1,"replaced":{}}\n',
    "bad_intent": GOLDEN.read_bytes().replace(b"AP8=", b"!!!!"),
}


@pytest.mark.parametrize("line", [pytest.param(line, id=name) for name, line in BROKEN.items()])
def test_a_line_that_is_no_record_is_named(line: bytes) -> None:
    with pytest.raises(TransactionError, match=r"'acme/txn': its newest record cannot be read.*Nobody else"):
        TransactionRecord.from_json(line, "acme/txn")


def test_a_record_of_any_length_is_read_again() -> None:
    """Many tasks that write to many journals leave more intents than other JSON may have bytes."""
    record = TransactionRecord("q1", 7, "run-a", {"log/a": bytes(MAX_BYTES)}, rows=3)
    assert TransactionRecord.from_json(record.to_json()) == record


def test_a_later_form_is_not_guessed_at() -> None:
    later = GOLDEN.read_bytes().replace(b'"format_version":1', b'"format_version":2')
    with pytest.raises(TransactionError, match="has the form 2, not 1"):
        TransactionRecord.from_json(later, "acme/txn")
