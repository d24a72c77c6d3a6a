"""The options that the formats ``gazette_delta`` and ``gazette_iceberg`` share, and the parser of both.

The rules are those of :mod:`gazette_spark._options.source`. An option that a format does not support is
refused by name, and the error says what to do instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gazette_spark._options.query_range import parse_resume_offsets
from gazette_spark._options.table import Option, Use, of_options, option, option_texts, parse_values
from gazette_spark._options.values import parse_column, shown, size, word
from gazette_spark.errors import OptionError
from gazette_spark.offsets import JournalOffsets, parse_json_object
from gazette_spark.strict_json import parse_json


def parse_columns(name: str, text: str) -> tuple[str, ...]:
    """Parse names of columns, separated by commas. A name may occur only once, regardless of case."""
    columns = tuple(parse_column(name, column.strip()) for column in text.split(","))
    if len({column.lower() for column in columns}) < len(columns):
        raise OptionError(name, shown(text), "each column once")
    return columns


def _parse_position(name: str, text: str) -> JournalOffsets:
    """Parse one end of the range of a batch's rows."""
    choice = parse_resume_offsets(name, text)
    value = parse_json_object(text)
    # The long form also contains fingerprints, and where a query of committed messages began.
    return JournalOffsets.from_dict(value) if "format_version" in value else JournalOffsets(choice.named)


def _parse_gaps(name: str, text: str) -> Mapping[str, object]:
    try:
        value = parse_json(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise OptionError(name, shown(text), 'JSON such as {"a/journal":[[1024,4096]]}')
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormatOptions:
    """The options that both formats have, with their parsed values."""

    app_id: str = option(
        parse_column,
        "Name of this stream in the table. Required. Keep it for the life of the table. Two streams in one "
        "table need two names.",
        form="1 to 512 printable characters",
        section="Table",
    )
    target_file_bytes: int | None = option(
        size(),
        "Size of a Parquet file at which a task starts another one.",
        shown_default="`256m`",
    )
    starting_offsets: JournalOffsets | None = option(
        _parse_position,
        "First byte of each journal of which `df.write` has rows. Required there: each time the write runs, "
        "it must have exactly the rows of [`startingOffsets`, `endingOffsets`).",
        use="batch",
        section="Offsets",
    )
    ending_offsets: JournalOffsets | None = option(
        _parse_position,
        "The byte after the last one, for the same journals.",
        use="batch",
    )
    accept_gaps: Mapping[str, object] | None = option(
        _parse_gaps,
        "Ranges of bytes, by journal, that may be missing from the table permanently. Each must reach "
        "exactly from the end of the table to the start of the query. The ledger records these gaps.",
    )
    restart: bool = of_options(
        Option(
            "onNewCheckpoint",
            word("fail", "restart"),
            "Policy for a new checkpoint of a query that keeps state or reads other sources. `restart` "
            "accepts that the state begins empty, and that rows of other sources may be written again.",
            default="fail",
            use="stream",
        )
    )


def parse_file_format(
    options: Mapping[str, str],
    table: Sequence[Option],
    use: Use | None,
    *,
    refused: Mapping[str, str],
    prefix: str,
    required: Mapping[str, str],
) -> tuple[dict[str, Any], dict[str, str]]:
    """Parse the options that Spark passes.

    Args:
        options: Option names, in any case, and their texts.
        table: The format's options.
        use: What is written; None if that is unknown.
        refused: Options that the format does not support, and what to do instead.
        prefix: Prefix of the options for another library.
        required: Keys of the required options, and what is expected.

    Returns:
        The fields of the parsed options by name, and the texts of the options with the prefix by the rest of
        their names, in lower case.

    Raises:
        OptionError: an option is invalid. The error names the first one, and says what to do.
    """
    by_lower_name = {name.lower(): text for name, text in options.items()}
    # This comes before the general check, whose "unknown option" would be correct but not helpful.
    for name, way_out in refused.items():
        if name.lower() in by_lower_name:
            raise OptionError(name, shown(by_lower_name[name.lower()]), way_out)
    prefixed = {
        name.removeprefix(prefix): text for name, text in by_lower_name.items() if name.startswith(prefix)
    }
    named = {name: text for name, text in by_lower_name.items() if not name.startswith(prefix)}
    values = parse_values(option_texts(named, table), table, use)
    if use == "batch":
        # Spark or the user may repeat a batch write. A repetition writes the same rows only if their range
        # does not depend on the time of the run.
        required = {**required, "starting_offsets": _RANGE, "ending_offsets": _RANGE}
    by_key = {declared.key: declared.name for declared in table}
    for key, expected in required.items():
        if values[key] is None:
            raise OptionError(by_key[key], "nothing", expected)
    values["restart"] = values.pop("on_new_checkpoint") == "restart"
    del values[f"{prefix.replace('.', '_')}*"]
    return values, prefixed


_RANGE = (
    'the offsets whose rows the batch has, such as {"a/journal":1024}, as the reader had them. Rows without '
    "offsets cannot be written exactly once"
)
