#!/bin/bash
set -eu
# Installs the Debian packages that farfork needs and that are missing.
# With --tests also what only tests need, with --bench what only benchmarks do.

packages=(build-essential git iproute2 libjemalloc2 libmimalloc2.0 python3 python3-venv runc)
if [ "${1:-}" = --tests ] || [ "${1:-}" = --bench ]; then
    # An emulated processor, whose cache misses can be counted.
    packages+=(qemu-user)
fi
if [ "${1:-}" = --tests ]; then
    # Runtimes whose processes are checkpointed in tests: any version will do.
    packages+=(gcc-multilib musl-tools)
    command -v go >/dev/null || packages+=(golang-go)
    command -v node >/dev/null || packages+=(nodejs)
    command -v npm >/dev/null || packages+=(npm)
    command -v javac >/dev/null || packages+=(default-jdk-headless)
    command -v ruby >/dev/null || packages+=(ruby)
    # Servers to clone. The first package holds one without making it a service.
    packages+=(redis-tools sqlite3)
    [ -x /usr/sbin/nginx ] || packages+=(nginx-light)
    [ -x /usr/lib/postgresql/15/bin/initdb ] || packages+=(postgresql-15)
    # A browser that looks at the dashboard.
    packages+=(chromium chromium-driver)
    # Guests with media that this machine lacks, and what is packed for them.
    if [ -n "${FARFORK_TEST_LONG:-}" ]; then
        packages+=(busybox-static cpio e2fsprogs kmod ndctl qemu-system-x86 xz-utils)
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

# Servers are installed as programs: none is started, now or when the machine starts.
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
    echo "setup: could not install ${missing[*]}; is this machine online?" >&2
    echo "setup: apt-get's own words are above; farfork needs these packages" >&2
    exit 1
fi
disable_services
