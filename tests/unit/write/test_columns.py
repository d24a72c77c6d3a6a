"""The names and types of columns decide what is written where, or one error says what is wrong."""

from __future__ import annotations

import pytest

from gazette_spark._options.write import parse_write_options
from gazette_spark._write.columns import WriteColumns, write_columns
from gazette_spark.errors import OptionError

VALUE, JOURNAL, KEY = ("value", "binary"), ("journal", "string"), ("key", "string")


def found(*columns: tuple[str, str], **options: str) -> WriteColumns:
    given = {"brokerAddress": "http://broker.test:80"} | options
    return write_columns(columns, parse_write_options(given, environ={}))


def test_columns_are_found_by_name() -> None:
    assert found(("id", "bigint"), JOURNAL, ("VALUE", "string")) == WriteColumns(2, journal=1)
    assert found(VALUE, KEY, selector="app=x") == WriteColumns(0, key=1)


def test_options_win_over_the_column_journal() -> None:
    """As with Kafka's ``topic`` option."""
    assert found(VALUE, JOURNAL, journal="log/a") == WriteColumns(0)
    assert found(JOURNAL, VALUE, KEY, selector="app=x") == WriteColumns(1, key=2)


@pytest.mark.parametrize(
    ("columns", "options", "problem"),
    [
        pytest.param([JOURNAL], {}, "columns journal; expected a column value", id="no_value"),
        pytest.param([], {}, "columns none", id="no_column"),
        pytest.param([VALUE], {}, "option 'journal': got nothing", id="no_target"),
        pytest.param(
            [("value", "int")], {"journal": "log/a"}, "value int; expected value binary", id="value_type"
        ),
        pytest.param([VALUE, ("journal", "binary")], {}, "expected journal string", id="journal_type"),
        pytest.param(
            [VALUE, ("key", "bigint")], {"selector": "app=x"}, "key binary or string", id="key_type"
        ),
        pytest.param([VALUE, ("Value", "string")], {"journal": "log/a"}, "value 2 times", id="twice"),
        pytest.param([VALUE, JOURNAL, KEY], {}, "a column key, and a column journal", id="both"),
        pytest.param(
            [VALUE, KEY], {"journal": "log/a"}, "a column key, and option 'journal'", id="key_and_name"
        ),
        pytest.param([VALUE, KEY], {}, "a column key, and no selector", id="key_alone"),
        pytest.param([VALUE], {"selector": "app=x", "mapping": "modulo"}, "no column key", id="no_key"),
    ],
)
def test_columns_that_say_too_little_or_too_much_are_refused(
    columns: list[tuple[str, str]], options: dict[str, str], problem: str
) -> None:
    with pytest.raises(OptionError) as caught:
        found(*columns, **options)
    assert problem in str(caught.value)
