"""The options of CSV alone: names, defaults and meanings are those of Spark's CSV reader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gazette_spark.errors import OptionError
from gazette_spark.options.table import Option
from gazette_spark.options.values import parse_bool, shown


def check_csv(values: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    """Check options of CSV against each other and against the format.

    Args:
        values: All options' values, by key.
        texts: Texts of the options that were given, by name in lower case.

    Raises:
        OptionError: an option belongs to another format, or fields could not be told apart.
    """
    other = values["format"] not in (None, "csv") and values["framing"] != "csv"
    for option in CSV_OPTIONS:
        if other and option.name.lower() in texts and values[option.key] != _default(option):
            got = f"format={values['format']}"
            raise OptionError(option.name, got, "to be used with format=csv or framing=csv only")
    if values["sep"] == values["quote"]:
        raise OptionError("quote", f"{shown(values['quote'])}, which sep is, too", "another character")


def _default(option: Option) -> Any:  # noqa: ANN401 - of any option.
    return None if option.default is None else option.parse(option.name, option.default)


def parse_separator(name: str, text: str) -> str:
    r"""Parse one ASCII character, or ``\\t``, a tab."""
    character = "\t" if text == "\\t" else text
    if len(character) != 1 or not _is_plain(character):
        raise OptionError(name, shown(text), "one ASCII character, or \\t, other than newlines")
    return character


def parse_quote(name: str, text: str) -> str:
    """Parse one ASCII character, or nothing."""
    if len(text) > 1 or not all(map(_is_plain, text)):
        raise OptionError(name, shown(text), "one ASCII character other than newlines, or nothing")
    return text


def _is_plain(character: str) -> bool:
    return character.isascii() and character not in "\0\r\n"


def _any_text(_name: str, text: str) -> str:
    return text


CSV_OPTIONS: tuple[Option, ...] = (
    Option(
        "header",
        parse_bool,
        "Whether journals have records of the columns' names. They give no row, wherever they stand, as "
        "each writer may begin with one. A journal's first record must be one.",
        default="false",
    ),
    Option("sep", parse_separator, "Character between the fields of a record.", default=","),
    Option(
        "quote",
        parse_quote,
        "Character around quoted fields; inside, it is doubled. If empty, there are no quotes, and every "
        "newline ends a record.",
        default='"',
        form="one ASCII character other than newlines, or nothing",
    ),
    Option(
        "nullValue",
        _any_text,
        "Text of fields that are null, in quotes or not. An empty field without quotes is always null.",
        default="",
        form="any text",
    ),
    Option(
        "emptyValue",
        _any_text,
        "Value of an empty field in quotes. If neither this option nor `nullValue` is given, such a "
        "field is null.",
        default="",
        form="any text",
    ),
)
"""The options, in the order in which they are checked and shown."""
