"""``format("gazette_delta")`` in Spark: any rows, alternating lanes, and the examples of its page.

Crashes, copied checkpoints and second writers are tested without Spark, by
``tests/unit/table/test_delta_format.py``, which calls the format as Spark does.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable as Snapshot
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from gazette_spark.failpoints import FAILPOINT_VARIABLE, GROUP_VARIABLE
from tests.rig.brokers import BrokerHandle
from tests.rig.class_archive import spark_home
from tests.rig.gazctl import cache_folders
from tests.rig.worker_python import link_pyspark
from tests.spark.source_queries import QUERY_TIMEOUT_S
from tests.spark.test_ingest import EVENT, Lanes, append, event, journals, lanes

__all__ = ["journals", "lanes"]  # Fixtures of the direct lane's tests, because the tables must be equal.

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "delta-format.md"

DIE_WITHIN_S = 240


def write(rows: DataFrame, table: Path, checkpoint: Path, **options: str) -> None:
    writer = rows.writeStream.format("gazette_delta").queryName("orders")
    writer = writer.options(appId="orders", checkpointLocation=str(checkpoint), **options)
    query = writer.trigger(availableNow=True).start(str(table))
    assert query.awaitTermination(QUERY_TIMEOUT_S)


def forget_commit(checkpoint: Path) -> None:
    """Delete Spark's record of its last batch, so that it runs again."""
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink()


def test_all_lanes_leave_the_same_table(lanes: Lanes) -> None:
    checkpoint = lanes.root / "format-checkpoint"
    zone = str(lanes.spark.conf.get("spark.sql.session.timeZone"))
    lanes.spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        write(lanes.reader().load(), lanes.root / "format", checkpoint, partitionBy="ok")
        forget_commit(checkpoint)
        append(lanes.journals, 40, 60)
        write(lanes.reader().load(), lanes.root / "format", checkpoint)
    finally:
        lanes.spark.conf.set("spark.sql.session.timeZone", zone)
    for end, lane in ((62, "spark"), (64, "direct")):
        append(lanes.journals, end - 2, end)
        lanes.run("format", lane, checkpoint=checkpoint.name)  # type: ignore[arg-type]  # One of two literals.
    append(lanes.journals, 64, 66)
    write(lanes.reader().load(), lanes.root / "format", checkpoint)

    query = lanes.sink("spark").start(
        lanes.reader().load(),
        checkpoint=str(lanes.root / "spark-checkpoint"),
        lane="spark",
        availableNow=True,
    )
    assert query.awaitTermination(QUERY_TIMEOUT_S)
    rows = [lanes.table(name).select(sorted(lanes.table(name).columns)) for name in ("spark", "format")]
    assert rows[0].schema == rows[1].schema
    assert [table.count() for table in rows] == [66, 66]
    assert rows[0].exceptAll(rows[1]).collect() == []
    entries = [lanes.sink(name).ledger(lanes.spark) for name in ("spark", "format")]
    assert entries[0] is not None
    assert entries[1] is not None
    assert entries[0].end == entries[1].end


