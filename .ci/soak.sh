#!/bin/sh
# Run everything, and more of it: the stubs on each release of protobuf, all tests on all brokers with fresh
# seeds and ten times the examples, random crashes, two writers at once. It takes hours on two cores. Each stage
# runs whatever became of the one before; the last lines say which failed. Seeds are printed.
#
# SOAK_SEED: the seed of examples and crash schedules; a new one if unset.
# SOAK_CRASHES: crashes of random schedules, 1,000 if unset; three in ten are SIGKILLs.  SOAK_PYTEST: further
# arguments of pytest.
set -u
cd "$(dirname "$0")/.."
bin=.venv/bin
reports=.cache/reports
mkdir -p "$reports"
seed=${SOAK_SEED:-$(date +%s)}
failed=
echo "seed $seed"

stage() {
    name=$1
    shift
    echo "== $name: $*"
    started=$(date +%s)
    "$@" || failed="$failed $name"
    echo "== $name took $(($(date +%s) - started)) s"
}

stage protobuf sh tests/protobuf_matrix.sh
# Without -q: the header names the seed. The least coverage is that of the unit and property tests alone.
# shellcheck disable=SC2086 # Words.
stage tests $bin/pytest --soak --hypothesis-seed="$seed" -n 3 --dist loadgroup --no-loadscope-reorder \
    --durations=50 --junitxml="$reports/soak.xml" --cov=gazette_spark --cov-report= --cov-fail-under=86 \
    ${SOAK_PYTEST:-}
crashes=${SOAK_CRASHES:-1000}
stage crashes $bin/python -m tests.rig.crashes --schedules 4 --seed "$seed" --steps 20 --crashes "$crashes" \
    --kills $((crashes * 3 / 10)) --kill-share 0.3 --two-writers 240 --log "$reports/crashes.jsonl"

if [ -n "$failed" ]; then
    echo "failed:$failed (seed $seed)"
    exit 1
fi
echo "all passed (seed $seed)"
