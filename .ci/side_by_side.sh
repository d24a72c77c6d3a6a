#!/bin/sh
# Run the tests that need brokers or a JVM, in two lanes side by side, for neither keeps two cores busy: those
# that share one JVM, and beside them those that need none, then those that start JVMs of their own, and then some
# of the first kind, for the lanes to end together. Arguments go to all. Fails if any of them does.
set -u
pytest=${PYTEST:-.venv/bin/pytest}
log=$(mktemp)
tables=tests/spark/test_sink_tables.py
upsert=tests/spark/test_sink_upsert.py

run() {
    "$pytest" --durations=15 "$@" &
    running=$!
    wait "$running"
}

lane_beside() {
    running=
    # Told to stop, it must not leave its tests behind.
    trap 'kill $running 2>/dev/null; exit 143' TERM
    run tests/conformance -m "not spark" "$@"
    without_jvm=$?
    run tests -m own_jvm "$@"
    own_jvm=$?
    run "$tables" "$upsert" "$@"
    moved=$?
    echo "without a JVM: exit code $without_jvm; with JVMs of their own: $own_jvm; tables and upserts: $moved"
    [ "$without_jvm" -eq 0 ] && [ "$own_jvm" -eq 0 ] && [ "$moved" -eq 0 ]
}

lane_beside "$@" >"$log" 2>&1 &
beside=$!
# A shell that is told to stop must not leave the other run behind.
trap 'kill "$beside" 2>/dev/null; rm -f "$log"' EXIT
trap 'exit 130' INT TERM

"$pytest" tests -m "spark and not own_jvm" --ignore="$tables" --ignore="$upsert" --durations=25 "$@"
with_jvm=$?
echo "waiting for the tests beside them"
wait "$beside"
others=$?

cat "$log"
echo "with one JVM: exit code $with_jvm; the tests beside them: $others"
[ "$with_jvm" -eq 0 ] && [ "$others" -eq 0 ]
