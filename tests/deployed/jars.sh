#!/bin/sh
# Fetch the jars of a server for tests: sh tests/deployed/jars.sh NAME. The list is tests/deployed/NAME/ivy.xml;
# they go into $GAZETTE_SPARK_CACHE/NAME, or .cache/gazette/NAME. The resolver is Ivy, which PySpark brings along.
#
# JAVA_HOME: a Java, as for Spark.
set -eu
cd "$(dirname "$0")/../.."

list=tests/deployed/$1/ivy.xml
out=${GAZETTE_SPARK_CACHE:-$PWD/.cache/gazette}/$1
stamp=$(cksum <"$list")
if [ "$(cat "$out/stamp" 2>/dev/null)" = "$stamp" ]; then exit 0; fi

rm -rf "$out"
mkdir -p "$out"
ivy=$(echo .venv/lib/python3.*/site-packages/pyspark/jars/ivy-*.jar)
if ! "$JAVA_HOME/bin/java" -XX:TieredStopAtLevel=1 -cp "$ivy" org.apache.ivy.Main -ivy "$list" -cache "$out/cache" \
    -retrieve "$out/jars/[artifact]-[revision](-[classifier]).[ext]" -types jar bundle >"$out/log" 2>&1; then
    cat "$out/log" >&2
    exit 1
fi
rm -rf "$out/cache"
printf '%s\n' "$stamp" >"$out/stamp"
