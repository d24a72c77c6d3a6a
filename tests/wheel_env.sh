#!/bin/sh
# Make two environments for tests/spark/test_everywhere.py, which adds the wheel to each: `run` holds what
# the wheel depends on and nothing else, as an executor may; `connect` also what drivers and clients of
# Spark Connect need. They lie in $GAZETTE_SPARK_CACHE/wheel-env, or .cache/gazette/wheel-env.
#
# PYTHON: interpreter to make the environments with; .venv's if unset.
set -eu
cd "$(dirname "$0")/.."

python=${PYTHON:-.venv/bin/python}
out=${GAZETTE_SPARK_CACHE:-$PWD/.cache/gazette}/wheel-env
run=$("$python" -c 'import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]))')
connect="deltalake>=1.6 pandas>=2.2,<3 grpcio-status>=1.76 googleapis-common-protos>=1.71 importlib_metadata<=8.7.1"
# Without its dependencies: it asks for pyspark, which is there already, with its jars.
delta="delta-spark==4.4.0"

stamp=$("$python" --version; printf '%s\n' "$run" "$connect" "$delta" | cksum)
if [ "$(cat "$out/stamp" 2>/dev/null)" = "$stamp" ]; then exit 0; fi

rm -rf "$out"
mkdir -p "$out"
printf '%s\n' "$run" >"$out/run.txt"
install() {
    env=$out/$1
    shift
    [ -d "$env" ] || "$python" -m venv --without-pip "$env"
    sh tools/install.sh "$env/bin/python" "$@"
}
install run --requirement "$out/run.txt"
# shellcheck disable=SC2086 # A list of packages.
install connect --requirement "$out/run.txt" $connect
install connect --no-deps "$delta"
printf '%s\n' "$stamp" >"$out/stamp"
