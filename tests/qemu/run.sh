#!/bin/bash
set -euo pipefail
# Tests farfork with hardware and kernels that this machine lacks, in guests of QEMU with Debian kernels:
# `media` has persistent memory with a DAX file system, and a NUMA node without processors; `profile` has only that node;
# `cxl` has CXL memory as such a node, and runs only if it is named, since each access to that is a call of the device: its scenes
# take a quiet machine. `groups` has only cgroup v2; `rdma` has a device that the kernel emulates. Guests are
# emulated (TCG), so that this works on any machine. It takes minutes. The tests are in media.sh, profile.sh, cxl.sh, groups.sh and rdma.sh.
# $FARFORK_QEMU_SCENES names some of them, and the arguments name the suites whose newest kernels are used. $FARFORK_QEMU_ONLY is a word:
# in `media` and `cxl`, only scenes run whose names contain it. $FARFORK_QEMU_SCENE_SECONDS is how long each may take there: more on
# a machine that others use, too.
#
# Needs root, and builds of farfork and of the tests `programs` and `faults` (cargo build, cargo test
# --no-run); `groups` also needs runc and the Python environment, `profile` that environment, `rdma` CMake, libclang and the library for devices. If something is missing, the tests are
# skipped with the reason.

cd "$(dirname "$0")/../.."
readonly here=$PWD
suites=("$@")
[ $# -gt 0 ] || suites=(bookworm-backports)
readonly target=${CARGO_TARGET_DIR:-$here/target}
readonly guest_seconds=${FARFORK_QEMU_SECONDS:-1800}
read -r -a scenes <<<"${FARFORK_QEMU_SCENES:-media profile groups rdma}"

skip() {
    echo "SKIPPED: tests in QEMU: $*"
    exit 0
}

for tool in qemu-system-x86_64 busybox cpio depmod ndctl mkfs.ext4 xz; do
    command -v "$tool" >/dev/null || skip "$tool is not installed: setup/system.sh --tests, with FARFORK_TEST_LONG=1, does"
done
status=0
setup/qemu.sh "${suites[@]}" || status=$?
[ "$status" -ne 3 ] || skip "there is no kernel for the guests"
[ "$status" -eq 0 ] || exit "$status"

readonly work=$(mktemp -d -p build/qemu)
trap 'rm -rf "$here/$work"' EXIT

# The newest builds of programs with tests, which cargo's options select. The whole workspace is named with all its features, as in
# setup/test.sh: otherwise crates would be compiled again.
read -r -a features <<<"$(FARFORK_RDMA=1 setup/features.sh)"
built() {
    cargo test --quiet --workspace "${features[@]}" --no-run "$@" --message-format=json |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'
}

# Puts a program with its libraries where the guest has them, under its own path or another.
put() {
    local library
    install -D "$1" "$work/root${2:-$1}"
    while read -r library; do
        [ -e "$work/root$library" ] || install -D "$library" "$work/root$library"
    done < <(ldd "$1" 2>/dev/null | grep -o '/[^ ]*' || true)
}

put_stripped() {
    put "$1" "$2"
    objcopy --strip-debug "$1" "$work/root$2"
}

# DIRECTORY OPTIONS-OF-TAR...: copies it to the same place in the guest, with what Python's modules in it need.
put_tree() {
    local module
    install -d "$work/root$1"
    tar --create --directory "$1" "${@:2}" . | tar --extract --directory "$work/root$1"
    while read -r module; do put "$module"; done < <(find "$1" -name '*.so' -path '*lib-dynload*')
}

# What media.sh, cxl.sh, groups.sh and rdma.sh run.
readonly subjects=(
    brk_grow cow_file_private dontneed_after_munlock fd_locks fork_after mprotect_patterns mremap_grow remap_parts steady
    tcp_listening timers two_mib_edges untouched watcher
)

# What every guest has.
pack_base() {
    local name
    mkdir -p "$work/root"/{dev,proc,sys,tmp,root,run,mnt,farfork}
    put "$(command -v busybox)" /bin/busybox
    # The shell of busybox would run its own programs instead of these.
    put "$(command -v sh)" /usr/bin/sh
    for name in ndctl mkfs.ext4 unshare timeout ip; do
        put "$(command -v "$name")"
    done
    put_stripped "$target/debug/farfork" /farfork/debug/farfork
    install tests/qemu/init.sh "$work/root/init"
    install tests/qemu/{media,profile,cxl,groups,rdma}.sh tests/qemu/profile.py "$work/root"
}

# What checks itself, for all guests but `rdma`.
pack_programs() {
    local name programs faults
    [ ! -e "$work/root/farfork/debug/deps/programs" ] || return 0
    programs=$(built --test programs | tail -1)
    faults=$(built --test faults | tail -1)
    # They are built when they are first run.
    for name in "${subjects[@]}"; do
        "$programs" "plain::$name" --exact --quiet >/dev/null
    done
    put_stripped "$programs" /farfork/debug/deps/programs
    put_stripped "$faults" /farfork/debug/deps/faults
    # Their sources stay outside: a program is built anew if these are newer.
    for name in "${subjects[@]}"; do
        put "$target/programs/$name" "/farfork/programs/$name"
    done
}

# What makes containers, and Python with farfork's package and pytest, and tests of the platform.
pack_platform() {
    local name
    for name in runc setpriv nsenter prlimit hostname mount umount; do
        put "$(command -v "$name")"
    done
    pack_python {_pytest,iniconfig,packaging,pluggy,pluggy-*.dist-info,py.py,pygments,pytest}
    cp -r python/{snapshot_restore_py,tests} "$work/root/farfork/python"
    install -d "$work/root/farfork/tests"
    cp -r tests/platform "$work/root/farfork/tests"
    cp pytest.ini "$work/root/farfork"
}

# Python with farfork's package and the libraries of a function, and that function.
pack_profile() {
    pack_python {igraph,igraph.libs,texttable.py}
    cp -r functions/pagerank "$work/root/farfork/pagerank"
}

# PACKAGE...: Python with farfork's package and these.
pack_python() {
    local python=.venv/bin/python interpreter stdlib packages library
    interpreter=$(readlink -f "$python")
    stdlib=$("$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
    put "$interpreter"
    ln -sf "$interpreter" "$work/root/usr/bin/python3"
    put_tree "$stdlib" --exclude=test --exclude=idlelib --exclude=lib2to3 --exclude='config-*' \
        --exclude=site-packages --exclude=dist-packages --exclude=ensurepip
    packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    install -d "$work/root/farfork/python"
    # Names may be patterns.
    (cd "$packages" && cp -r $* "$here/$work/root/farfork/python")
    cp -r python/farfork "$work/root/farfork/python"
    while read -r library; do put "$library"; done < <(cd "$packages" && find $* -name '*.so' -printf "$packages/%p\n")
}

# The library for devices of RDMA; empty if there is none.
verbs() {
    ldconfig -p | sed -n 's/.* => \(.*\/libibverbs\.so\.1\)$/\1/p' | head -1
}

# The command and the suites with reads by RDMA, and the library with the driver of the emulated device.
pack_rdma() {
    local library program
    # With a test: without one, cargo leaves out features that tests need, and compiles crates again.
    cargo build --quiet --workspace "${features[@]}" --bin farfork --test far
    put_stripped "$target/debug/farfork" /farfork/debug/farfork
    while read -r program; do
        case $(basename "$program") in
            farfork_fabric-*) put_stripped "$program" /farfork/debug/deps/fabric ;;
            it-*) put_stripped "$program" /farfork/debug/deps/transports ;;
        esac
    done < <(cargo test --quiet --package farfork-fabric --features rdma --no-run --message-format=json |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
    # No test of `programs` builds it.
    mkdir -p "$work/root/farfork/programs"
    cc -D_GNU_SOURCE -O1 -g tests/programs/far_pages.c -o "$work/root/farfork/programs/far_pages"
    library=$(verbs)
    put "$library"
    # It looks for drivers below /usr, which is a directory of its own in the guest.
    put "$(realpath "$(dirname "$library")")"/libibverbs/librxe-rdmav*.so
    install -D /etc/libibverbs.d/rxe.driver "$work/root/etc/libibverbs.d/rxe.driver"
    put "$(command -v rdma)"
}

# Hardware and kernel command line of a guest.
hardware() {
    processor=max
    case $1 in
        # Two nodes, the second without processors, and 1 GiB of persistent memory.
        media)
            options=(
                -machine "q35,nvdimm=on,accel=tcg" -m "3G,slots=4,maxmem=8G"
                -object memory-backend-ram,id=near,size=2G -numa node,cpus=0-1,memdev=near
                -object memory-backend-ram,id=far,size=1G -numa node,memdev=far
                -object memory-backend-ram,id=persistent,size=1G
                -device nvdimm,id=nvdimm,memdev=persistent,node=0
            )
            words=
            ;;
        profile)
            options=(
                -machine "q35,accel=tcg" -m 3G
                -object memory-backend-ram,id=near,size=2G -numa node,cpus=0-1,memdev=near
                -object memory-backend-ram,id=far,size=1G -numa node,memdev=far
            )
            words=
            ;;
        # One node, and CXL memory that becomes the second. The kernel adds such memory only to what it takes for a real machine,
        # and this version of the device reports no errors, which the kernel would wait for as their owner. Each access is a call of the
        # device: by words, not by the bytes of string instructions.
        cxl)
            options=(
                -machine "q35,cxl=on,accel=tcg" -m "3G,slots=4,maxmem=8G"
                -object memory-backend-ram,id=far,share=on,size=1G
                -object memory-backend-ram,id=labels,share=on,size=1M
                -device pxb-cxl,bus_nr=12,bus=pcie.0,id=bridge
                -device cxl-rp,port=0,bus=bridge,id=root_port,chassis=0,slot=2
                -device cxl-type3,bus=root_port,memdev=far,lsa=labels,id=memory
                -M cxl-fmw.0.targets.0=bridge,cxl-fmw.0.size=4G
            )
            processor=max,-hypervisor,-erms,-fsrm
            words=pcie_ports=compat
            ;;
        groups)
            options=(-machine "q35,accel=tcg" -m 4G)
            words=cgroup_no_v1=all
            ;;
        rdma)
            options=(-machine "q35,accel=tcg" -m 3G)
            words=
            ;;
    esac
}

