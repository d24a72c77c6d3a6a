"""Options of writing are checked like those of reading, and the two are not confused."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from gazette_spark._options.selection import JournalSelection
from gazette_spark._options.write import (
    PURPOSES,
    WRITE_OPTIONS,
    Purpose,
    checked_address,
    parse_write_options,
    spark_purpose,
)
from gazette_spark.errors import OptionError

ADDRESS = {"brokerAddress": "http://broker.test:80"}


def test_defaults_are_those_of_the_table() -> None:
    options = parse_write_options(ADDRESS, environ={})
    assert (options.target, options.mapping, options.framing) == (None, None, None)
    assert (options.max_record_bytes, options.request_timeout_ms) == (16 << 20, 60_000)


@pytest.mark.parametrize(
    ("given", "target"),
    [
        pytest.param({"journal": "log/a"}, JournalSelection("journal", names=("log/a",)), id="journal"),
        pytest.param({"path": "log/a"}, JournalSelection("path", names=("log/a",)), id="path"),
        pytest.param({"PATH": "log/"}, JournalSelection("path", selector="prefix=log/"), id="prefix"),
        pytest.param({"selector": "app=x"}, JournalSelection("selector", selector="app=x"), id="selector"),
    ],
)
def test_a_target_is_said_in_one_of_several_ways(given: dict[str, str], target: JournalSelection) -> None:
    assert parse_write_options(ADDRESS | given, environ={}).target == target


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        pytest.param(
            {"journal": "log/a", "selector": "app=x"}, "'journal and selector': got more than one", id="two"
        ),
        pytest.param({"journal": "log/a,log/b"}, "option 'journal'", id="names"),
        pytest.param(
            {"journals": "log/a"}, "option 'journals': got an unknown option; expected 'journal'", id="read"
        ),
        pytest.param(
            {"startingOffsets": "latest"}, "an unknown option; expected one of brokerAddress", id="other"
        ),
        pytest.param({"mapping": "modulo"}, "option 'mapping': got no selector", id="mapping"),
        pytest.param({"journal": "log/a", "mapping": "modulo"}, "got no selector", id="mapping_of_one"),
        pytest.param({"selector": "app=x", "mapping": "hash"}, "expected modulo or rendezvous", id="word"),
        pytest.param(
            {"selector": "name="}, "'name' of 'name=': an empty value selects any", id="any_journal"
        ),
        pytest.param({"maxRecordBytes": "2g"}, "option 'maxRecordBytes'", id="size"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_write_options(ADDRESS | given, environ={})
    assert problem in str(caught.value)


@pytest.mark.parametrize("purpose", ["write", None])
@pytest.mark.parametrize("given", [{"journal": "log/a"}, {"selector": "app=x"}, {}], ids=str)
def test_a_write_is_accepted_where_its_purpose_is_not_known(
    given: dict[str, str], purpose: Purpose | None
) -> None:
    assert checked_address(ADDRESS | given, purpose, environ={}) == "http://broker.test:80"


@pytest.mark.parametrize(
    ("given", "purpose", "problem"),
    [
        pytest.param({"journal": "log/a"}, "read", "expected 'journals'?", id="read_names_a_journal"),
        pytest.param({}, "read", "exactly one of option 'journals'", id="read_names_nothing"),
        pytest.param(
            {"path": "log/a", "failOnDataLoss": "no"}, None, "true or false", id="read_for_all_one_knows"
        ),
        pytest.param({"path": "log/a", "failOnDataLoss": "no"}, "write", "unknown option", id="write"),
        pytest.param({"journal": "log/a", "framing": "x"}, None, "lines or fixed", id="write_by_its_options"),
    ],
)
def test_a_wrong_option_is_refused_for_its_purpose(
    given: dict[str, str], purpose: Purpose | None, problem: str
) -> None:
    with pytest.raises(OptionError) as caught:
        checked_address(ADDRESS | given, purpose, environ={})
    assert problem in str(caught.value)


def test_the_broker_may_come_from_the_environment() -> None:
    options = parse_write_options({"auth.token": "s3cret"}, environ={"BROKER_ADDRESS": "http://env.test:1"})
    assert options.broker_address == "http://env.test:1"
    assert "s3cret" not in repr(options)
    with pytest.raises(OptionError, match="brokerAddress"):
        parse_write_options({}, environ={})


def test_names_that_spark_adds_are_no_options() -> None:
    """Spark passes the query's name to its sink as an option."""
    parse_write_options(ADDRESS | {"queryName": "orders", "checkpointLocation": "/checkpoint"}, environ={})


def test_names_are_unique_whatever_their_case() -> None:
    """Spark passes option names in lower case."""
    names = [option.name.lower() for option in WRITE_OPTIONS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("modules", "purpose"),
    [
        pytest.param([], None, id="not_spark"),
        pytest.param(["create_data_source"], None, id="read_or_commit"),
        pytest.param(["write_into_data_source"], "write", id="write"),
    ],
)
def test_sparks_process_says_what_a_data_source_is_for(
    monkeypatch: pytest.MonkeyPatch, modules: Sequence[str], purpose: str | None
) -> None:
    """The module that Spark's process runs shows whether the data source reads or writes."""
    for module in PURPOSES:
        monkeypatch.delitem(sys.modules, module, raising=False)
    for module in modules:
        monkeypatch.setitem(sys.modules, f"pyspark.sql.worker.{module}", sys)
    assert spark_purpose() == purpose
