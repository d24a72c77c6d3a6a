"""The state machine over the source finds a broken source: each mutant here fails it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from gazette_spark._planning import ends, plan
from gazette_spark._planning import pieces as pieces_module
from gazette_spark._planning.pieces import Piece, PlannedBytes
from gazette_spark._planning.task import RowReader
from gazette_spark._planning.tracked_position import TrackedPosition
from gazette_spark.client import Client
from gazette_spark.errors import OffsetError, RecordError
from gazette_spark.offsets import JournalOffsets
from gazette_spark.testing.micro_batch import BatchDiffersError
from tests.property.test_source_machine import SourceMachine

pytestmark = pytest.mark.slow

T = TypeVar("T")

FOUND = (AssertionError, BatchDiffersError, OffsetError, RecordError, pytest.fail.Exception)
"""Exceptions for missing, duplicate or different rows. An error inside a mutant does not count."""


class Mutation:
    """Replaces code of the source, and counts how often that made a difference."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.replace = monkeypatch.setattr
        self.differences = 0

    def choose(self, right: T, wrong: T) -> T:
        self.differences += right != wrong
        return wrong


def end_anywhere(mutation: Mutation) -> None:
    """End a batch at the limit, not at a record."""
    real = ends.limited_end  # type: ignore[attr-defined]  # The name the planner calls.

    def end(window: Any, begin: int, soft_end: int, write_head: int, *args: Any, **kwargs: Any) -> int:
        right = real(window, begin, soft_end, write_head, *args, **kwargs)
        return mutation.choose(right, min(soft_end, write_head))

    mutation.replace(ends, "limited_end", end)


def forget_the_start(mutation: Mutation) -> None:
    """Read the first batch from a start that is not stored."""
    real = plan.Planner.next

    def next_end(self: plan.Planner, start: Any, *limits: Any) -> object:
        return real(self, mutation.choose(start, start.at("")), *limits)

    mutation.replace(plan.Planner, "next", next_end)


def read_to_the_head(mutation: Mutation) -> None:
    """Let tasks read to the write head at the time they run."""
    real = RowReader.rows

    def rows(self: RowReader, client: Client, piece: Piece) -> object:
        if piece.end == piece.limit:
            head = client.write_head(piece.journal)
            piece = mutation.choose(piece, replace(piece, end=head, limit=head))
        return real(self, client, piece)

    mutation.replace(RowReader, "rows", rows)
    mutation.replace(PlannedBytes, "attach_to", lambda _, pieces: pieces)


def trust_every_cut(mutation: Mutation) -> None:
    """Take the first byte of each piece for the start of a record."""
    real = pieces_module.split

    def split(*args: Any, **kwargs: Any) -> list[Piece]:
        pieces = list(real(*args, **kwargs))
        return mutation.choose(pieces, [replace(piece, starts_on_record=True) for piece in pieces])

    mutation.replace(plan, "split", split)


def lose_a_piece(mutation: Mutation) -> None:
    real = plan.split  # type: ignore[attr-defined]  # The name the planner calls.

    def split(*args: Any, **kwargs: Any) -> list[Piece]:
        pieces = list(real(*args, **kwargs))
        return mutation.choose(pieces, pieces[:3])

    mutation.replace(plan, "split", split)


def start_new_journals_late(mutation: Mutation) -> None:
    """Read a new journal from its write head on."""
    real = plan.Planner.next

    def next_end(self: plan.Planner, start: Any, *limits: Any) -> JournalOffsets:
        end = real(self, start, *limits)
        added = sorted(end.read_through.keys() - start.read_through.keys())
        begins = {**end.read_through, **self._view.client.write_heads(added)}
        seen = {journal: head for journal, head in end.heads.items() if head > begins[journal]}
        return mutation.choose(end, replace(end, read_through=begins, heads=seen))

    mutation.replace(plan.Planner, "next", next_end)


def take_a_restart_for_a_new_query(mutation: Mutation) -> None:
    """Check nothing after a restart if Spark does not tell the source where a batch begins."""

    def check(_: TrackedPosition, begin: JournalOffsets, end: JournalOffsets) -> bool:
        mutation.differences += begin == end
        return begin != end

    mutation.replace(TrackedPosition, "check", check)


QUICKLY_FOUND = [end_anywhere, read_to_the_head, lose_a_piece, take_a_restart_for_a_new_query]

RARELY_MET = [forget_the_start, trust_every_cut, start_new_journals_late]
"""Mutants that few runs reveal: the search takes up to a minute."""


@pytest.mark.parametrize(
    "mutant",
    [*QUICKLY_FOUND, *(pytest.param(each, marks=pytest.mark.soak) for each in RARELY_MET)],
    ids=lambda mutant: mutant.__name__,
)
def test_the_machine_finds(mutant: Callable[[Mutation], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "IDLE_POLL_S", 0.0)
    mutation = Mutation(monkeypatch)
    mutant(mutation)
    with pytest.raises(FOUND):
        run_state_machine_as_test(
            SourceMachine,
            settings=settings(
                max_examples=150,
                stateful_step_count=12,
                deadline=None,
                # These fixed courses must find the mutant. The machine's own test explores others.
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                report_multiple_bugs=False,
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )
    assert mutation.differences > 0
