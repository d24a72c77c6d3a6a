#!/bin/sh
# Install the package, then check it while the real broker is built and the tests' environments are made: each
# of these waits for downloads half its time. Fails if one of them does.
set -u
make="${MAKE:-make} --no-print-directory"
logs=$(mktemp -d)

$make broker-binaries >"$logs/broker" 2>&1 &
broker=$!
environments=
# A shell that is told to stop must not leave the others behind.
trap 'kill $broker $environments 2>/dev/null; rm -rf "$logs"' EXIT
trap 'exit 130' INT TERM

$make install && $make jvm && $make browser || exit 1
{ $make native && $make wheel-env && $make oldest-spark-env && $make class-archive; } >"$logs/environments" 2>&1 &
environments=$!

$make check
checked=$?
wait "$broker"
built=$?
wait "$environments"
made=$?
grep -hv '^go: downloading' "$logs/broker" "$logs/environments"
[ "$checked" -eq 0 ] && [ "$built" -eq 0 ] && [ "$made" -eq 0 ]
