"""The oracle of each kind of sink, which compares the table's files with the journals' bytes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from gazette_spark.message import ACK_TXN
from gazette_spark.testing.oracle import OracleVerdict, Row, check_table, read_versions, split_records
from tests.oracles.committed import Sent, committed
from tests.rig.crashes.sinks import (
    COLUMNS,
    SINKS,
    count_records,
    dead_table,
    fits,
    read_distinct,
    read_keyed,
)
from tests.rig.crashes.tables import check_iceberg
from tests.rig.upsert_oracle import check_upserts, check_versions, newest_rows


def check(
    kind: str,
    table: Path,
    truth: Mapping[str, bytes],
    *,
    app_id: str,
    complete: bool,
    checkpoints: Sequence[Path] = (),
) -> OracleVerdict:
    """Check a table, at every version, against the true bytes of its journals.

    Args:
        kind: Kind of the sink; see :data:`tests.rig.crashes.sinks.SINKS`.
        table: Directory of the table.
        truth: All bytes ever appended, by journal.
        app_id: App id of the sink.
        complete: The query has read everything.
        checkpoints: Directories of the queries that wrote it.
    """
    match kind:
        case "raw" | "direct" | "format" | "iceberg":
            check_rows = check_iceberg if SINKS[kind].iceberg else check_table
            return check_rows(table, truth, app_id=app_id, complete=complete, checkpoints=checkpoints)
        case "upsert" | "replace":
            return check_upserts(table, truth, read_keyed, COLUMNS, app_id=app_id, complete=complete)
        case "stateful":
            return check_upserts(
                table, truth, read_distinct, ("journal", "key"), app_id=app_id, complete=complete
            )
        case "complete":
            return check_versions(
                table,
                truth,
                lambda ends: count_records({journal: truth[journal][:end] for journal, end in ends.items()}),
                ("journal", "key", "count"),
                app_id=app_id,
                complete=complete,
            )
        case "dead letters":
            columns = ("journal", "offset", "value")
            verdict = check_upserts(table, truth, read_fitting, columns, app_id=app_id, complete=complete)
            return check_dead(verdict, table, truth, app_id=app_id, complete=complete)
        case "committed":
            return check_versions(
                table,
                truth,
                lambda ends: committed_rows(truth, ends),
                ("journal", "offset", "value", "_ack_offset"),
                app_id=app_id,
                complete=complete,
            )
    raise ValueError(f"no oracle of a sink that is {kind!r}")


def committed_rows(
    truth: Mapping[str, bytes], ends: Mapping[str, int]
) -> Counter[tuple[str, int, bytes, int]]:
    """Return the rows of the messages that are committed before some offsets."""
    rows: Counter[tuple[str, int, bytes, int]] = Counter()
    for journal, end in ends.items():
        records = list(split_records(truth[journal][:end]))
        found = committed(_sent(value)._replace(offset=offset) for offset, value in records)
        rows.update(
            (journal, offset, value, found[offset])
            for offset, value in records
            if offset in found and _sent(value).flags != ACK_TXN
        )
    return rows


@cache
def _sent(value: bytes) -> Sent:
    _, producer, clock, flags = json.loads(value)["n"]
    return Sent(producer, clock, flags, 0)


def read_fitting(journal: str, offset: int, value: bytes) -> tuple[tuple[str, int], Row | None]:
    """Return key and row of a record of the main table, without a row for a dead letter."""
    return (journal, offset), (journal, offset, value) if fits(value) else None


def check_dead(
    verdict: OracleVerdict, table: Path, truth: Mapping[str, bytes], *, app_id: str, complete: bool
) -> OracleVerdict:
    """Check the newest dead letters, and add problems to the main table's verdict.

    They are committed before the rows, so they may be ahead of the main table, except at the end.
    """
    entry = [version.entry for version in read_versions(table, app_id)][-1]
    ends = entry.read_through if entry else {}
    unfit = {
        (journal, offset, value)
        for journal, content in truth.items()
        for offset, value in split_records(content)
        if not fits(value)
    }
    due = {row for row in unfit if row[1] < ends.get(row[0], 0)}
    held = newest_rows(dead_table(table), ("journal", "offset", "raw"))
    lost, wrong = due - held.keys(), held.keys() - (due if complete else unfit)
    doubled = held.total() - len(held)
    verdict.rows += held.total()
    verdict.lost += len(lost)
    verdict.altered += len(wrong)
    verdict.duplicated += doubled
    if lost or wrong or doubled:
        first = min(lost | wrong, default="none")
        verdict.violations.append(
            f"dead letters: {len(lost)} lost, {len(wrong)} to be none, {doubled} doubled, e.g. {first}"
        )
    return verdict
