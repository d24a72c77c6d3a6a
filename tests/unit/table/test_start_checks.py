"""Reasons to refuse a query before it starts. Cases with a JVM: tests/spark/test_sink_start.py."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from gazette_spark._delta.delta_table import DeltaTable
from gazette_spark._delta.start_checks import check_alone, warn_of_other_writers
from gazette_spark._ledger.entry import LedgerState
from gazette_spark._ledger.history import HistoryRow, read_state
from gazette_spark.errors import OptionError, TableRefusedError


class NotFound(AnalysisException):
    """Spark's answer to a statement of Delta that it parses as one about a table."""

    def __init__(self, name: str) -> None:
        super().__init__(message="not found")
        self._name = name

    def getCondition(self) -> str:  # noqa: N802 - Spark's name.
        return "TABLE_OR_VIEW_NOT_FOUND"

    def getMessageParameters(self) -> dict[str, str]:  # noqa: N802
        return {"relationName": f"`{self._name}`"}


def answering(name: str) -> Any:
    def sql(_statement: str) -> None:
        raise NotFound(name)

    return SimpleNamespace(sql=sql)


@pytest.mark.parametrize("named", [{"path": "/t", "table": None}, {"path": None, "table": "t"}], ids=str)
def test_a_session_without_delta_is_named(named: dict[str, Any]) -> None:
    """Spark looks for a table named DETAIL. The error says how to add Delta to the session."""
    with pytest.raises(OptionError) as caught:
        DeltaTable(**named).detail(answering("DETAIL"))
    text = str(caught.value)
    assert "a session without Delta Lake" in text
    for way in ("configure_spark_with_delta_pip", "spark.sql.extensions=", "spark_catalog=", "--packages"):
        assert way in text


class ForeignTable:
    """A table that a later release has written under another app id."""

    name = "t"

    def newest(self, _spark: object, _limit: int) -> list[HistoryRow]:
        return [HistoryRow(3, "WRITE", user_metadata='{"app_id": "other", "format_version": 99}')]

    def history(self, spark: object, _limit: None) -> list[HistoryRow]:
        return self.newest(spark, 1)

    def ledger(self, spark: object, app_id: str) -> LedgerState:
        return read_state(lambda limit: self.newest(spark, limit), app_id, table="t")


def test_an_entry_of_another_app_id_that_cannot_be_read_stops_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is a warning. Only a complete result, which would delete the other's rows, is refused."""
    table: Any = ForeignTable()
    state = LedgerState(None, None, -1, 3, -1)
    warn_of_other_writers(table, object(), "orders", state)  # type: ignore[arg-type]  # No session is needed.
    assert "rows (this release cannot read which) for app id 'other'" in caplog.text
    with pytest.raises(TableRefusedError, match="app id 'other' writes to it, too"):
        check_alone(table, object(), "orders", state)  # type: ignore[arg-type]  # No session is needed.


def test_a_missing_table_is_no_missing_delta() -> None:
    """With Delta, Spark's error has the table's own name."""
    assert DeltaTable(path=None, table="t").detail(answering("t")) is None


@pytest.mark.parametrize(
    ("missing", "use", "text"),
    [
        pytest.param(
            "delta", "import gazette_spark.sink", "the sink needs the package delta-spark", id="delta"
        ),
        pytest.param(
            "pyspark", "import gazette_spark as g; g.register(None)", "Spark is not installed", id="pyspark"
        ),
    ],
)
def test_a_missing_package_is_named_as_it_is_installed(missing: str, use: str, text: str) -> None:
    """The module ``delta`` belongs to the package delta-spark, which its name does not show."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules[{missing!r}] = None; {use}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert text in done.stderr.splitlines()[-1]
    assert "pip install 'gazette-spark[spark]'" in done.stderr.splitlines()[-1]
