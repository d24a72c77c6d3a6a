"""The compiled log store for S3 matches the real classes of Hadoop and Delta.

``test_object_stores.py`` tests commits to a bucket, in soak.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from gazette_spark._delta.s3_log_store import JAR, LOG_STORE, check_log_store, setting_of
from gazette_spark.errors import TableRefusedError
from tests.rig.class_archive import spark_home

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "jvm" / "gazette" / "spark" / "ConditionalS3LogStore.java"

pytestmark = pytest.mark.skipif(not shutil.which("javac"), reason="without a JDK there is no log store")


def disassembled(classes: Path) -> str:
    """Return the bytecode of the class, without the numbers of its constants."""
    command = ["javap", "-c", "-p", "-cp", str(classes), LOG_STORE]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return re.sub(r"#\d+", "", shown)


def test_settings_of_a_running_session_do_not_count(spark: SparkSession) -> None:
    """Delta takes its log store from the settings with which the application was started."""
    key = setting_of("s3n")
    session = SparkSession.builder.config(key, LOG_STORE).getOrCreate()
    try:
        assert session.conf.get(key) == LOG_STORE
        with pytest.raises(TableRefusedError, match="the log store for s3n:// is the default of Delta"):
            check_log_store(session, "s3n://lake/orders", "orders")
    finally:
        session.conf.unset(key)


def jar_of(spark: SparkSession, name: str) -> str:
    java: Any = spark._jvm
    loader = java.java.lang.Thread.currentThread().getContextClassLoader()
    found = java.java.lang.Class.forName(name, False, loader)
    return str(found.getProtectionDomain().getCodeSource().getLocation().getPath())


def test_the_signatures_it_is_compiled_with_are_those_of_the_libraries(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A class that is compiled against the real Hadoop and Delta must have the same code."""
    (hadoop,) = (spark_home() / "jars").glob("hadoop-client-api-*.jar")
    beside = f"{hadoop}:{jar_of(spark, 'io.delta.storage.LogStore')}"
    command = [
        "javac",
        "--release",
        "17",
        "-proc:none",
        "-cp",
        beside,
        "-d",
        str(tmp_path / "made"),
        str(SOURCE),
    ]
    subprocess.run(command, check=True, timeout=120)
    with zipfile.ZipFile(JAR) as jar:
        assert jar.namelist() == [f"{LOG_STORE.replace('.', '/')}.class"]
        jar.extractall(tmp_path / "shipped")
    assert disassembled(tmp_path / "shipped") == disassembled(tmp_path / "made")


def test_without_conditional_puts_nothing_is_committed(spark: SparkSession, tmp_path: Path) -> None:
    """This applies to other file systems, and to buckets where the user has disabled conditional puts."""
    java: Any = spark._jvm
    conf = java.org.apache.hadoop.conf.Configuration()
    store = java.gazette.spark.ConditionalS3LogStore(conf)
    path = java.org.apache.hadoop.fs.Path(str(tmp_path / "0.json"))

    def write(line: str, *, overwrite: bool) -> None:
        store.write(path, java.java.util.Collections.singletonList(line).iterator(), overwrite, conf)

    with pytest.raises(Py4JJavaError, match="has no conditional puts: use s3a:"):
        write("commit", overwrite=False)
    conf.setBoolean("fs.s3a.create.conditional.enabled", False)
    with pytest.raises(Py4JJavaError, match=r"fs\.s3a\.create\.conditional\.enabled=false"):
        write("commit", overwrite=False)
    assert not (tmp_path / "0.json").exists()
    write("äö", overwrite=True)
    assert list(store.read(path, conf)) == ["äö"]
    assert not store.isPartialWriteVisible(path, conf)
