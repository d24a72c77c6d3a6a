"""Missing parts of a session are reported in one line. Cases with a JVM: tests/spark/test_sink_start.py."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, ParseException

from gazette_spark._delta.delta_table import DeltaTable
from gazette_spark._delta.preflight import look_around, unfit_jar
from gazette_spark._options.source import parse_options
from gazette_spark.broker import EmbeddedBroker
from gazette_spark.errors import OptionError


class Refused(AnalysisException):
    """Spark's answer to a statement of Delta that it parses as one about a table."""

    def getCondition(self) -> str:  # noqa: N802 - Spark's name.
        return "TABLE_OR_VIEW_NOT_FOUND"

    def getMessageParameters(self) -> dict[str, str]:  # noqa: N802
        return {"relationName": "`DETAIL`"}


class Unparsed(ParseException):
    """Spark's answer to a keyword that only Delta has."""

    def getCondition(self) -> str:  # noqa: N802
        return "PARSE_SYNTAX_ERROR"


def plain_session(statement: str) -> Any:
    """Answer a statement as Spark does without Delta."""
    if "LIMIT" in statement:
        raise Unparsed(message="Syntax error at or near 'LIMIT'")
    raise Refused(message="not found")


@pytest.mark.parametrize("named", [{"path": "/t", "table": None}, {"path": None, "table": "t"}], ids=str)
def test_reading_a_ledger_without_delta_says_so(named: dict[str, Any]) -> None:
    """``resume`` begins with DESCRIBE HISTORY and a LIMIT, which plain Spark cannot parse."""
    session: Any = SimpleNamespace(sql=plain_session, version="4.2.0")
    with pytest.raises(OptionError, match=r"a session without Delta Lake.*configure_spark_with_delta_pip"):
        DeltaTable(**named).ledger(session, "orders")


@pytest.mark.parametrize(
    ("jar", "spark", "wanted"),
    [
        pytest.param("delta-spark_4.2_2.13-4.4.0.jar", "4.2.1", None, id="the same release"),
        pytest.param("delta-spark_4.0_2.13-4.4.0.jar", "4.2.0", "4.0", id="another release"),
        pytest.param("delta-spark_4.2_2.13-4.4.0.jar", "4.20.0", "4.2", id="a release that begins alike"),
        pytest.param("delta-spark_2.12-3.2.1.jar", "4.2.0", "3.5", id="before names had Spark's"),
        pytest.param("delta-spark_2.13-4.0.1-SNAPSHOT.jar", "4.0.5", None, id="the last of these"),
        pytest.param("delta-spark_2.13-9.0.0.jar", "4.2.0", None, id="a release to come"),
        pytest.param("databricks-all.jar", "4.2.0", None, id="a platform's own"),
        pytest.param("", "4.2.0", None, id="unknown"),
    ],
)
def test_a_jar_of_delta_names_its_spark(jar: str, spark: str, wanted: str | None) -> None:
    """A jar name without a release of Spark is no reason to refuse the session."""
    problem = unfit_jar(f"file:/home/me/.ivy2/jars/{jar}" if jar else "", spark)
    assert problem == (
        f"{jar}, which is Delta Lake for Spark {wanted}, in a session of Spark {spark}" if wanted else ""
    )


def test_a_task_finds_the_brokers(gazette_broker: EmbeddedBroker) -> None:
    options = parse_options({"path": "a/journal", "brokerAddress": gazette_broker.endpoint})
    assert json.loads(look_around(options)()) == {}
    assert json.loads(look_around(None)()) == {}


def test_a_task_that_reaches_no_broker_says_where_it_runs() -> None:
    """The network may be open only for the driver."""
    address = "http://127.0.0.1:1"
    options = parse_options({"path": "a/journal", "brokerAddress": address, "requestTimeoutMs": "1000"})
    found = json.loads(look_around(options)())
    assert found.keys() == {"problem", "host"}
    assert "127.0.0.1:1" in found["problem"]


@pytest.mark.parametrize("missing", ["gazette_spark", "pyarrow"])
def test_a_task_without_a_package_names_it(missing: str) -> None:
    """The task's code is pickled by value, so it runs even where the package is missing."""
    run = f"import sys, pickle; sys.modules[{missing!r}] = None; "
    done = subprocess.run(
        [sys.executable, "-c", run + "print(pickle.load(sys.stdin.buffer)())"],
        input=cloudpickle.dumps(look_around(None)),  # type: ignore[no-untyped-call]  # cloudpickle has no types.
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout) == {"module": missing, "interpreter": sys.executable}
