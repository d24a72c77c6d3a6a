#!/bin/sh
# Run everything more thoroughly: the stubs on each release of protobuf, all tests on all brokers with new seeds
# and twenty times the examples, random crashes, two concurrent writers. It takes hours on two cores, so it has
# parts, which can also run alone. Each ends with its failures and one line in soak.log. Each part runs even if
# an earlier one failed; the last lines list the failed parts. Seeds are printed.
#
# SOAK_PARTS: parts to run, all if unset: protobuf pythons unit property mutants conformance spark kills
# crashes fuzz.
# SOAK_SEED: seed of examples and crash schedules; a new one if unset.
# SOAK_CRASHES: number of random crashes, 1,000 if unset; three in ten are SIGKILLs.  SOAK_PYTEST: additional
# arguments of pytest.
set -u
cd "$(dirname "$0")/.."
bin=.venv/bin
reports=.cache/reports
mkdir -p "$reports"
seed=${SOAK_SEED:-$(date +%s)}
parts=${SOAK_PARTS:-protobuf pythons unit property mutants conformance spark kills crashes fuzz}
crashes=${SOAK_CRASHES:-1000}
# Tests that kill processes, and start their own JVMs.
killing="tests/spark/test_kill.py tests/spark/test_crashes.py tests/spark/test_everywhere.py tests/spark/test_demo.py
    tests/spark/test_spark_versions.py"
failed=
echo "seed $seed"

# tests NAME PATHS AND ARGUMENTS…: run pytest once. With -v, even an interrupted run shows its failures.
tests() {
    name=$1
    shift
    # shellcheck disable=SC2086 # Words.
    $bin/pytest --soak --hypothesis-seed="$seed" -v -n 3 --dist loadgroup --no-loadscope-reorder \
        --timeout=3000 --durations=20 --junitxml="$reports/soak-$name.xml" "$@" ${SOAK_PYTEST:-}
}

part() {
    case $1 in
        protobuf) sh tests/protobuf_matrix.sh ;;
        pythons) sh tests/python_matrix.sh ;;
        unit) tests unit tests/unit --cov=gazette_spark --cov-report= ;;
        # The minimum coverage applies to the unit and property tests alone.
        property)
            tests property tests/property --cov=gazette_spark --cov-append --cov-report= &&
                $bin/coverage report --fail-under=86 --format=total
            ;;
        mutants)
            $bin/uv run --no-project --python $bin/python --with mutmut==3.8.1 \
                python -m tests.rig.mutation --seed "$seed" --fail-under 70
            ;;
        conformance) tests conformance tests/conformance ;;
        # shellcheck disable=SC2046 # Words.
        spark) tests spark tests/spark tests/notebooks $(printf -- '--ignore=%s ' $killing) ;;
        # shellcheck disable=SC2086 # Words.
        kills) tests kills $killing ;;
        crashes)
            $bin/python -m tests.rig.crashes --schedules 4 --seed "$seed" --steps 20 --crashes "$crashes" \
                --kills $((crashes * 3 / 10)) --kill-share 0.3 --two-writers 240 --log "$reports/crashes.jsonl"
            ;;
        fuzz) sh native/fuzz/run.sh 3600 ;;
        *)
            echo "no part is called $1" >&2
            return 1
            ;;
    esac
}

for each in $parts; do
    echo "== $each"
    started=$(date +%s)
    if part "$each"; then verdict=passed; else
        verdict=failed
        failed="$failed $each"
    fi
    line="$each $verdict in $(($(date +%s) - started)) s, seed $seed, $(git describe --always --dirty 2>/dev/null)"
    echo "== $line"
    echo "$(date -u +%F) $line" >> "$reports/soak.log"
done

if [ -n "$failed" ]; then
    echo "failed:$failed (seed $seed)"
    exit 1
fi
echo "all passed (seed $seed): $parts"
