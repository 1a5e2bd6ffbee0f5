#!/bin/bash
set -euo pipefail
# Runs all checks, also after a failed one. Prints at the end why tests were skipped, and
# "N passed, N failed". With "lint", runs only the checks that do not run farfork. Logs are kept in
# build/test/.

cd "$(dirname "$0")/.."
logs=build/test
rm -rf "$logs"
mkdir -p "$logs"

# A step is one check; if its output counts tests, these are added up instead. Wall time is noisy on a shared
# machine, so the processors' time is kept, too (NAME.cpu: user and system seconds of what the step waited for).
step() {
    local name=$1
    shift
    printf '\n=== %s\n' "$name"
    measure "$name" "$@" | tee "$logs/$name.log"
    report "$name"
}

measure() {
    local name=$1 status=0 begun=$SECONDS TIMEFORMAT='%U %S'
    shift
    { time "$@" 2>&1; } 2>"$logs/$name.cpu" || status=$?
    echo "$status" >"$logs/$name.status"
    echo $((SECONDS - begun)) >"$logs/$name.seconds"
}

report() {
    # The last line: above it the shell says by which signal a step was killed.
    printf -- '--- %s: %d s, processors %.0f s\n' "$1" "$(cat "$logs/$1.seconds")" \
        "$(awk 'END { print $1 + $2 }' "$logs/$1.cpu")"
}

restorer() {
    cargo "$1" --manifest-path crates/fork/restorer/Cargo.toml "${@:2}"
}

step format cargo fmt --all --check
step clippy cargo clippy --workspace --all-targets -- -D warnings
if [ -f crates/fork/restorer/Cargo.toml ]; then
    step restorer-format restorer fmt --check
    step restorer-clippy restorer clippy -- -D warnings
fi
if [ -d python ]; then
    step ruff .venv/bin/ruff check python
    step ruff-scripts .venv/bin/ruff check --config python/pyproject.toml setup functions bench
    step ruff-format .venv/bin/ruff format --check --config python/pyproject.toml .
fi
step summary python3 -m unittest discover --start-directory setup --pattern '*_test.py'

if [ "${1:-}" = lint ]; then
    step tidy cargo test --package farfork-tidy
else
    # With tests: otherwise other crates would be compiled again for them, with other features.
    step build cargo build --workspace --all-targets
    # With the output of passed tests, which contains the reasons of skipped ones. There are no doctests.
    # Most of them wait for processes that they have started, so that more threads than processors use these better.
    threads=$(($(nproc) * 3 / 2))
    cargo=(cargo test --workspace --lib --bins --tests --no-fail-fast -- --show-output --test-threads "$threads")
    pytest=(.venv/bin/python -m pytest --durations 20)
    # Tests of isolation, of OOM kills and the soak observe the whole machine, and run alone.
    alone=(python/tests/test_{isolation,memory,soak}.py)
    # One after the other: side by side, tests of clocks and time-outs fail now and then.
    step cargo "${cargo[@]}"
    # Programs whose images lie in two files each: all of them, or those about mappings.
    split=(env FARFORK_TEST_LONG=1 FARFORK_SPLIT_IMAGES=true cargo test --workspace --test programs --)
    if [ -n "${FARFORK_TEST_LONG:-}" ]; then
        step split "${split[@]}" clone_
    else
        step split "${split[@]}" clone_twice::m
    fi
    if [ -d python ]; then
        step pytest "${pytest[@]}" python --numprocesses 4 --dist loadfile "${alone[@]/#/--ignore=}"
        step pytest-alone "${pytest[@]}" "${alone[@]}"
    fi
    if [ -n "${FARFORK_TEST_LONG:-}" ]; then
        step qemu tests/qemu/run.sh
        step package tests/package/run.sh
        step fuzz setup/fuzz.sh
    else
        echo "SKIPPED: guests in QEMU, packages and fuzzing: FARFORK_TEST_LONG=1 (make test-long) has them" |
            tee "$logs/long.log"
        echo 0 >"$logs/long.status"
    fi
fi

echo
exec python3 setup/summary.py "$logs"
