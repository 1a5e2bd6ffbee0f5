#!/bin/bash
set -euo pipefail
# Runs every check, goes on after a failed one, and ends with why tests were skipped, and "N passed, N failed".
# With "lint" only those that run nothing of farfork. Logs are kept in build/test/.

cd "$(dirname "$0")/.."
logs=build/test
rm -rf "$logs"
mkdir -p "$logs"

# A step is one check; where its output counts tests, these are summed up instead.
step() {
    local name=$1 status=0 begun=$SECONDS
    shift
    printf '\n=== %s\n' "$name"
    "$@" 2>&1 | tee "$logs/$name.log" || status=$?
    echo "$status" >"$logs/$name.status"
    printf -- "--- %s: %d s\n" "$name" $((SECONDS - begun))
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
    # Tests too: what they need of other crates is not compiled twice then, with other features.
    step build cargo build --workspace --all-targets
    # With the output of tests that passed: it tells which of them could not be made here.
    step cargo cargo test --workspace --no-fail-fast -- --show-output
    [ -z "${FARFORK_TEST_LONG:-}" ] || step qemu tests/qemu/run.sh
    if [ -d python ]; then
        # Many wait. Functions' processes, who is killed for want of memory, and what is left: some count of the whole
        # machine, and are alone.
        alone=(python/tests/test_{isolation,memory,soak}.py)
        step pytest .venv/bin/python -m pytest python --numprocesses 4 --dist loadfile "${alone[@]/#/--ignore=}"
        step pytest-alone .venv/bin/python -m pytest "${alone[@]}"
    fi
    step fuzz setup/fuzz.sh
fi

echo
exec python3 setup/summary.py "$logs"
