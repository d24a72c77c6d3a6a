#!/bin/sh
# Build the real Gazette broker, gazctl and etcd for the conformance tests.
#
# They go into $GAZETTE_SPARK_CACHE, or .cache/gazette of this repository. Nothing is done when the
# versions (go.mod, go.sum, sources) have not changed since the last build.
#
# The codec ZSTANDARD needs a C compiler. Without one the broker is built without it, and the tests
# of that codec on the real broker fail: install gcc to run the whole suite.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
out=${GAZETTE_SPARK_CACHE:-$here/../../.cache/gazette}

tags=
if ! command -v "${CC:-gcc}" >/dev/null 2>&1; then
    tags=nozstd
fi

stamp=$(cat "$here"/build.sh "$here"/*/go.mod "$here"/*/go.sum "$here"/*/*.go | cksum)
stamp="$stamp tags=$tags"
if [ -x "$out/gazette" ] && [ -x "$out/gazctl" ] && [ -x "$out/etcd" ] \
    && [ "$(cat "$out/stamp" 2>/dev/null)" = "$stamp" ]; then
    exit 0
fi

if ! command -v go >/dev/null 2>&1; then
    echo "building the real broker needs Go 1.25 or later: install it from https://go.dev/dl/" >&2
    exit 1
fi

mkdir -p "$out"
out=$(cd "$out" && pwd)
rm -f "$out/stamp"
if [ -n "$tags" ]; then
    echo "no C compiler: building the broker without ZSTANDARD" >&2
    export CGO_ENABLED=0
fi

# A build takes about a minute; the limit ends one whose downloads hang.
build() {
    (cd "$here/$1" && shift && timeout 1200 go build -mod=readonly -trimpath "$@")
}
echo "building gazette, gazctl and etcd into $out" >&2
build gazette -tags "$tags" -o "$out/" go.gazette.dev/core/cmd/gazette go.gazette.dev/core/cmd/gazctl
build etcd -o "$out/etcd" .
printf '%s\n' "$stamp" > "$out/stamp"
