#!/bin/sh
# Fetch what soak tests Iceberg tables with, beside Spark 4.1 of tests/spark_env.sh: two REST catalogs, and an
# environment with DuckDB and its extensions. They go into $GAZETTE_SPARK_CACHE, or .cache/gazette: 400 MB.
#
# JAVA_HOME: a Java, as for Spark.
set -eu
cd "$(dirname "$0")/.."

sh tests/deployed/jars.sh iceberg-rest
sh tests/deployed/jars.sh nessie

env=${GAZETTE_SPARK_CACHE:-$PWD/.cache/gazette}/duckdb
release=1.5.5
if [ "$(cat "$env/stamp" 2>/dev/null)" = "$release" ]; then exit 0; fi
rm -rf "$env"
.venv/bin/python -m venv --without-pip "$env"
sh tools/install.sh "$env/bin/python" "duckdb==$release" "duckdb-extensions==$release" \
    "duckdb-extension-avro==$release" "duckdb-extension-iceberg==$release"
printf '%s\n' "$release" >"$env/stamp"
