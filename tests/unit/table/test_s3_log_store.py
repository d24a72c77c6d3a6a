"""Whether two drivers may commit to a table on S3, given the session's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gazette_spark import DeltaSink, s3_log_store
from gazette_spark._delta import s3_log_store as module
from gazette_spark._delta.s3_log_store import DATABRICKS, LOG_STORE, check_log_store
from gazette_spark.errors import OptionError, TableRefusedError

DYNAMODB = "io.delta.storage.S3DynamoDBLogStore"


class Session:
    """A session with settings, which also serves as its own ``conf``."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.conf = settings


def checked(location: str, settings: dict[str, str]) -> None:
    session: Any = Session(settings)
    check_log_store(session, location, "orders")


@pytest.mark.parametrize(
    ("location", "settings"),
    [
        ("/lake/orders", {}),
        ("file:/lake/orders", {}),
        ("abfss://lake@account/orders", {}),
        ("gs://lake/orders", {}),
        ("s3a://lake/orders", {"spark.delta.logStore.s3a.impl": LOG_STORE}),
        ("S3A://lake/orders", {"spark.delta.logStore.s3a.impl": LOG_STORE}),
        ("s3a://lake/orders", {"spark.delta.logStore.s3a.impl": DYNAMODB}),
        ("s3://lake/orders", {DATABRICKS: "0101-123456-abc"}),
    ],
)
def test_several_drivers_may_write(location: str, settings: dict[str, str]) -> None:
    """Two log stores for S3 are safe, as are Databricks' service and Delta's log stores for other clouds.

    A directory is accepted, although two processes must not write a table there (README.md).
    """
    checked(location, settings)


@pytest.mark.parametrize(
    ("location", "settings", "log_store"),
    [
        ("s3a://lake/orders", {}, "for s3a:// is the default of Delta"),
        ("s3://lake/orders", {"spark.delta.logStore.s3a.impl": LOG_STORE}, "for s3:// is the default"),
        (
            "s3a://lake/orders",
            {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3SingleDriverLogStore"},
            "for s3a:// is io.delta.storage.S3SingleDriverLogStore",
        ),
    ],
)
def test_two_drivers_could_commit_one_version(
    location: str, settings: dict[str, str], log_store: str
) -> None:
    with pytest.raises(TableRefusedError, match=log_store) as refused:
        checked(location, settings)
    for way_out in ("s3_log_store()", "S3DynamoDBLogStore", "allow_single_driver=True"):
        assert way_out in str(refused.value)


def test_the_sink_refuses_before_it_looks_at_the_table() -> None:
    session: Any = Session({})
    with pytest.raises(TableRefusedError, match="two drivers could commit"):
        DeltaSink("app", path="s3a://lake/orders").table.check(session, None)
    accepted = DeltaSink("app", path="s3a://lake/orders", allow_single_driver=True)
    with pytest.raises(AttributeError, match="sql"):  # The fake session has only settings.
        accepted.table.check(session, None)


def test_settings_name_the_jar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jar = tmp_path / "log-store.jar"
    monkeypatch.setattr(module, "JAR", jar)
    with pytest.raises(OptionError, match=r"no .*log-store\.jar; expected the wheel"):
        s3_log_store()
    jar.touch()
    assert s3_log_store() == {"spark.jars": str(jar), "spark.delta.logStore.s3a.impl": LOG_STORE}
