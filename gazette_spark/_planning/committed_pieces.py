"""The scan of a piece's committed messages, as a query's options want it."""

from __future__ import annotations

from collections.abc import Callable, Collection

from gazette_spark._planning.committed import CommittedScan, Sequencing
from gazette_spark._planning.piece_scan import PieceScan
from gazette_spark._planning.producer_states import RangeStates, StateFiles
from gazette_spark._planning.ranges import Piece
from gazette_spark._planning.reads import JournalSource
from gazette_spark._planning.skipped import skipped_spans
from gazette_spark.errors import OptionError
from gazette_spark.message.columns import ProducerStates
from gazette_spark.message.interfaces import CONTENT_TYPES
from gazette_spark.message.locator import Locator, locator_for
from gazette_spark.message.uuid_columns import uuid_reader
from gazette_spark.options.source import SourceOptions


def uuid_place(options: SourceOptions, framing: str) -> Locator:
    """Return where the messages of a framing keep their UUID.

    Raises:
        OptionError: the framing has no messages, or ``uuidPath`` does not fit it.
    """
    if framing not in CONTENT_TYPES:
        expected = f"one of {', '.join(CONTENT_TYPES)}, for isolationLevel={options.isolation_level}"
        raise OptionError("framing", framing, expected)
    return locator_for(CONTENT_TYPES[framing], options.uuid_path or "")


def committed_scan(
    client: JournalSource,
    piece: Piece,
    options: SourceOptions,
    scan: Callable[[Piece], PieceScan],
    columns: Collection[str],
) -> CommittedScan:
    """Return the scan of the committed messages of a piece, which is a whole range.

    Args:
        client: What reads the journal.
        piece: The range, and where the query began.
        options: Options of the query.
        scan: Returns the scan of all records of a piece of the journal.
        columns: Names of the query's columns.
    """
    reader = uuid_reader(uuid_place(options, piece.framing), separator=options.sep, quote=options.quote)

    def catch_up(states: ProducerStates, at: int, until: int) -> ProducerStates:
        part = Piece(piece.journal, at, until, until, head=True, framing=piece.framing)
        sequencing = Sequencing(scan(part), reader, states)
        for _ in sequencing:
            pass  # The states are all that counts.
        return sequencing.states

    def missing(begin: int, end: int) -> list[tuple[int, int]]:
        listed = [(each.fragment.begin, each.fragment.end) for each in client.list_fragments(piece.journal)]
        return list(skipped_spans(client, piece.journal, listed, begin, end))

    states = RangeStates(
        piece.journal,
        piece.begin,
        piece.limit,
        start=piece.start,
        files=None if options.state_location is None else StateFiles(options.state_location),
        catch_up=catch_up,
        missing=None if options.fail_on_data_loss else missing,
    )
    return CommittedScan(piece, scan, reader, states, columns=columns, include_acks=options.include_acks)
