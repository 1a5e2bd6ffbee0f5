#!/usr/bin/env bash
# Installs what benchmarks need: packages for plots in .venv, an emulator, and a CRIU if one is
# available. Does nothing if they are installed already.
set -euo pipefail
cd "$(dirname "$0")/.."

setup/system.sh --bench
setup/criu.sh || echo "setup/bench.sh: continuing without CRIU: benchmarks will not measure it" >&2

lock=setup/requirements-bench.lock
stamp=.venv/farfork-bench-stamp
log=build/setup-bench.log

if cmp -s "$lock" "$stamp" && .venv/bin/python -c 'import matplotlib' 2>/dev/null; then
    exit 0
fi
if ! .venv/bin/python -m pip install --quiet --no-deps --disable-pip-version-check \
    --root-user-action=ignore --require-hashes --only-binary :all: -r "$lock" >"$log" 2>&1; then
    cat "$log" >&2
    echo "setup/bench.sh: cannot install $lock (see above)" >&2
    exit 1
fi
cp "$lock" "$stamp"
