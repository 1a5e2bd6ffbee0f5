#!/bin/sh
set -eu
# What is shown in a guest, by the tests that run everywhere else: a pool on a DAX file system, and one in
# the memory of a NUMA node without processors.
programs=/farfork/debug/deps/programs
faults=/farfork/debug/deps/faults
export FARFORK_RUN=/tmp/run
# Without it, tests that others cover are left out, and a scene of them shows nothing.
export FARFORK_TEST_LONG=1
mkdir -p "$FARFORK_RUN"

# NAME COMMAND...: what does not end in time has failed.
scene() {
    local name=$1
    shift
    case $name in *"${only:-}"*) ;; *) return 0 ;; esac
    echo "SCENE $name"
    timeout "${seconds:-300}" "$@" </dev/null || echo "SCENE FAILED: $name"
}

tests() {
    local name=$1 program=$2 filter
    shift 2
    for filter in "$@"; do
        scene "$name $filter" "$program" "$filter" --test-threads 1
    done
}

doctor() {
    /farfork/debug/farfork doctor | sed '/^For other/,$d' | grep -e ' no ' -e 'This machine'
    /farfork/debug/farfork doctor | grep -q '^This machine can checkpoint and restore'
}
echo "SCENE doctor"
doctor || echo "SCENE FAILED: doctor"

# Everything that clones do to their memory; nothing that looks at locks: see docs/reference/what-is-carried.md#locked-memory.
export FARFORK_TEST_MEDIUM=/mnt/dax FARFORK_TEST_MEDIUM_SIZE=700M FARFORK_TEST_MEDIUM_NAME=dax
tests dax "$faults" media:: copies::
tests dax "$programs" clone_of_clone::dontneed_after_munlock clone_of_clone::mremap_grow \
    clone_twice::cow_file_private clone_twice::fork_after kill_restore_same_pid::brk_grow \
    clone_on_other_node::two_mib_edges

export FARFORK_TEST_MEDIUM=/mnt/far FARFORK_TEST_MEDIUM_NAME=tmpfs FARFORK_TEST_MEDIUM_NODE=1
tests far "$faults" media:: share::is share::counts_b share::counts_n share::places share::moves share::takes share::rises share::survives share::of
tests far "$programs" clone_twice::mprotect_patterns clone_twice::remap_parts tiers::brk_grow
