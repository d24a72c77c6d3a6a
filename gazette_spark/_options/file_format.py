"""What the options of the formats ``gazette_delta`` and ``gazette_iceberg`` share: fields, and their parser.

The rules are those of :mod:`gazette_spark._options.source`. What a format does not do is refused by name,
with the way to have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gazette_spark._options.query_range import parse_resume_offsets
from gazette_spark._options.table import Option, Use, of_options, option, option_texts, parse_values
from gazette_spark._options.values import parse_column, shown, size, word
from gazette_spark.errors import OptionError
from gazette_spark.offsets import JournalOffsets, parse_json_object
from gazette_spark.strict_json import parse_json


class FileFormatOptions(Protocol):
    """The parsed options that both formats have."""

    @property
    def app_id(self) -> str: ...

    @property
    def starting_offsets(self) -> JournalOffsets | None: ...

    @property
    def ending_offsets(self) -> JournalOffsets | None: ...

    @property
    def accept_gaps(self) -> Mapping[str, object] | None: ...

    @property
    def restart(self) -> bool: ...


def parse_columns(name: str, text: str) -> tuple[str, ...]:
    """Parse names of columns, separated by commas."""
    return tuple(parse_column(name, column.strip()) for column in text.split(","))


def _parse_position(name: str, text: str) -> JournalOffsets:
    """Parse one end of the range whose rows a batch has."""
    choice = parse_resume_offsets(name, text)
    value = parse_json_object(text)
    # The long form has more than offsets: fingerprints, and where a query of committed messages began.
    return JournalOffsets.from_dict(value) if "format_version" in value else JournalOffsets(choice.named)


def _parse_gaps(name: str, text: str) -> Mapping[str, object]:
    try:
        value = parse_json(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise OptionError(name, shown(text), 'JSON such as {"a/journal":[[1024,4096]]}')
    return value


def app_id_option() -> Any:  # noqa: ANN401 - a field, as those below.
    """Declare the name of the stream."""
    return option(
        parse_column,
        "Name of this stream in the table. Required. Keep it for the table's life; two streams in one table "
        "need two.",
        form="1 to 512 printable characters",
    )


def target_file_bytes_option() -> Any:  # noqa: ANN401
    """Declare the size of files."""
    return option(
        size(),
        "Size of Parquet at which a task begins another file.",
        shown_default="`256m`",
    )


def starting_offsets_option() -> Any:  # noqa: ANN401
    """Declare where a batch begins."""
    return option(
        _parse_position,
        "First byte of each journal of which `df.write` has rows. Required there: the rows of "
        "[`startingOffsets`, `endingOffsets`), and no others, each time the write runs.",
        use="batch",
        section="Offsets",
    )


def ending_offsets_option() -> Any:  # noqa: ANN401
    """Declare where a batch ends."""
    return option(
        _parse_position,
        "The byte behind the last one, of the same journals.",
        use="batch",
    )


def accept_gaps_option() -> Any:  # noqa: ANN401
    """Declare the bytes that may be missing."""
    return option(
        _parse_gaps,
        "Bytes that may be missing from the table permanently, by journal: from the end of the table to the "
        "start of the query, to the byte. The ledger records these gaps.",
    )


def restart_option() -> Any:  # noqa: ANN401
    """Declare the policy for new checkpoints."""
    return of_options(
        Option(
            "onNewCheckpoint",
            word("fail", "restart"),
            "Policy for a new checkpoint of a query that keeps state or reads other sources. `restart` "
            "accepts that the state begins empty, and that rows of other sources may come again.",
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
    """Parse what Spark hands over.

    Args:
        options: Option names, in any case, and their texts.
        table: The format's options.
        use: What is written; None while that is unknown.
        refused: Options that the format does not have, and what to do instead.
        prefix: Prefix of the options that another library takes.
        required: Keys of the options that have to be there, and what is expected.

    Returns:
        The fields of the parsed options by name, and the texts of the options with the prefix by the rest of
        their names, in lower case.

    Raises:
        OptionError: naming the first option that is wrong, and what to do.
    """
    by_lower_name = {name.lower(): text for name, text in options.items()}
    # Before the general check: "unknown option" would be true of these as well, and help nobody.
    for name, way_out in refused.items():
        if name.lower() in by_lower_name:
            raise OptionError(name, shown(by_lower_name[name.lower()]), way_out)
    prefixed = {
        name.removeprefix(prefix): text for name, text in by_lower_name.items() if name.startswith(prefix)
    }
    named = {name: text for name, text in by_lower_name.items() if not name.startswith(prefix)}
    values = parse_values(option_texts(named, table), table, use)
    if use == "batch":
        # A batch write may be repeated by Spark or by its user. Only a range that does not depend on the time
        # of the run makes the repetition write the same rows.
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
