#!/bin/sh
# Run the tests that need a JVM, and beside them those that only wait for brokers: both take minutes, and
# the second kind leaves the processor idle. Arguments go to both. Fails if either does.
set -u
pytest=${PYTEST:-.venv/bin/pytest}
log=$(mktemp)

"$pytest" tests/conformance -m "not spark" --durations=15 "$@" >"$log" 2>&1 &
beside=$!
# A shell that is told to stop must not leave the other run behind.
trap 'kill "$beside" 2>/dev/null; rm -f "$log"' EXIT
trap 'exit 130' INT TERM

"$pytest" tests -m spark --durations=25 "$@"
with_jvm=$?
echo "waiting for the tests that need no JVM"
wait "$beside"
without_jvm=$?

cat "$log"
echo "with a JVM: exit code $with_jvm; without: exit code $without_jvm"
[ "$with_jvm" -eq 0 ] && [ "$without_jvm" -eq 0 ]
