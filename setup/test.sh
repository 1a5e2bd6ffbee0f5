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

# The same in the background, with processors that nothing else wants. What it prints comes when it is awaited.
beside() {
    chrt --idle --pid 0 "$BASHPID"
    measure "$@" >"$logs/$1.log"
}

await() {
    wait "$2"
    printf '\n=== %s\n' "$1"
    cat "$logs/$1.log"
    report "$1"
}

restorer() {
    cargo "$1" --manifest-path crates/fork/restorer/Cargo.toml "${@:2}"
}

# Waits until tests run, or have ended. Until then cargo keeps others from the build directory.
await_tests() {
    local name
    for name in "$@"; do
        until grep --quiet --no-messages 'Running ' "$logs/$name.log" || [ -e "$logs/$name.status" ]; do
            sleep 1
        done
    done
}

# Programs with tests beside each other, as many as processors. Those that run alone need pids to be free, or their
# processors for themselves, and are the longest.
side_by_side() {
    local alone=(--alone programs --alone faults --alone kill --alone far --alone seeds --alone bench)
    python3 setup/programs.py --at-once "$(nproc)" --logs "$logs/programs" "${alone[@]}" \
        --workspace "${features[@]}" "$@" -- --show-output --test-threads $(($(nproc) * 2))
}

# Names of programs with tests, all but those that are given.
test_programs_but() {
    cargo metadata --no-deps --format-version 1 |
        python3 -c 'import json, sys
targets = [t for p in json.load(sys.stdin)["packages"] for t in p["targets"] if "test" in t["kind"]]
print(*sorted({t["name"] for t in targets} - set(sys.argv[1:])), sep="\n")' "$@"
}

# Runs programs with tests: "cargo_tests --test NAME …". The whole workspace is named, because otherwise other crates
# would be compiled again, with other features. With the output of passed tests, which contains the reasons of
# skipped ones. There are no doctests. Most of them wait for processes that they have started, so that more threads
# than processors use these better.
cargo_tests() {
    cargo test --workspace "${features[@]}" --no-fail-fast "$@" -- --show-output --test-threads $(($(nproc) * 2))
}

# All of these name the same features: otherwise crates would be compiled again.
read -r -a features <<<"$(setup/features.sh)"
clippy=(cargo clippy --workspace "${features[@]}" --all-targets -- -D warnings)
restorer_clippy=(restorer clippy -- -D warnings)

step format cargo fmt --all --check
step restorer-format restorer fmt --check
step ruff .venv/bin/ruff check python
step ruff-scripts .venv/bin/ruff check --config python/pyproject.toml setup functions bench tests/platform
step ruff-format .venv/bin/ruff format --check --config python/pyproject.toml .
step summary python3 -m unittest discover --start-directory setup --pattern '*_test.py'

if [ "${1:-}" = lint ]; then
    step clippy "${clippy[@]}"
    step restorer-clippy "${restorer_clippy[@]}"
    step tidy cargo test --package farfork-tidy
else
    step build cargo build --workspace "${features[@]}" --all-targets
    # Clippy takes what these leave of the processors. The long ones do not run beside each other: tests of pids that
    # are to be free, of clocks and of runtimes that compile meanwhile then failed now and then. Tests that only compute
    # come later, beside those that must run alone: these count OOM kills of the whole machine, so none of the others
    # may cause any.
    computing=(damage model sim tidy scheduler ledger)
    mapfile -t others < <(test_programs_but "${computing[@]}")
    { await_tests cargo; beside clippy "${clippy[@]}"; } &
    linting=$!
    step cargo side_by_side --lib --bins "${others[@]/#/--test=}"
    await clippy "$linting"
    # Programs whose images lie in two files each: all of them, or those about mappings.
    split=(env FARFORK_TEST_LONG=1 FARFORK_SPLIT_IMAGES=true cargo test --workspace "${features[@]}" --test programs --)
    if [ -n "${FARFORK_TEST_LONG:-}" ]; then
        step split "${split[@]}" clone_
    else
        step split "${split[@]}" clone_twice::m
    fi
    pytest=(.venv/bin/python -m pytest --durations 20)
    # Tests of isolation, of OOM kills and the soak observe the whole machine, and run without another farfork.
    alone=(tests/platform/test_{isolation,memory,soak}.py)
    step pytest "${pytest[@]}" --numprocesses 4 --dist loadfile "${alone[@]/#/--ignore=}"
    { beside restorer-clippy "${restorer_clippy[@]}"; beside computing cargo_tests "${computing[@]/#/--test=}"; } &
    last=$!
    step pytest-alone "${pytest[@]}" "${alone[@]}"
    await restorer-clippy "$last"
    await computing "$last"
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
