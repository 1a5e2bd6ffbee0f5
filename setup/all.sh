#!/bin/bash
set -eu
# Sets up everything: system packages, the Rust toolchain, the Python environment.
# With --tests also what only tests need. Quick where all of it is there already.

cd "$(dirname "$0")/.."
setup/system.sh "$@"
setup/rust.sh
if [ -x setup/python.sh ]; then
    setup/python.sh
fi
if [ "${1:-}" = --tests ]; then
    setup/npm.sh
fi
