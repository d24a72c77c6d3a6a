#!/bin/sh
# Import the stubs and run the protocol's unit tests on the supported releases of protobuf, in
# throw-away environments. They are kept in .cache/protobuf-matrix/ (delete it to start afresh).
#
# PYTHON: interpreter to make the environments with; .venv's if unset.
set -eu
cd "$(dirname "$0")/.."

python=${PYTHON:-.venv/bin/python}
cache=$PWD/.cache/protobuf-matrix
# The least that the package takes of releases 5 and 6, and the newest ones. 6 and 7 object to stubs made for
# release 5, unless they leave the check out.
releases="5.29.5 6.31.1 6 7"
packages="grpcio>=1.71.2 PyJWT>=2.10.1 PyYAML pytest pytest-timeout"
ready=ready-$(printf '%s' "$packages" | cksum | tr ' ' -)

prepare() {
    env=$cache/$1
    if [ -e "$env/$ready" ]; then return; fi
    rm -rf "$env"
    # Without pip of its own, and without compiling: that is most of the time it takes.
    "$python" -m venv --without-pip "$env"
    "$python" -m pip --python "$env/bin/python" install --quiet --disable-pip-version-check --no-compile \
        "protobuf==$1.*" $packages
    touch "$env/$ready"
}

# No shared fixtures: they load Spark and brokers.
run() {
    "$cache/$1/bin/python" -W error -m pytest --quiet --noconftest -p no:cacheprovider tests/unit/protocol
}

mkdir -p "$cache"
jobs=
for release in $releases; do
    prepare "$release" &
    jobs="$jobs $!"
done
for job in $jobs; do wait "$job"; done

for release in $releases; do
    "$cache/$release/bin/python" -c 'import google.protobuf as p; print(f"protobuf {p.__version__}:")'
    run "$release"
done