guest() {
    local suite=$1 show=$2 log=build/qemu/$1-$2.log options words processor
    hardware "$show"
    cp -r "build/qemu/$suite/modules" "$work/root/modules"
    (cd "$work/root" && find . | cpio --quiet --create --format=newc) >"$work/root.cpio"
    rm -rf "$work/root/modules"
    timeout --kill-after=10 "$guest_seconds" qemu-system-x86_64 "${options[@]}" -cpu "$processor" -smp 2 \
        -kernel "build/qemu/$suite/vmlinuz" -initrd "$work/root.cpio" \
        -append "console=ttyS0 quiet panic=-1 no_timer_check rdinit=/init scenes=$show only=${FARFORK_QEMU_ONLY:-} seconds=${FARFORK_QEMU_SCENE_SECONDS:-} $words" \
        -display none -serial stdio -monitor none -no-reboot -net none </dev/null |
        stdbuf -oL tr -d '\r' | tee "$log" || true
    grep -q '^GUEST DONE' "$log" ||
        { echo "FAILED: the guest for $show with the kernel of $suite did not end"; return 1; }
    ! grep -a -E '^(SCENE|GUEST) FAILED' "$log"
}

can_run() {
    case $1 in
        cxl) can_run_cxl ;;
        rdma) can_run_rdma ;;
        groups) can_run_groups ;;
        profile) can_run_profile ;;
    esac
}

