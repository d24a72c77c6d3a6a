#!/bin/sh
# Build the real Gazette broker, gazctl, goclient (../go), the chunker of its example stream-sum and etcd for the
# conformance tests. With --soak also the broker of v0.99, the last one whose List answers once; versitygw, an S3
# server over a directory; fake-gcs-server and, by npm, Azurite, which stand for Google's and Azure's stores; and
# promtool, out of Debian's package of Prometheus.
#
# They go into $GAZETTE_SPARK_CACHE, or .cache/gazette of this repository. A program is built again when its
# versions (go.mod, go.sum, sources) change.
#
# The broker's codec ZSTANDARD is C. Where there is no C compiler, the one that PyPI has (zig) is
# installed into the same folder and used, so that the tests are the same everywhere.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
out=${GAZETTE_SPARK_CACHE:-$here/../../.cache/gazette}
ziglang="ziglang==0.13.0.post1"

need_go() {
    if ! command -v go >/dev/null 2>&1; then
        echo "building the real broker needs Go 1.25 or later: install it from https://go.dev/dl/" >&2
        exit 1
    fi
}

need_c() {
    if command -v "${CC:-gcc}" >/dev/null 2>&1; then return; fi
    echo "no C compiler: installing $ziglang into $out/zig" >&2
    python=$here/../../.venv/bin/python
    [ -x "$python" ] || python=python3
    "$python" -m venv "$out/zig"
    "$out/zig/bin/pip" install --quiet --disable-pip-version-check "$ziglang"
    printf '#!/bin/sh\nexec "%s" -m ziglang cc "$@"\n' "$out/zig/bin/python" > "$out/zig/cc"
    chmod +x "$out/zig/cc"
    export CC="$out/zig/cc"
}

# build MODULE "PROGRAMS IT GIVES" PACKAGES AND FLAGS…
build() {
    module=$here/$1 programs=$2
    shift 2
    stamp=$(find "$here/build.sh" "$module" -type f | LC_ALL=C sort | xargs cat | cksum)
    stamp_file=$out/stamp-$(printf '%s' "$programs" | tr ' ' -)
    built=yes
    for program in $programs; do [ -x "$out/$program" ] || built=no; done
    if [ $built = yes ] && [ "$(cat "$stamp_file" 2>/dev/null)" = "$stamp" ]; then return; fi
    need_go
    echo "building $programs into $out" >&2
    if [ "$programs" = chunker ]; then
        # Without the stores that need RocksDB's library.
        "$module/chunker/module.sh" "$out/core" > "$out/chunker.mod"
        cp "$module/go.sum" "$out/chunker.sum"
    fi
    # Without what debuggers need, compiling takes a quarter less. The limit ends a build whose downloads hang.
    (cd "$module" && timeout 1200 go build -mod=readonly -trimpath -gcflags=all=-dwarf=false -ldflags=-w "$@")
    printf '%s\n' "$stamp" > "$stamp_file"
}

mkdir -p "$out"
out=$(cd "$out" && pwd)
need_c
export CGO_CFLAGS="-O1 -g0"
core=go.gazette.dev/core/cmd
# One build for three programs: they share nine tenths of what is compiled.
CGO_ENABLED=1 build ../go "goclient gazette gazctl" -o "$out/" . $core/gazette $core/gazctl
CGO_ENABLED=1 build ../go chunker -modfile="$out/chunker.mod" -o "$out/chunker" ./chunker
CGO_ENABLED=0 build etcd etcd -o "$out/etcd" .
if [ "${1:-}" = --soak ]; then
    CGO_ENABLED=0 build gazette_v0_99 gazette-v0.99 -tags nozstd -o "$out/gazette-v0.99" $core/gazette
    CGO_ENABLED=0 build versitygw versitygw -o "$out/versitygw" github.com/versity/versitygw/cmd/versitygw
    CGO_ENABLED=0 build fake_gcs fake-gcs-server -o "$out/fake-gcs-server" github.com/fsouza/fake-gcs-server
    if [ ! -e "$out/azurite-blob" ] && command -v npm >/dev/null; then
        mkdir -p "$out/azurite"
        cp "$here/azurite/package.json" "$here/azurite/package-lock.json" "$out/azurite"
        (cd "$out/azurite" && npm ci --silent --no-fund --no-audit)
        ln -s azurite/node_modules/.bin/azurite-blob "$out/azurite-blob"
    fi
    if [ ! -x "$out/promtool" ] && command -v apt-get >/dev/null; then
        unpacked=$(mktemp -d)
        (cd "$unpacked" && apt-get download --quiet prometheus && dpkg -x prometheus_*.deb . && cp usr/bin/promtool "$out")
        rm -rf "$unpacked"
    fi
fi
