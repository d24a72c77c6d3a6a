"""A user's program on Spark 4.1 with Iceberg's runtime, which reads and maintains a table.

A Python with that Spark runs it as a script: ``iceberg_job.py URI DIRECTORY``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.feather
from pyspark.sql import SparkSession

RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


def main(uri: str, directory: str) -> None:
    settings = {
        "spark.jars.packages": RUNTIME,
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.prod": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.prod.type": "rest",
        "spark.sql.catalog.prod.uri": uri,
        "spark.sql.catalog.prod.io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    rows = spark.table("prod.shop.orders").orderBy("_journal", "_offset").toArrow()
    pyarrow.feather.write_feather(rows, str(Path(directory, "spark.feather")))
    rewrite = "rewrite_data_files(table => 'shop.orders', options => map('rewrite-all', 'true'))"
    expire = (
        "expire_snapshots(table => 'shop.orders', older_than => TIMESTAMP '2100-01-01', retain_last => 1)"
    )
    for procedure in (rewrite, expire):
        spark.sql(f"CALL prod.system.{procedure}").collect()
    spark.sql("CREATE TABLE prod.shop.numbered (id BIGINT) TBLPROPERTIES ('format-version' = '3')")
    spark.sql("INSERT INTO prod.shop.numbered VALUES (1)")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
