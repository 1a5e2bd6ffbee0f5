#!/bin/bash
set -euo pipefail
# Prints the options of cargo for features of farfork whose build needs more than Rust and a C compiler, if they are asked for
# and this machine has that: reads by RDMA (FARFORK_RDMA=1, and tests that may take long) need CMake and libclang.

[ -n "${FARFORK_RDMA:-}${FARFORK_TEST_LONG:-}" ] || exit 0

has_libclang() {
    compgen -G "${LIBCLANG_PATH:-/usr/lib}/libclang*.so*" || compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' ||
        compgen -G '/usr/lib/*/libclang*.so*' || compgen -G '/usr/lib64/libclang*.so*'
}

if command -v cmake >/dev/null && has_libclang >/dev/null; then
    echo --features farfork-cli/rdma
fi
