#!/bin/bash
set -euo pipefail
# Runs all checks, also after a failed one. Prints at the end why tests were skipped, and
# "N passed, N failed". With "lint", runs only the checks that do not run farfork. Logs are kept in
# build/test/.

cd "$(dirname "$0")/.."
logs=build/test
rm -rf "$logs"
mkdir -p "$logs"

# A step is one check. If its output counts tests, these are added up instead.
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
    # With tests: otherwise other crates would be compiled again for them, with other features.
    step build cargo build --workspace --all-targets
    # With the output of passed tests, which contains the reasons of skipped ones.
    step cargo cargo test --workspace --no-fail-fast -- --show-output
    [ -z "${FARFORK_TEST_LONG:-}" ] || step qemu tests/qemu/run.sh
    if [ -d python ]; then
        # Most tests wait, so four run at once. Tests of isolation, of OOM kills and the soak observe the
        # whole machine, and run alone.
        alone=(python/tests/test_{isolation,memory,soak}.py)
        step pytest .venv/bin/python -m pytest python --numprocesses 4 --dist loadfile "${alone[@]/#/--ignore=}"
        step pytest-alone .venv/bin/python -m pytest "${alone[@]}"
    fi
    step fuzz setup/fuzz.sh
fi

echo
exec python3 setup/summary.py "$logs"
