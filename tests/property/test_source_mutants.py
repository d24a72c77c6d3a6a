"""The state machine over the source finds a source that is broken: each mutant here fails it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from gazette_spark import source
from gazette_spark.client import Client
from gazette_spark.offsets import JournalOffsets
from gazette_spark.scan import planner
from gazette_spark.scan.ranges import Piece
from tests.property.test_source_machine import SourceMachine


def end_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch ends where the limit says, not where a record does."""

    def end(_window: object, _begin: int, soft_end: int, write_head: int, *_: Any, **__: Any) -> int:
        return min(soft_end, write_head)

    monkeypatch.setattr(planner, "limited_end", end)


def forget_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch reads from a start that is nowhere written down."""
    real = planner.Planner.next

    def next_end(self: planner.Planner, start: Any, *limits: Any) -> object:
        return real(self, start.at(""), *limits)

    monkeypatch.setattr(planner.Planner, "next", next_end)


def read_to_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks read on to the write head there is when they run."""
    real = source.record_batches

    def record_batches(client: Client, piece: Piece, *rest: Any) -> object:
        if piece.end == piece.limit:
            head = client.write_head(piece.journal)
            piece = replace(piece, end=head, limit=head)
        return real(client, piece, *rest)

    monkeypatch.setattr(source, "record_batches", record_batches)


def trust_every_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece takes its first byte for a record's."""
    real = planner.split

    def split(*args: Any, **kwargs: Any) -> list[Piece]:
        return [replace(piece, head=True) for piece in real(*args, **kwargs)]

    monkeypatch.setattr(planner, "split", split)


def lose_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of many pieces leaves out its last."""
    real = planner.split
    monkeypatch.setattr(planner, "split", lambda *a, **k: real(*a, **k)[:3])


def start_new_journals_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that appears is read from its head on."""
    real = planner.Planner.next

    def next_end(self: planner.Planner, start: Any, *limits: Any) -> JournalOffsets:
        end = real(self, start, *limits)
        added = sorted(end.read_through.keys() - start.read_through.keys())
        return replace(end, read_through={**end.read_through, **self._view.client.write_heads(added)})

    monkeypatch.setattr(planner.Planner, "next", next_end)


MUTANTS = [
    end_anywhere,
    forget_the_start,
    read_to_the_head,
    trust_every_cut,
    lose_a_piece,
    start_new_journals_late,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_machine_finds(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each mutant leads to rows that are missing, doubled or others, or to an error."""
    monkeypatch.setattr(source, "IDLE_POLL_S", 0.0)
    mutant(monkeypatch)
    with pytest.raises(Exception, match=r"."):
        run_state_machine_as_test(
            SourceMachine,
            settings=settings(
                max_examples=150,
                stateful_step_count=12,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                report_multiple_bugs=False,
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )
