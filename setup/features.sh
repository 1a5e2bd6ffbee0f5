#!/bin/bash
set -euo pipefail
# Prints the options of cargo for features of farfork whose build needs more than Rust and a C compiler, if they are asked for
# and this machine has that: reads by RDMA (FARFORK_RDMA=1, and tests that may take long) need CMake and libclang.

[ -n "${FARFORK_RDMA:-}${FARFORK_TEST_LONG:-}" ] || exit 0

# libclang-cpp is another library.
has_libclang() {
    local directory
    for directory in "${LIBCLANG_PATH:-/usr/lib}" /usr/lib/llvm-*/lib /usr/lib/*/ /usr/lib64; do
        if compgen -G "$directory/libclang.so*" || compgen -G "$directory/libclang-[0-9]*.so*"; then
            return
        fi
    done >/dev/null
    return 1
}

if command -v cmake >/dev/null && has_libclang; then
    echo --features farfork-cli/rdma
fi
