"""Rows are counted and digested so that entries record what a batch brought."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gazette_spark._delta.adopt import txn_numbers
from gazette_spark._ledger.entry import LedgerEntry, parse_entry
from gazette_spark._ledger.row_digest import AuditedRows
from gazette_spark.errors import LedgerFormatError
from gazette_spark.offsets import JournalOffsets

GOLDEN = Path(__file__).parents[2] / "golden" / "ledger"
DIGEST = "00123456789abcdef" + "0" * 47


def golden(name: str, entry: LedgerEntry) -> None:
    text = (GOLDEN / name).read_text(encoding="utf-8").rstrip("\n")
    assert entry.to_json() == text
    assert parse_entry(text, "orders") == entry


POSITION = (JournalOffsets({"shop/orders/0": 1024, "shop/orders/ü": 128}),)
ENTRY = LedgerEntry("orders", 1024, "query", 0, POSITION, POSITION, POSITION, "attempt", None)


def test_an_audit_is_stored_with_its_entry() -> None:
    audit = (
        AuditedRows(None, 3),
        AuditedRows("shop/orders/0", 2, DIGEST),
        AuditedRows("shop/orders/ü", 1),
    )
    golden("entry-1-audit.json", replace(ENTRY, audit=audit))
    assert parse_entry(replace(ENTRY, audit=()).to_json(), "orders") == replace(ENTRY, audit=())


def test_an_adopted_entry_says_so() -> None:
    golden("entry-1-adopted.json", replace(ENTRY, adopted=True))


@pytest.mark.parametrize(
    "audit",
    [5, [["a", -1, None]], [["a", 1]], [["a", 1, "xyz"]], [[3, 1, None]], [["a", 1, "0" * 63]]],
    ids=["number", "negative", "short", "no digest", "no name", "half a digest"],
)
def test_a_damaged_audit_is_refused(audit: object) -> None:
    value = json.loads(ENTRY.to_json()) | {"audit": audit}
    with pytest.raises(LedgerFormatError, match=r"^app id 'orders': .*expected the number and digest"):
        parse_entry(json.dumps(value), "orders")


def test_transaction_numbers_are_tried_upwards() -> None:
    """Later attempts jump past any number that a table can have."""
    for highest in (-1, 7, 1 << 30, 1 << 60):
        numbers = list(txn_numbers(highest))
        assert numbers[0] == highest + 1
        assert numbers == sorted(set(numbers))
        assert len(numbers) <= 7
