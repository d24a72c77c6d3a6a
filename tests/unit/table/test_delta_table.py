"""An append to a table does with the settings that a session takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self, cast

from pyspark.errors import PySparkException
from pyspark.sql.types import BinaryType, StructType

from gazette_spark.table.delta_table import DICTIONARY_KEY, DeltaTable

ENTRY = SimpleNamespace(app_id="orders", txn_version=7, to_json=lambda: "{}")


class Rows:
    """A DataFrame with a binary column, its session and its writer, in one; what is set and saved is kept."""

    schema = StructType().add("value", BinaryType())

    def __init__(self, *, settings: bool) -> None:
        self.sparkSession = self.conf = self.write = self
        self._settings = settings
        self.kept: dict[str, str] = {}
        self.saved: list[dict[str, str]] = []

    def get(self, _key: str, default: None) -> None:
        return default

    def set(self, key: str, value: str) -> None:
        if not self._settings:
            raise PySparkException(f"[CONFIG_NOT_AVAILABLE] {key}")
        self.kept[key] = value

    def unset(self, key: str) -> None:
        self.set(key, "")
        del self.kept[key]

    def format(self, _name: str) -> Self:
        return self

    def mode(self, _name: str) -> Self:
        return self

    def options(self, **_options: str) -> Self:
        return self

    def save(self, _path: str) -> None:
        self.saved.append(dict(self.kept))


def appended(*, settings: bool) -> list[dict[str, str]]:
    """Append; return the settings at each save."""
    rows = Rows(settings=settings)
    DeltaTable(path="/data/orders", table=None).append(cast(Any, rows), cast(Any, ENTRY), exists=True)
    assert rows.kept == {}, "the session is left as it was"
    return rows.saved


def test_a_session_that_refuses_a_setting_pays_for_it_in_time_only() -> None:
    """Serverless compute takes few settings; without this one Parquet looks for values that repeat."""
    assert appended(settings=True) == [{DICTIONARY_KEY: "false"}]
    assert appended(settings=False) == [{}]
