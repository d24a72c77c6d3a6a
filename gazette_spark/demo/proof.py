"""Compares the appended events with the table, event by event, in whole columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gazette_spark.demo.events import Int64s
from gazette_spark.errors import GazetteError


@dataclass(frozen=True, slots=True)
class Proof:
    """Difference of two multisets of events. All fields except the first two are 0 if the table is exact."""

    appended: int
    in_table: int
    lost: int
    """Events that were appended but are missing from the table."""
    duplicated: int
    """Rows that are in the table more often than they were appended."""
    foreign: int
    """Rows in the table that were never appended, or have no id."""
    altered: int
    """Rows in the table whose amount differs from the event with the same id."""

    def check(self) -> None:
        """Raise InexactError unless the table has exactly the appended events, each once."""
        if self.lost or self.duplicated or self.foreign or self.altered:
            raise InexactError(self)


@dataclass(eq=False)
class InexactError(GazetteError):
    """The table differs from the appended events."""

    proof: Proof

    def __str__(self) -> str:
        proof = self.proof
        return (
            f"the table is not what was appended: {proof.lost} events lost, {proof.duplicated} duplicated, "
            f"{proof.foreign} never appended, {proof.altered} altered"
        )


def compare(ids: Int64s, cents: Int64s, table_ids: Int64s, table_cents: Int64s) -> Proof:
    """Compare appended events with the table's rows.

    Args:
        ids: id of each appended event, each id once.
        cents: amount of each appended event.
        table_ids: id of each row, in any order; a negative number means null.
        table_cents: amount of each row.
    """
    # Count in arrays over all ids, because a dictionary of millions of events would be slow and large.
    universe = np.union1d(ids, table_ids)
    place, table_place = np.searchsorted(universe, ids), np.searchsorted(universe, table_ids)
    appended = np.bincount(place, minlength=len(universe))
    # The number of rows of each id minus the number of appended events; it is negative if rows are lost.
    surplus = np.bincount(table_place, minlength=len(universe)) - appended
    amount = np.zeros(len(universe), np.int64)
    amount[place] = cents
    # A foreign row has no correct amount to compare with, and has already been counted.
    was_appended = appended[table_place] > 0
    return Proof(
        appended=len(ids),
        in_table=len(table_ids),
        lost=int(-surplus[surplus < 0].sum()),
        duplicated=int(surplus[(surplus > 0) & (appended > 0)].sum()),
        foreign=int(surplus[appended == 0].sum()),
        altered=int(np.count_nonzero(was_appended & (amount[table_place] != table_cents))),
    )
