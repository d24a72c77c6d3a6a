"""A query that reads a fragment store in place of brokers: its listing, and the fragments of its pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gazette_spark._planning.ranges import Piece
from gazette_spark._planning.store_files import open_store
from gazette_spark._planning.store_layout import Wanted
from gazette_spark._planning.stored_journals import StoreJournals
from gazette_spark.options.source import SourceOptions
from gazette_spark.protocol.labels import PREFIX, parse_selector, values_of

SLACK_BYTES = 4 << 20
"""More than a cutter reads at a time."""


def listed_store(options: SourceOptions) -> StoreJournals:
    """Return the journals of a query's store, which is listed now.

    Raises:
        FragmentStoreError: it cannot be listed.
        OptionError: the listing does not tell which directories are journals.
    """
    files = open_store(options.fragment_store or "")
    return StoreJournals.listed(files, wanted_of(options))


def wanted_of(options: SourceOptions) -> Wanted:
    """Return the selection of a query's journals in a store."""
    selection = options.selection
    prefixes = values_of(parse_selector(selection.selector).include, PREFIX) if selection.selector else [""]
    return Wanted(selection.names, prefixes[0], options.fragment_postfix_levels)


def store_of_piece(options: SourceOptions, piece: Piece) -> StoreJournals:
    """Return the journals that a task reads its piece from."""
    files = open_store(options.fragment_store or "")
    return StoreJournals.of_piece(files, piece.journal, piece.fragments, reach_of(options, piece))


def with_fragments(journals: object, pieces: Sequence[Piece], options: SourceOptions) -> list[Piece]:
    """Return pieces with the fragments their bytes may lie in; as they are, if they are read by brokers.

    Raises:
        FragmentConflictError: two fragments cannot both be right.
        CorruptFragmentError: a file has not the length that its name says.
    """
    if not isinstance(journals, StoreJournals):
        return list(pieces)
    return [
        replace(
            piece,
            fragments=journals.fragments_of(
                # Messages that are committed in a piece may begin anywhere since the query's start.
                piece.journal,
                piece.start if options.reads_committed else piece.read_from,
                reach_of(options, piece),
            ),
        )
        for piece in pieces
    ]


def reach_of(options: SourceOptions, piece: Piece) -> int:
    """Return an offset that reading a piece does not pass: its last record ends before, or is too long."""
    return min(piece.limit, piece.end + 2 * options.max_record_bytes + SLACK_BYTES)
