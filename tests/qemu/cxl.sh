#!/bin/sh
set -eu
# What is shown in a guest whose CXL memory is a node without processors: where the pages of processes and clones lie, with the
# pool in that memory. Each access to it is emulated, also that of a clone to its code, so that only what counts pages runs here, and
# clones are killed when these are counted.
faults=/farfork/debug/deps/faults
export FARFORK_RUN=/tmp/run FARFORK_TEST_LONG=1
export FARFORK_TEST_MEDIUM_EMULATED=1 FARFORK_TEST_MEDIUM=/mnt/far FARFORK_TEST_MEDIUM_NAME=tmpfs FARFORK_TEST_MEDIUM_NODE=1
mkdir -p "$FARFORK_RUN"

echo "SCENE node"
grep -e MemTotal /sys/devices/system/node/node1/meminfo || echo "SCENE FAILED: node"

# What does not end in time has failed.
for filter in share::of_a share::counts_b share::is_as share::is_lowered; do
    case $filter in *"${only:-}"*) ;; *) continue ;; esac
    echo "SCENE cxl $filter"
    timeout "${seconds:-500}" "$faults" "$filter" --test-threads 1 </dev/null || echo "SCENE FAILED: cxl $filter"
done
