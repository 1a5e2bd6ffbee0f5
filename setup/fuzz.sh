#!/bin/bash
set -euo pipefail
# Fuzzes all readers, or the named ones, for 120 seconds each, or FARFORK_FUZZ_SECONDS. Part of
# `make test-long`; `make test` runs the same targets on their seeds (replay.rs in crates/storage/image/tests/it and
# crates/vm/pageserver/tests/it).
#
# Neither cargo-fuzz nor a nightly compiler is needed: libFuzzer is in the crate libfuzzer-sys, and the
# compiler's coverage pass is a stable option. They would add the address sanitizer, which finds little
# here, because the readers are safe Rust.

cd "$(dirname "$0")/.."
seconds=${FARFORK_FUZZ_SECONDS:-120}
names=("$@")
[ $# -gt 0 ] || names=(metadata archive pool protocol snapshot handover)
host=x86_64-unknown-linux-gnu
target=${CARGO_TARGET_DIR:-fuzz/target}
build=$PWD/build/fuzz
FARFORK_FUZZ_SEEDS=$PWD/fuzz/corpus cargo test --quiet --package farfork-image --package farfork-pageserver \
    --test it seeds
export CARGO_TARGET_DIR=$target/fuzz
readonly coverage="-Cpasses=sancov-module --cfg fuzzing
    -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares"

# With --target, the flags apply to the targets only, not to build scripts.
RUSTFLAGS=$coverage cargo build --locked --release --target "$host" \
    --manifest-path fuzz/Cargo.toml --bins

mkdir -p "$build"
place=$(mktemp -d -p /dev/shm farfork-fuzz.XXXXXX)
trap 'rm -rf "$place"' EXIT
export TMPDIR=$place

for name in "${names[@]}"; do
    echo "fuzzing $name for $seconds s"
    # Failing inputs are written beside the logs. The corpus is kept for the next run.
    "$CARGO_TARGET_DIR/$host/release/$name" -max_total_time="$seconds" -timeout=5 \
        -rss_limit_mb=1024 -max_len=65536 -print_final_stats=1 \
        -artifact_prefix="$build/$name-" "fuzz/corpus/$name" >"$build/$name.log" 2>&1 || {
        tail -40 "$build/$name.log"
        echo "$name failed; to reproduce: $CARGO_TARGET_DIR/$host/release/$name $build/$name-..."
        exit 1
    }
    sed -n 's/^stat::number_of_executed_units: */  runs: /p' "$build/$name.log"
done
