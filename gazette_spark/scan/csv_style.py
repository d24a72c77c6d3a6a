"""How the CSV of a query is written, as its options say."""

from __future__ import annotations

from gazette_spark.errors import OptionError
from gazette_spark.framing.csv_style import CsvStyle, TimeFormat
from gazette_spark.options import SourceOptions


def csv_style(options: SourceOptions) -> CsvStyle:
    """Return how CSV is written, as the options say.

    Raises:
        OptionError: a pattern of dates or timestamps is none that is read exactly.
    """
    return CsvStyle(
        options.sep,
        options.quote,
        options.null_value,
        options.empty_value,
        _time_format("dateFormat", options.date_format),
        _time_format("timestampFormat", options.timestamp_format),
        _time_format("timestampNTZFormat", options.timestamp_ntz_format),
    )


def _time_format(name: str, pattern: str | None) -> TimeFormat | None:
    if pattern is None:
        return None
    try:
        found = TimeFormat.parse(pattern)
    except ValueError as error:
        expected = "a pattern such as dd/MM/yyyy HH:mm:ss; see the page of options for its letters"
        raise OptionError(name, f"{pattern!r}: {error}", expected) from None
    if found.has_zone and name != "timestampFormat":
        raise OptionError(name, f"{pattern!r}, with a zone", "a pattern without one")
    return found
