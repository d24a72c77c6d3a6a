#!/bin/sh
# Make an environment for each supported release of Spark, for tests/spark/test_spark_versions.py, which adds
# the wheel: PySpark, Delta where there is one for it, and what the wheel depends on. They lie in
# $GAZETTE_SPARK_CACHE/spark-env, or .cache/gazette/spark-env: 0.9 GB each. `make test` needs the oldest only.
#
# PYTHON: interpreter to make the environments with; .venv's if unset.
# SPARK_RELEASES: those to make, all if unset.
set -eu
cd "$(dirname "$0")/.."

python=${PYTHON:-.venv/bin/python}
out=${GAZETTE_SPARK_CACHE:-$PWD/.cache/gazette}/spark-env
run=$("$python" -c 'import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]))')
delta="delta-spark==4.4.0"

mkdir -p "$out"
for release in ${SPARK_RELEASES:-4.0.5 4.1.4 4.2.1 4.3.0}; do
    env=$out/${release%.*}
    stamp=$("$python" --version; printf '%s\n' "$release" "$run" "$delta" | cksum)
    if [ "$(cat "$env/stamp" 2>/dev/null)" = "$stamp" ]; then continue; fi
    rm -rf "$env"
    printf '%s\n' "$run" >"$out/run.txt"
    "$python" -m venv --without-pip "$env"
    sh tools/install.sh "$env/bin/python" "pyspark==$release" "deltalake>=1.6" importlib_metadata --requirement "$out/run.txt"
    # Without its dependencies: it asks for a pyspark of 4.2.0 at most. Its jar is named after this Spark.
    if [ "$release" != 4.3.0 ]; then sh tools/install.sh "$env/bin/python" --no-deps "$delta"; fi
    printf '%s\n' "$stamp" >"$env/stamp"
done
