"""Other engines read the same rows from an Iceberg table as Spark from the Delta table, and maintain it.

``make iceberg-env`` and ``make spark-env`` fetch the engines. The catalog is a REST catalog.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from gazette_spark._ledger.iceberg_reader import open_catalog
from gazette_spark.errors import TableRefusedError
from tests.rig.gazctl import cache_folders
from tests.rig.iceberg import open_namespace
from tests.rig.iceberg_rest import running_rest_catalog
from tests.spark import iceberg_job
from tests.spark.test_delta_format import forget_commit
from tests.spark.test_iceberg import IcebergLanes, plain
from tests.spark.test_ingest import Lanes, append, journals, lanes
from tests.spark.test_spark_versions import OTHERS

__all__ = ["journals", "lanes"]  # Fixtures.

ENGINE_TIMEOUT_S = 400

DUCKDB = """
import sys
import duckdb
from duckdb_extensions import import_extension

for name in ("avro", "iceberg"):
    import_extension(name)
connection = duckdb.connect()
for name in ("avro", "iceberg"):
    connection.load_extension(name)
rows = f"SELECT * FROM iceberg_scan('{sys.argv[1]}') ORDER BY _journal, _offset"
connection.execute(f"COPY ({rows}) TO '{sys.argv[2]}' (FORMAT parquet)")
"""


def run(environment: str, made_by: str, *command: str | Path) -> None:
    python = cache_folders()[0] / environment / "bin" / "python"
    if not python.exists():
        pytest.fail(f"the environment {environment} is missing: run `make {made_by}`")
    env = {name: value for name, value in os.environ.items() if name not in OTHERS}
    done = subprocess.run(
        [python, *command],
        env=env | {"PYSPARK_PYTHON": str(python)},
        capture_output=True,
        timeout=ENGINE_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-6000:]


def rows_of(table: pa.Table) -> list[str]:
    return [plain(row) for row in table.to_pylist()]


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_other_engines_read_the_rows_of_the_delta_table(lanes: Lanes, tmp_path: Path) -> None:
    lanes.run("delta", "direct")
    tables = IcebergLanes(lanes)
    with running_rest_catalog(tmp_path / "catalog") as tables.properties:
        open_namespace(tables.properties)
        checkpoint = tables.ingest("orders", partition_by=["ok", "day(at)"])
        forget_commit(checkpoint)
        tables.ingest("orders")
        expected = [plain(row) for row in tables.delta_rows("delta")]
        metadata = open_catalog("prod", tables.properties).load_table("shop.orders").metadata_location
        run(
            "duckdb",
            "iceberg-env",
            "-c",
            DUCKDB,
            metadata.removeprefix("file://"),
            tmp_path / "duckdb.parquet",
        )
        assert rows_of(parquet.read_table(tmp_path / "duckdb.parquet")) == expected

        program = shutil.copy(iceberg_job.__file__, tmp_path / "program.py")
        entry = tables.sink("orders").ledger()
        run("spark-env/4.1", "spark-env", program, tables.properties["uri"], tmp_path)
        assert rows_of(feather.read_table(tmp_path / "spark.feather")) == expected

        table = open_catalog("prod", tables.properties).load_table("shop.orders")
        assert len(table.snapshots()) == 1
        kept = tables.sink("orders").ledger()
        assert entry is not None
        assert kept is not None
        assert kept.attempt == entry.attempt
        append(lanes.journals, 40, 50)
        tables.ingest("orders")
        assert sorted(tables.table("orders").column("id").to_pylist()) == [*range(50)]
        with pytest.raises(TableRefusedError, match="format version 3"):
            tables.ingest("numbered")
