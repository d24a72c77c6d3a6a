#!/bin/sh
# Build the real Gazette broker, gazctl, etcd and goclient (../go) for the conformance tests; and the
# broker of v0.99, the last one whose List answers once.
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

goclient=$here/../go

stamp=$(cat "$here"/build.sh "$here"/*/go.mod "$here"/*/go.sum "$here"/*/*.go \
    "$goclient"/go.mod "$goclient"/go.sum "$goclient"/*.go | cksum)
built=yes
for program in gazette gazctl etcd goclient gazette-v0.99; do
    [ -x "$out/$program" ] || built=no
done
if [ $built = yes ] && [ "$(cat "$out/stamp" 2>/dev/null)" = "$stamp" ]; then
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

# The limit ends a build whose downloads hang.
build() {
    (cd "$here/$1" && shift && timeout 1200 go build -mod=readonly -trimpath "$@")
}
echo "building gazette, gazctl, etcd and goclient into $out" >&2
export CGO_ENABLED=1
build gazette -o "$out/" go.gazette.dev/core/cmd/gazette go.gazette.dev/core/cmd/gazctl
build etcd -o "$out/etcd" .
# These two do without ZSTANDARD, and so without C.
export CGO_ENABLED=0
build ../go -tags nozstd -o "$out/goclient" .
build gazette_v0_99 -tags nozstd -o "$out/gazette-v0.99" go.gazette.dev/core/cmd/gazette
printf '%s\n' "$stamp" > "$out/stamp"
