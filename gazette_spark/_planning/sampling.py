"""The first records of a query's journals, to infer a schema from.

The sample is bounded and always the same: of the first :data:`MAX_JOURNALS` journals that hold anything in
the query's range, by name, the records that begin in the first ``samplingBytes``. A query that starts at the
latest offsets has no records yet; its journals are sampled from the earliest on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gazette_spark._formats.framing import Block
from gazette_spark._formats.registry import framing_named
from gazette_spark._planning.piece_scan import PieceScan
from gazette_spark._planning.planner import Planner
from gazette_spark._planning.ranges import Piece
from gazette_spark.errors import OptionError
from gazette_spark.offsets import JournalOffsets
from gazette_spark.options.query_range import EARLIEST, LATEST, OffsetChoice
from gazette_spark.options.source import SourceOptions

if TYPE_CHECKING:
    from gazette_spark._planning.reads import JournalSource

MAX_JOURNALS = 16
"""Most journals that are sampled."""

SAMPLING_TIMEOUT_S = 60.0
"""Longest time reading a sample may take; then it is an error, since part of one would be another sample."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Range of a query's sample."""

    framing: str
    """Name of the framing of all its journals."""
    pieces: tuple[Piece, ...]
    """In order of the journals' names; at least one."""


def plan_sample(journals: JournalSource, options: SourceOptions) -> Sample:
    """Choose the journals to sample.

    Raises:
        OptionError: no journal holds a record, or their framings differ.
    """
    planner = Planner(journals, replace(options, starting_offsets=_early(options.starting_offsets)))
    start, end = planner.batch()
    begins, ends = start.read_through, end.read_through
    filled = [journal for journal in sorted(begins) if ends[journal] > begins[journal]][:MAX_JOURNALS]
    pieces = planner.pieces(
        JournalOffsets({journal: begins[journal] for journal in filled}),
        JournalOffsets({journal: ends[journal] for journal in filled}),
    )
    # One piece for each journal, which is read until there is enough.
    heads = {
        piece.journal: replace(piece, end=piece.limit)
        for piece in pieces
        if piece.begin == begins[piece.journal]
    }
    if not heads:
        got = f"{options.selection}, where there is no record yet"
        raise OptionError("inferSchema", got, "journals with records, or the columns in .schema(...)")
    framings = sorted({piece.framing for piece in heads.values()})
    if len(framings) > 1:
        got = f"journals whose framings are {' and '.join(framings)}"
        raise OptionError("inferSchema", got, "one framing, or the columns in .schema(...)")
    return Sample(framings[0], tuple(heads[name] for name in sorted(heads)))


def sampled(
    journals: JournalSource,
    options: SourceOptions,
    sample: Sample,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Block]:
    """Yield the records of a sample.

    Raises:
        OptionError: it takes longer than :data:`SAMPLING_TIMEOUT_S`.
    """
    until = clock() + SAMPLING_TIMEOUT_S
    for piece in sample.pieces:
        scan = PieceScan(
            journals,
            piece,
            fail_on_data_loss=options.fail_on_data_loss,
            max_record_bytes=options.max_record_bytes,
            framing=framing_named(piece.framing, options.max_record_bytes),
        )
        stop = piece.begin + options.sampling_bytes
        for block in scan:
            if clock() > until:
                got = f"a sample that was not read within {SAMPLING_TIMEOUT_S:.0f} s"
                raise OptionError("samplingBytes", got, "fewer bytes, or the columns in .schema(...)")
            yield block.rows(0, int(np.searchsorted(block.offsets, stop)))
            if block.offset + len(block.data) >= stop:
                break


def _early(choice: OffsetChoice) -> OffsetChoice:
    named = {journal: EARLIEST if offset == LATEST else offset for journal, offset in choice.named.items()}
    return OffsetChoice(EARLIEST if choice.default == LATEST else choice.default, named)
