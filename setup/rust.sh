#!/bin/bash
set -eu
# Checks that the Rust toolchain in rust-toolchain.toml is installed, with rustfmt and clippy.

if ! command -v cargo >/dev/null; then
    echo "setup: cargo is missing; install Rust with rustup (https://rustup.rs)" >&2
    exit 1
fi
# With rustup, the first call installs the toolchain and components of the file.
for tool in "cargo --version" "cargo fmt --version" "cargo clippy --version"; do
    if ! words=$($tool 2>&1); then
        echo "$words" >&2
        echo "setup: \`$tool\` fails; run: rustup toolchain install" >&2
        exit 1
    fi
done
