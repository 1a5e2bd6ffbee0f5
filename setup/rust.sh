#!/bin/bash
set -eu
# Checks that the Rust toolchain named in rust-toolchain.toml is there, with rustfmt and clippy.

if ! command -v cargo >/dev/null; then
    echo "setup: cargo is missing; install Rust with rustup (https://rustup.rs)" >&2
    exit 1
fi
# With rustup, the first call installs the toolchain and components that the file names.
for tool in "cargo --version" "cargo fmt --version" "cargo clippy --version"; do
    if ! words=$($tool 2>&1); then
        echo "$words" >&2
        echo "setup: \`$tool\` fails; run: rustup toolchain install" >&2
        exit 1
    fi
done
