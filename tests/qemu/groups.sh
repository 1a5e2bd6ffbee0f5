#!/bin/sh
set -eu
# What is shown in a guest that has cgroup v2 alone, by the tests that run everywhere else: containers'
# limits, nodes' budgets, what is counted, and that nothing of them stays.
faults=/farfork/debug/deps/faults
all=/sys/fs/cgroup
export FARFORK_RUN=/tmp/run FARFORK_TEST_LONG=1 FARFORK_BIN=/farfork/debug/farfork
export PYTHONPATH=/farfork/python PYTHONDONTWRITEBYTECODE=1 FARFORK_TEST_PATIENCE_S=240
mkdir -p "$FARFORK_RUN"

# NAME COMMAND...: what does not end in time has failed.
scene() {
    name=$1
    shift
    echo "SCENE $name $(cut -d ' ' -f 1 /proc/uptime)"
    timeout 400 "$@" </dev/null || echo "SCENE FAILED: $name"
}

# NAME FUNCTION: the same for what does end.
check() {
    echo "SCENE $1"
    "$2" || echo "SCENE FAILED: $1"
}

tests() {
    place=$1
    shift
    for filter in "$@"; do
        scene "$place $filter" "$faults" "$filter" --test-threads 1
    done
}

# NAME TESTS...: tests of `farfork serve`.
platform() {
    place=$1
    shift
    (cd /farfork && scene "$place platform" python3 -m pytest -p no:cacheprovider -v --durations=0 "$@")
}

# SECONDS FUNCTION: whether that holds before so much time has gone.
soon() {
    left=$1
    until "$2"; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || return 1
        sleep 1
    done
}

is_unified() {
    ! grep -q ' cgroup ' /proc/mounts && ! cut -f 1,2 /proc/cgroups | grep -q '[1-9]$' &&
        grep -q memory "$all/cgroup.controllers" && grep -q pids "$all/cgroup.controllers"
}

processes() {
    grep -l farfork /proc/[0-9]*/comm 2>/dev/null
}

nothing_is_left() {
    [ -z "$(find "$all" -name '*farfork*')" ] && ! grep -q farfork /proc/mounts && ! processes >/dev/null
}

# Prints what is left behind.
is_clear() {
    soon 20 nothing_is_left && return
    find "$all" -name '*farfork*'
    grep farfork /proc/mounts
    processes
    return 1
}

doctor() {
    "$FARFORK_BIN" doctor | grep -e 'cgroup v2: created a group with a memory limit'
}

# Takes back from groups what others have had the root give them.
delegate_nothing() {
    taken=$(sed 's/[a-z][a-z]*/-&/g' "$all/cgroup.subtree_control")
    echo "$taken" >"$all/cgroup.subtree_control" &&
        [ -z "$(cat "$all/cgroup.subtree_control")" ]
}

# In a group that has processes and is the topmost visible one, as in containers, no limits are possible:
# farfork reports that, and leaves nothing behind.
contained() {
    mkdir "$all/container"
    "$FARFORK_BIN" pool create /tmp/contained-pool --size 64M
    # Only this group is to be seen.
    said=$(sh -c "echo \$\$ >$all/container/cgroup.procs && exec unshare --cgroup --mount sh -c \"
        umount $all && mount -t cgroup2 cgroup $all && FARFORK_POOL=/tmp/contained-pool \
        timeout 60 $FARFORK_BIN serve --state /tmp/contained-state --listen 127.0.0.1:0 --node-memory 512M\"" 2>&1) &&
        return 1
    "$FARFORK_BIN" pool destroy /tmp/contained-pool
    rmdir "$all/container"
    case $said in
        *"limit the memory of node1 by a cgroup"*"move them to another group in it"*) ;;
        *) echo "$said" && return 1 ;;
    esac
}

check unified is_unified

# In the root of all groups, which gives others nothing yet.
check doctor doctor
tests root limits::
platform root tests/platform/test_limits.py
check 'nothing is left' is_clear

# In a group that has processes, as services and people have; it has no files of memory, either.
check 'nothing is delegated' delegate_nothing
mkdir "$all/service"
echo $$ >"$all/service/cgroup.procs"
check doctor doctor
platform service tests/platform/test_limits.py
tests service pauses:: ghosts::has_namespaces_and_a_cgroup_of_its_own ghosts::runs_out_of_memory \
    ghosts::is_killed ghosts::is_stopped ghosts::loses_its_agent ghosts::comes_from
check 'nothing is left' is_clear
check contained contained
check 'nothing is left' is_clear
