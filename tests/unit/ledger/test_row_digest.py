"""Rows are counted and digested so that entries can say what a batch brought."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from gazette_spark.errors import LedgerFormatError
from gazette_spark.ledger.entry import LedgerEntry, parse_entry
from gazette_spark.ledger.row_digest import AuditedRows, digest_text
from gazette_spark.offsets import JournalOffsets
from gazette_spark.table.adopt import txn_numbers
from tests.rig.row_digest import digest_of

GOLDEN = Path(__file__).parents[2] / "golden" / "ledger"
ROWS = [(0, b""), (1, b"\x00\xff:"), (2**63 - 1, "ü".encode())]


def test_a_digest_is_what_its_definition_says() -> None:
    """The first 60 bits of SHA-256, joined by exclusive or; of no rows it is zero."""
    texts = [hashlib.sha256(str(offset).encode() + b":" + value).hexdigest()[:15] for offset, value in ROWS]
    assert [digest_text(digest_of([row])) for row in ROWS] == texts
    joined = int(texts[0], 16) ^ int(texts[1], 16) ^ int(texts[2], 16)
    assert digest_of(ROWS) == digest_of(reversed(ROWS)) == joined
    assert digest_text(digest_of([])) == "0" * 15


def test_values_that_change_places_change_the_digest() -> None:
    """A row's digest is of its offset, too."""
    assert digest_of([(0, b"a"), (2, b"b")]) != digest_of([(0, b"b"), (2, b"a")])


def golden(name: str, entry: LedgerEntry) -> None:
    """Check that an entry is stored as a file has it."""
    text = (GOLDEN / name).read_text(encoding="utf-8").rstrip("\n")
    assert entry.to_json() == text
    assert parse_entry(text, "orders") == entry


POSITION = (JournalOffsets({"shop/orders/0": 1024, "shop/orders/ü": 128}),)
ENTRY = LedgerEntry("orders", 1024, "query", 0, POSITION, POSITION, POSITION, "attempt", None)


def test_an_audit_is_stored_with_its_entry() -> None:
    """An audit is stored by journal, with and without a digest; older releases read its entry."""
    audit = (
        AuditedRows(None, 3),
        AuditedRows("shop/orders/0", 2, "00123456789abcd"),
        AuditedRows("shop/orders/ü", 1),
    )
    golden("entry-1-audit.json", replace(ENTRY, audit=audit))
    assert parse_entry(replace(ENTRY, audit=()).to_json(), "orders") == replace(ENTRY, audit=())


def test_an_adopted_entry_says_so() -> None:
    """An adopted entry says so in a form that older releases read."""
    golden("entry-1-adopted.json", replace(ENTRY, adopted=True))


@pytest.mark.parametrize(
    "audit",
    [5, [["a", -1, None]], [["a", 1]], [["a", 1, "xyz"]], [[3, 1, None]], [["a", 1, "0" * 14]]],
    ids=["number", "negative", "short", "no digest", "no name", "half a digest"],
)
def test_a_damaged_audit_is_refused(audit: object) -> None:
    """A damaged audit is refused and not guessed."""
    value = json.loads(ENTRY.to_json()) | {"audit": audit}
    with pytest.raises(LedgerFormatError, match="no audit of rows"):
        parse_entry(json.dumps(value), "orders")


def test_transaction_numbers_are_tried_upwards() -> None:
    """Numbers are tried from the next one on, in a few steps past any that a table can have."""
    for highest in (-1, 7, 1 << 30, 1 << 60):
        numbers = list(txn_numbers(highest))
        assert numbers[0] == highest + 1
        assert numbers == sorted(set(numbers))
        assert len(numbers) <= 7
