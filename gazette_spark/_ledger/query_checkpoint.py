"""Read what Spark writes into a query checkpoint.

Spark writes ``offsets/<batch_id>`` before it runs the batch. The file has a line ``v1``, a line of JSON about
the query, and one line for each source with the offset at which the batch ends, or ``-`` for a source without
an offset. The batch begins where the one before it ended. The file ``metadata`` contains the query's id.
"""

from __future__ import annotations

import re

from gazette_spark._ledger.entry import Positions, SourcePosition
from gazette_spark.errors import JsonError, OffsetError, QueryCheckpointError, TableRefusedError
from gazette_spark.offsets import JournalOffsets
from gazette_spark.strict_json import parse_json

OFFSET_LOG_VERSION = "v1"
NO_OFFSET = "-"
_FIELDS = {"format_version", "journals"}
"""Fields that identify a Gazette position, because no other source has both."""
_BEGIN = '{"format_version":'
"""Beginning of a Gazette position. A shorter line may be one that was cut."""
UNFINISHED = re.compile(r"\.{1,2}\d+\.[0-9a-f-]{36}\.tmp(\.crc)?")


def offsets_path(root: str, batch_id: int) -> str:
    """Return the path of the file that contains where batch ``batch_id`` ends."""
    return f"{root.rstrip('/')}/offsets/{batch_id}"


def metadata_path(root: str) -> str:
    """Return the path of the file that contains the query's id."""
    return f"{root.rstrip('/')}/metadata"


def offsets_directory(root: str) -> str:
    """Return the directory where Spark records the offsets of its batches."""
    return offsets_path(root, 0).rpartition("/")[0]


def is_unfinished(name: str) -> bool:
    """Return whether a file in ``offsets`` is one that Spark was still writing and had not renamed yet."""
    return UNFINISHED.fullmatch(name) is not None


def state_path(root: str) -> str:
    """Return the directory of a query's state, which exists only if the query has state."""
    return f"{root.rstrip('/')}/state"


def checked_text(text: str | None, path: str) -> str:
    """Check the text of a file of a query checkpoint, and return it.

    Raises:
        QueryCheckpointError: it is missing or empty.
    """
    if text is None:
        problem = "the file is missing. Check that this is the checkpoint of the query that calls the sink"
        raise QueryCheckpointError(path, problem)
    # Spark does not check everything: a truncated file whose old checksum was still beside it was detected by
    # Spark's JSON parser only. Therefore the text is checked here.
    if not text:
        raise QueryCheckpointError(path, "the file is empty")
    return text


def parse_offsets(text: str, path: str) -> Positions:
    """Read an ``offsets/<batch_id>`` file.

    Raises:
        QueryCheckpointError: the file has an unsupported version, or is incomplete.
    """
    version, _, rest = text.partition("\n")
    # Another version may have the lines in a different order, so a position could be assigned to the wrong
    # source.
    if version != OFFSET_LOG_VERSION:
        raise QueryCheckpointError(path, f"version is {version[:20]!r}; expected {OFFSET_LOG_VERSION!r}")
    _about, *sources = rest.removesuffix("\n").split("\n")
    if not sources:
        raise QueryCheckpointError(path, "the file is incomplete: it names no source")
    positions: list[SourcePosition] = []
    for line in sources:
        # Gazette positions are recognized by their fields. The text of another source is kept unchanged,
        # because it is only ever compared.
        position: SourcePosition = None if line == NO_OFFSET else line
        try:
            value = parse_json(line)
            if isinstance(value, dict) and value.keys() >= _FIELDS:
                position = JournalOffsets.from_dict(value)
        except JsonError as error:
            # A damaged Gazette position must not be mistaken for another source's text, because it would then
            # be recorded and compared as text.
            is_begun = line[: len(_BEGIN)] == _BEGIN[: len(line)]
            if (line and is_begun) or all(f'"{name}"' in line for name in _FIELDS):
                raise QueryCheckpointError(path, f"a Gazette position is {error}") from error
        except OffsetError as error:
            raise QueryCheckpointError(path, str(error)) from error
        positions.append(position)
    return tuple(positions)


def parse_planned_ms(text: str, path: str) -> int:
    """Read from an ``offsets/<batch_id>`` file when Spark planned the batch, in milliseconds since 1970.

    A batch that runs again after a crash keeps its time; a batch that is planned again gets a new one.

    Raises:
        QueryCheckpointError: the file does not contain the time.
    """
    lines = text.split("\n", 2)
    try:
        about = parse_json(lines[1])
    except (IndexError, JsonError):
        about = None
    # The time identifies this planning of the batch, because a batch that runs again has the same file.
    match about:
        case {"batchTimestampMs": int(planned_ms)} if planned_ms >= 0:
            return planned_ms
    raise QueryCheckpointError(
        path, "its second line lacks batchTimestampMs, the time when the batch was planned"
    )


def check_pinned(positions: Positions, path: str) -> None:
    """Check that batch 0 reads nothing from any Gazette source, so that its start equals its end.

    Raises:
        QueryCheckpointError: the batch reads from a position that is not recorded anywhere.
    """
    for number, position in enumerate(positions):
        # A batch whose position is not marked as pinned has bytes, and no file says where they begin.
        if isinstance(position, JournalOffsets) and position.position != "pinned":
            problem = (
                f"source {number} did not pin its first offsets in batch 0, so it is unknown where it began"
            )
            raise QueryCheckpointError(path, problem)


def parse_query_id(text: str, path: str) -> str:
    """Read the ``metadata`` file.

    Raises:
        QueryCheckpointError: the file does not contain an id.
    """
    try:
        value = parse_json(text)
    except JsonError:
        value = None
    match value:
        case {"id": str(query_id)}:
            return query_id
    raise QueryCheckpointError(path, f'expected {{"id":"…"}}, got {text[:80]!r}')


def missing_table(table: str, checkpoint: str) -> TableRefusedError:
    """Return the error for a table that is missing although a query has written to it."""
    problem = (
        f"there is no such table, but the query of the checkpoint {checkpoint} has written batches. "
        "Bring the table back, give its current name, or start with a new checkpoint"
    )
    return TableRefusedError(table, problem)