def test_the_examples_of_the_page_run(lanes: Lanes, tmp_path: Path) -> None:
    """docs/guides/delta-format.md writes a stream and a batch as printed; the batch runs twice."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    end = sum(len(json.dumps(event(n))) + 1 for n in range(0, 40, 2))
    for number, printed_block in enumerate(blocks[:2]):
        block = printed_block
        for printed, here in (
            ("http://localhost:8080", lanes.journals.broker.endpoint),
            ('"/data/', f'"{tmp_path / str(number)}/'),
            ("shop/orders", lanes.journals.name("a")),
            ("shop/", lanes.journals.prefix),
            ("4096", str(end)),
        ):
            block = block.replace(printed, here)
        names: dict[str, Any] = {"spark": lanes.spark, "F": F}
        for _ in range(2):
            exec(block, names)
    stream, batch = (Snapshot(str(tmp_path / name / "orders")) for name in ("0", "1"))
    assert stream.to_pyarrow_table().num_rows == 40
    assert batch.to_pyarrow_table().num_rows == 20
    assert (stream.metadata().partition_columns, stream.version(), batch.version()) == (["day"], 2, 2)


def test_what_spark_asks_and_the_format_does_not_do(spark: SparkSession, tmp_path: Path) -> None:
    rate = spark.readStream.format("rate").option("rowsPerSecond", "5").load()
    options = {"appId": "orders", "checkpointLocation": str(tmp_path / "checkpoint")}

    def run(mode: str) -> None:
        counts = rate.groupBy("value").count()
        writer = counts.writeStream.format("gazette_delta").options(**options).outputMode(mode)
        query = writer.trigger(availableNow=True).start(str(tmp_path / "table"))
        query.awaitTermination(QUERY_TIMEOUT_S)

    for mode, text in (
        ("update", "[Uu]pdate"),
        ("complete", r"'outputMode': got complete.*DeltaSink\(upsert"),
    ):
        with pytest.raises(PySparkException, match=text):
            run(mode)
    with pytest.raises(PySparkException, match="got gazette_delta to read; expected 'delta'"):
        spark.read.format("gazette_delta").options(**options).load(str(tmp_path / "table"))
    assert not (tmp_path / "table").exists() or Snapshot(str(tmp_path / "table")).version() == 0


DRIVER = """
import sys
from pathlib import Path
from gazette_spark.session import INTERPRETED, local_spark
from tests.rig.brokers import BrokerHandle
from tests.spark.source_queries import Journals
from tests.spark.test_delta_format import write
from tests.spark.test_ingest import Lanes
root, endpoint, prefix = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
spark = local_spark(root / "spark", conf=INTERPRETED)
lanes = Lanes(Journals(spark, BrokerHandle(endpoint, root), None, prefix), root)
write(lanes.reader().load(), root / "format", root / "format-checkpoint")
"""


@pytest.mark.soak  # In every run only the commit process is killed, without Spark.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("point", ["sink.before_write", "sink.after_write"])
def test_a_driver_that_is_killed_in_the_commit_writes_each_row_once(
    lanes: Lanes, broker: BrokerHandle, point: str
) -> None:
    root, checkpoint = lanes.root, lanes.root / "format-checkpoint"
    write(lanes.reader().load(), root / "format", checkpoint)
    append(lanes.journals, 40, 60)
    before = Snapshot(str(root / "format")).version()
    command = [sys.executable, "-c", DRIVER, str(root), broker.endpoint, lanes.journals.prefix]
    shell = ["sh", "-c", f'export {GROUP_VARIABLE}=$$; exec "$@"', "sh", *command]
    environ = os.environ | {FAILPOINT_VARIABLE: f"{point}:1:kill_group"}
    with (root / "driver.log").open("wb") as log:
        child = subprocess.Popen(shell, env=environ, stdout=log, stderr=log, start_new_session=True)
        status = child.wait(DIE_WITHIN_S)
    assert status == -signal.SIGKILL, (root / "driver.log").read_text()[-4000:]
    assert Snapshot(str(root / "format")).version() == before + (point == "sink.after_write")
    write(lanes.reader().load(), root / "format", checkpoint)
    read = Snapshot(str(root / "format")).to_pyarrow_table(columns=["id"])
    assert sorted(read.column("id").to_pylist()) == list(range(60))


PIPELINE = """
name: orders
storage: file://{root}/storage
libraries:
  - glob:
      include: flows/**
"""

FLOW = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
dp.create_sink("orders_sink", "gazette_delta", {{"appId": "orders", "path": "{root}/table"}})


@dp.append_flow(target="orders_sink")
def orders():
    reader = spark.readStream.format("gazette").schema("{schema}")
    reader = reader.options(brokerAddress="{address}", format="json", startingOffsets="earliest")
    return reader.load("{prefix}").selectExpr("id", "id * 2 AS twice", "_journal", "_offset")
"""


@pytest.mark.soak  # It starts Spark with Connect for each update.
@pytest.mark.timeout(2000)
def test_a_declarative_pipeline_writes_each_row_once(lanes: Lanes, tmp_path: Path) -> None:
    """Each update continues where the last one ended, also after Spark has lost the record of a batch."""
    places = {"root": tmp_path, "address": lanes.journals.broker.endpoint, "prefix": lanes.journals.prefix}
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "orders.py").write_text(FLOW.format(schema=EVENT, **places))
    (tmp_path / "spark-pipeline.yml").write_text(PIPELINE.format(root=tmp_path))

    # Spark Connect needs packages that the tests' Python may lack; `make wheel-env` installs them.
    python = str(cache_folders()[0] / "wheel-env" / "connect" / "bin" / "python")
    path = os.pathsep.join([str(PAGE.parents[2]), str(link_pyspark(tmp_path / "pyspark"))])
    environ = {**os.environ, "PYSPARK_PYTHON": python, "PYTHONPATH": path, "SPARK_HOME": str(spark_home())}

    def update() -> None:
        command = [str(spark_home() / "bin" / "spark-pipelines"), "run"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]

    update()
    append(lanes.journals, 40, 60)
    update()
    (checkpoint,) = {path.parent.parent for path in (tmp_path / "storage").rglob("offsets/0")}
    forget_commit(checkpoint)
    append(lanes.journals, 60, 64)
    update()
    read = Snapshot(str(tmp_path / "table")).to_pyarrow_table()
    assert sorted(zip(*(read.column(name).to_pylist() for name in ("id", "twice")), strict=True)) == [
        (n, 2 * n) for n in range(64)
    ]
