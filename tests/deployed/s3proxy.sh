#!/bin/sh
# Fetch S3Proxy, an S3 server over a directory, for tests of object stores: its jars go into
# $GAZETTE_SPARK_CACHE/s3proxy, or .cache/gazette/s3proxy. The resolver is Ivy, which PySpark brings along.
#
# JAVA_HOME: a Java, as for Spark.
set -eu
cd "$(dirname "$0")/../.."

out=${GAZETTE_SPARK_CACHE:-$PWD/.cache/gazette}/s3proxy
stamp=$(cksum <tests/deployed/s3proxy/ivy.xml)
if [ "$(cat "$out/stamp" 2>/dev/null)" = "$stamp" ]; then exit 0; fi

rm -rf "$out"
mkdir -p "$out"
ivy=$(echo .venv/lib/python3.*/site-packages/pyspark/jars/ivy-*.jar)
if ! "$JAVA_HOME/bin/java" -XX:TieredStopAtLevel=1 -cp "$ivy" org.apache.ivy.Main -ivy tests/deployed/s3proxy/ivy.xml \
    -cache "$out/cache" -retrieve "$out/jars/[artifact]-[revision].[ext]" -types jar bundle >"$out/log" 2>&1; then
    cat "$out/log" >&2
    exit 1
fi
rm -rf "$out/cache"
printf '%s\n' "$stamp" >"$out/stamp"
