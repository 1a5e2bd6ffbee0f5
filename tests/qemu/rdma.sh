#!/bin/sh
set -eu
# Reads by RDMA, with the device that the kernel emulates (rdma_rxe) on a network device of its own: the suite of all
# transports, what the device refuses, and clones of an image that it serves. Both nodes are this guest.
farfork=/farfork/debug/farfork
address=10.7.0.1:7473
pool=/tmp/pool
export FARFORK_RUN=/tmp/run

# NAME COMMAND...: what does not end in time has failed.
scene() {
    name=$1
    shift
    echo "SCENE $name $(cut -d ' ' -f 1 /proc/uptime)"
    timeout 200 "$@" </dev/null || echo "SCENE FAILED: $name"
}

# NAME FUNCTION: the same for what does end.
check() {
    echo "SCENE $1 $(cut -d ' ' -f 1 /proc/uptime)"
    "$2" || echo "SCENE FAILED: $1"
}

# WORD FILE: whether it comes to stand there.
soon() {
    for _ in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19; do
        ! grep -q "$1" "$2" || return 0
        sleep 1
    done
    cat "$2"
    return 1
}

no_device() {
    said=$("$farfork" far serve --listen "$address" --pool "$pool" --rdma rxe0 2>&1) && return 1
    echo "$said" | grep 'no RDMA device'
}

add_device() {
    ip link add rdma0 type dummy && ip addr add 10.7.0.1/24 dev rdma0 && ip link set rdma0 up &&
        rdma link add rxe0 type rxe netdev rdma0
}

doctor() {
    "$farfork" doctor | grep 'opened rxe0.*(RoCE v2 10.7.0.1)'
}

# A process with a pattern on each page, as an image in a pool that is served.
serve_image() {
    # Its streams are pipes, for which clones get their callers'.
    mkfifo /tmp/parent /tmp/printed
    cat /tmp/printed >/tmp/parent.out &
    /farfork/programs/far_pages </tmp/parent >/tmp/printed 2>&1 &
    exec 3>/tmp/parent
    soon READY /tmp/parent.out || return 1
    "$farfork" checkpoint --pool "$pool" --name demo/pages --kill --no-verify --pid $! 3>&- || return 1
    exec 3>&-
    grep "$pool tmpfs.*huge=always" /proc/mounts && "$farfork" pool check "$pool" || return 1
    before=$(taken)
    "$farfork" far serve --listen "$address" --pool "$pool" --key /tmp/far.key --tcp-only --rdma rxe0 \
        >/tmp/server.out 2>/tmp/server.err &
    server=$!
    soon "$address" /tmp/server.out || return 1
    cat /tmp/server.err
}

# A node without the pool: NAME, and then options of restore. The clone verifies all pages.
clone() {
    away=$1
    shift
    echo | FARFORK_RUN=/tmp/$away timeout 120 "$farfork" restore --far "$address" --far-key /tmp/far.key \
        --far-deadline-ms 60000 "$@" demo/pages | tee /tmp/clone.out
    grep -q PASS /tmp/clone.out
}

# The image has the same bytes there, and no code of the server has read them.
is_one_sided() {
    status=$(FARFORK_RUN=/tmp/$1 "$farfork" far status --json)
    case $status in
        *'"transport": "rdma"'*'"one_sided": true'*) ;;
        *) echo "$status" && return 1 ;;
    esac
    FARFORK_RUN=/tmp/$1 "$farfork" far status
    for image in "$pool"/images/*; do
        cmp "$image" /tmp/"$1"/far/*/pool/images/"$(basename "$image")" || return 1
    done
}

touched() {
    clone touched --no-prefetch && is_one_sided touched
}

prefetched() {
    clone prefetched && is_one_sided prefetched
}

taken() {
    du -sk "$pool/images" | cut -f 1
}

# What the device pins for holes of the file is not the file's.
holes_stay() {
    echo "the image takes $(taken) KiB, and took $before KiB before it was served"
    [ "$(taken)" -eq "$before" ]
}

# With the server its windows go. What the clone has not fetched is an error that names the server.
killed() {
    mkfifo /tmp/child
    FARFORK_RUN=/tmp/killed timeout 60 "$farfork" restore --far "$address" --far-key /tmp/far.key --no-prefetch \
        --far-deadline-ms 5000 demo/pages </tmp/child >/tmp/killed.out 2>&1 3>&- &
    exec 4>/tmp/child
    echo t >&4
    soon touched /tmp/killed.out || return 1
    kill -9 "$server"
    echo >&4
    wait $! && return 1
    cat /tmp/killed.out
    ! grep -q PASS /tmp/killed.out && grep -q "$address" /tmp/killed.out
}

# A tmpfs with huge pages, which the device pins and reads in parts.
"$farfork" pool create "$pool" --size 256M
check 'no device' no_device
check 'a device' add_device
check doctor doctor
scene 'what the device refuses' /farfork/debug/deps/fabric rdma:: --test-threads 1
scene 'the suite' /farfork/debug/deps/transports rdma:: --test-threads 2
check 'an image' serve_image
check 'pages by touch' touched
check 'pages in advance' prefetched
check 'holes of the image stay' holes_stay
check 'a killed server' killed
