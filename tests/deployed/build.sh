#!/bin/sh
# Build the real Gazette broker, gazctl and etcd for the conformance tests.
#
# They go into $GAZETTE_SPARK_CACHE, or .cache/gazette of this repository. Nothing is done when the
# versions (go.mod, go.sum, sources) have not changed since the last build.
#
# The broker's codec ZSTANDARD is C. Where there is no C compiler, the one that PyPI has (zig) is
# installed into the same folder and used, so that the tests are the same everywhere.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
out=${GAZETTE_SPARK_CACHE:-$here/../../.cache/gazette}
ziglang="ziglang==0.13.0.post1"

stamp=$(cat "$here"/build.sh "$here"/*/go.mod "$here"/*/go.sum "$here"/*/*.go | cksum)
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

if ! command -v "${CC:-gcc}" >/dev/null 2>&1; then
    echo "no C compiler: installing $ziglang into $out/zig" >&2
    python=$here/../../.venv/bin/python
    [ -x "$python" ] || python=python3
    "$python" -m venv "$out/zig"
    "$out/zig/bin/pip" install --quiet --disable-pip-version-check "$ziglang"
    printf '#!/bin/sh\nexec "%s" -m ziglang cc "$@"\n' "$out/zig/bin/python" > "$out/zig/cc"
    chmod +x "$out/zig/cc"
    export CC="$out/zig/cc"
fi
export CGO_ENABLED=1

# A build takes about a minute and a half; the limit ends one whose downloads hang.
build() {
    (cd "$here/$1" && shift && timeout 1200 go build -mod=readonly -trimpath "$@")
}
echo "building gazette, gazctl and etcd into $out" >&2
build gazette -o "$out/" go.gazette.dev/core/cmd/gazette go.gazette.dev/core/cmd/gazctl
build etcd -o "$out/etcd" .
printf '%s\n' "$stamp" > "$out/stamp"
