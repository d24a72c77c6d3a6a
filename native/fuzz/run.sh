#!/bin/sh
# Fuzz the native decoder, guided by coverage and under AddressSanitizer, on all cores: sh native/fuzz/run.sh SECONDS.
# It needs a nightly Rust (rustup toolchain install nightly --profile minimal) and a C++ compiler.
#
# Inputs that reach new code are kept in .cache/fuzz/corpus, so a later run goes on from there. An input that fails is
# kept in .cache/fuzz/, and the last lines name it; `gazette-json-fuzz FILE` runs it again.
set -eu
cd "$(dirname "$0")/../.."
seconds=${1:-600}
work=$PWD/.cache/fuzz
mkdir -p "$work/corpus"

if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "Fuzzing needs a nightly Rust: rustup toolchain install nightly --profile minimal" >&2
    exit 1
fi
# What cargo-fuzz sets. Debug assertions and checks for overflow are on, see Cargo.toml.
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares"
target=x86_64-unknown-linux-gnu
RUSTFLAGS="--cfg fuzzing -Zsanitizer=address $coverage" cargo +nightly build --quiet --release --locked \
    --manifest-path native/fuzz/Cargo.toml --target $target --target-dir "$work/target"

# The first inputs: the records at the edges of what the decoder accepts, each after the byte that chooses the mode.
.venv/bin/python - "$work/corpus" <<'EOF'
import json
import sys
from pathlib import Path

lines = Path("tests/golden/native/records.jsonl").read_text().splitlines()
for number, line in enumerate(lines):
    record = json.loads(line).encode("latin-1")
    Path(sys.argv[1], f"record-{number}").write_bytes(b"\0" + record + b"\n")
EOF

# Blocks of several records are found by themselves; longer inputs are slower, and reach no other code.
exec "$work/target/$target/release/gazette-json-fuzz" "$work/corpus" -fork="$(nproc)" -max_total_time="$seconds" \
    -max_len=1024 -artifact_prefix="$work/"