# Not part of the question whether it can run: bash goes on after failed commands there.
pack() {
    case $1 in
        media) pack_programs ;;
        cxl)
            put "$(command -v cxl)"
            pack_programs
            ;;
        rdma) pack_rdma ;;
        groups)
            pack_platform
            pack_programs
            ;;
        profile) pack_profile ;;
    esac
}

can_run_cxl() {
    if ! command -v cxl >/dev/null || ! qemu-system-x86_64 -device help | grep -q '"cxl-type3"'; then
        echo "SKIPPED: tests of CXL memory in QEMU: they need its device cxl-type3, and the command cxl"
        return 1
    fi
}

can_run_rdma() {
    if [ ${#features[@]} -eq 0 ] || [ -z "$(verbs)" ] || ! command -v rdma >/dev/null ||
        [ ! -e /etc/libibverbs.d/rxe.driver ]; then
        echo "SKIPPED: tests of RDMA in QEMU: they need CMake, libclang, libibverbs1, ibverbs-providers and rdma"
        return 1
    fi
}

can_run_profile() {
    if [ ! -x .venv/bin/python ]; then
        echo "SKIPPED: profiles in QEMU: they need .venv, which setup/all.sh makes"
        return 1
    fi
}

can_run_groups() {
    if ! command -v runc >/dev/null || [ ! -x .venv/bin/python ]; then
        echo "SKIPPED: tests of cgroup v2 in QEMU: they need runc and .venv, which setup/all.sh makes"
        return 1
    fi
}

pack_base
failed=0
for show in "${scenes[@]}"; do
    can_run "$show" || continue
    pack "$show"
    for suite in "${suites[@]}"; do
        echo "=== guest for $show with the kernel of $suite"
        guest "$suite" "$show" || failed=1
    done
done
exit "$failed"
