#!/bin/bash
set -eu
# Sets up everything: system packages, the Rust toolchain, the Python environment; with --tests also what
# only tests need. Does nothing for parts that are set up already.

cd "$(dirname "$0")/.."
setup/system.sh "$@"
setup/rust.sh
if [ -x setup/python.sh ]; then
    setup/python.sh
fi
if [ "${1:-}" = --tests ]; then
    setup/npm.sh
fi
