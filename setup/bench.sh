#!/usr/bin/env bash
# Adds to .venv what plotting the benchmarks needs, an emulator, and a CRIU to compare with where one
# can be had. Does nothing when they are there already.
set -euo pipefail
cd "$(dirname "$0")/.."

setup/system.sh --bench
setup/criu.sh || echo "setup/bench.sh: the tables will say that CRIU was not measured" >&2

lock=setup/requirements-bench.lock
stamp=.venv/farfork-bench-stamp
log=build/setup-bench.log

if cmp -s "$lock" "$stamp" && .venv/bin/python -c 'import matplotlib' 2>/dev/null; then
    exit 0
fi
if ! .venv/bin/python -m pip install --quiet --no-deps --disable-pip-version-check \
    --root-user-action=ignore --require-hashes --only-binary :all: -r "$lock" >"$log" 2>&1; then
    cat "$log" >&2
    echo "setup/bench.sh: installing $lock failed (see above)" >&2
    exit 1
fi
cp "$lock" "$stamp"
