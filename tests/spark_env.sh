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

# Unpack PySpark where its installation would lay it. pip would first make a wheel of it, which packs and
# unpacks 400 MB once more, for a minute and a half. Sets py4j to the requirement of this release.
place_pyspark() {
    got=$env/download
    "$python" -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --dest "$got" "pyspark==$1"
    tar -xzf "$got/pyspark-$1.tar.gz" -C "$got"
    from=$got/pyspark-$1
    site=$("$env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    mv "$from/pyspark" "$site/pyspark"
    mv "$from/deps/jars" "$site/pyspark/jars"
    mv "$from/deps/bin" "$site/pyspark/bin"
    mkdir -p "$site/pyspark/python"
    rm -rf "$site/pyspark/python/lib"
    mv "$from/lib" "$site/pyspark/python/lib"
    py4j=$(basename "$site"/pyspark/python/lib/py4j-*-src.zip -src.zip)
    py4j=py4j==${py4j#py4j-}
    rm -rf "$got"
}

mkdir -p "$out"
for release in ${SPARK_RELEASES:-4.0.5 4.1.4 4.2.1 4.3.0}; do
    env=$out/${release%.*}
    stamp=$("$python" --version; printf '%s\n' "$release" "$run" "$delta" | cksum)
    if [ "$(cat "$env/stamp" 2>/dev/null)" = "$stamp" ]; then continue; fi
    rm -rf "$env"
    printf '%s\n' "$run" >"$out/run.txt"
    # Without pip of its own, and without compiling: that is most of the time it takes.
    "$python" -m venv --without-pip "$env"
    pip="$python -m pip --python $env/bin/python install --quiet --disable-pip-version-check --no-compile"
    place_pyspark "$release"
    $pip "$py4j" "deltalake>=1.6" importlib_metadata --requirement "$out/run.txt"
    # Without its dependencies: it asks for a pyspark of 4.2.0 at most. Its jar is named after this Spark.
    if [ "$release" != 4.3.0 ]; then $pip --no-deps "$delta"; fi
    printf '%s\n' "$stamp" >"$env/stamp"
done
