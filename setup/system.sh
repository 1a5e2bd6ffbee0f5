#!/bin/bash
set -eu
# Installs missing Debian packages that farfork needs; with --tests also those for tests, and with
# --bench those for benchmarks.

packages=(build-essential git iproute2 libjemalloc2 libmimalloc2.0 python3 python3-venv runc)
if [ "${1:-}" = --tests ] || [ "${1:-}" = --bench ]; then
    # An emulated processor, to count cache misses.
    packages+=(qemu-user)
fi
if [ "${1:-}" = --bench ]; then
    # What objects in shared memory are compared with.
    packages+=(libboost-dev libtcmalloc-minimal4)
fi
if [ "${1:-}" = --tests ]; then
    # Runtimes whose processes are checkpointed in tests, in any version.
    packages+=(gcc-multilib musl-tools)
    command -v go >/dev/null || packages+=(golang-go)
    command -v node >/dev/null || packages+=(nodejs)
    command -v npm >/dev/null || packages+=(npm)
    command -v javac >/dev/null || packages+=(default-jdk-headless)
    command -v ruby >/dev/null || packages+=(ruby)
    # Servers to clone. redis-tools contains the server without a service.
    packages+=(redis-tools sqlite3)
    [ -x /usr/sbin/nginx ] || packages+=(nginx-light)
    [ -x /usr/lib/postgresql/15/bin/initdb ] || packages+=(postgresql-15)
    # A browser for tests of the dashboard.
    packages+=(chromium chromium-driver)
    # Guests with media that this machine lacks, and tools for them.
    if [ -n "${FARFORK_TEST_LONG:-}" ]; then
        packages+=(busybox-static cmake cpio debootstrap e2fsprogs ibverbs-providers kmod libclang-dev ndctl qemu-system-x86 xz-utils)
    fi
fi

is_installed() {
    [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

missing=()
for package in "${packages[@]}"; do
    is_installed "$package" || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "setup: this is not Debian; install by hand: ${missing[*]}" >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "setup: missing packages; run as root: apt-get install ${missing[*]}" >&2
    exit 1
fi

# Servers are installed as programs: they are not started, now or at boot.
policy=/usr/sbin/policy-rc.d
start_no_services() {
    [ ! -e "$policy" ] || return 0
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
}
is_missing() {
    [[ " ${missing[*]} " == *" $1 "* ]]
}
disable_services() {
    command -v systemctl >/dev/null || return 0
    ! is_missing nginx-light || systemctl --quiet disable nginx
    ! is_missing postgresql-15 || systemctl --quiet disable postgresql
}

echo "setup: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
start_no_services
if ! { apt-get -q=2 update && apt-get -q=2 install --no-install-recommends "${missing[@]}"; } >/dev/null
then
    echo "setup: cannot install ${missing[*]} (see above); is this machine online?" >&2
    exit 1
fi
disable_services
