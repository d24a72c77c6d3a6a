#!/bin/sh
# Install the package, then check it while the real broker is built and the tests' environments are made, because
# each of these spends half its time waiting for downloads. Fails if one of them fails.
set -u
make="${MAKE:-make} --no-print-directory"
logs=$(mktemp -d)

$make broker-binaries >"$logs/broker" 2>&1 &
broker=$!
store=
environments=
# If this shell is stopped, the background processes must stop, too.
trap 'kill $broker $store $environments 2>/dev/null; rm -rf "$logs"' EXIT
trap 'exit 130' INT TERM

$make install && $make jvm && $make browser || exit 1
# It downloads a hundred small files, one after the other.
$make s3-server >"$logs/store" 2>&1 &
store=$!
{ $make native && $make wheel-env && $make oldest-spark-env && $make class-archive; } >"$logs/environments" 2>&1 &
environments=$!

# From a fresh clone, each of the workers of `make check` would compile all tests and what they import.
.venv/bin/pytest --collect-only -qq tests >/dev/null 2>&1

$make check
checked=$?
# A process id that was waited for may already belong to another process, so the trap must not signal it.
wait "$broker"
built=$? broker=
wait "$store"
fetched=$? store=
wait "$environments"
made=$? environments=
grep -hv '^go: downloading' "$logs/broker" "$logs/store" "$logs/environments"
[ "$checked" -eq 0 ] && [ "$built" -eq 0 ] && [ "$fetched" -eq 0 ] && [ "$made" -eq 0 ]
