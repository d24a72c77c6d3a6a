#!/bin/sh
# Build the real broker, and meanwhile install the package, make the tests' environments, and try the stubs
# on all releases of protobuf: each spends half its time on downloads.
set -u
make="${MAKE:-make} --no-print-directory"
log=$(mktemp)

$make broker-binaries >"$log" 2>&1 &
build=$!
# A shell that is told to stop must not leave the build behind.
trap 'kill "$build" 2>/dev/null; rm -f "$log"' EXIT
trap 'exit 130' INT TERM

$make install && $make jvm && $make browser && $make wheel-env && $make test-protobuf && $make class-archive
installed=$?
wait "$build"
built=$?

grep -v '^go: downloading' "$log"
[ "$installed" -eq 0 ] && [ "$built" -eq 0 ]
