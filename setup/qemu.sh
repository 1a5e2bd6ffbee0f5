#!/bin/bash
set -euo pipefail
# Downloads Debian kernels for tests/qemu, one for each named suite, and unpacks them below
# build/qemu/SUITE: vmlinuz, modules/*.ko, and modules/order, the order in which modules are loaded.
# Nothing is installed, and apt's own lists and sources stay unchanged. Does nothing for kernels that
# are unpacked already. Exits with 3 and the reason if a kernel is not available.

cd "$(dirname "$0")/.."
readonly here=$PWD/build/qemu
readonly archive=http://deb.debian.org/debian
readonly keys=/usr/share/keyrings/debian-archive-keyring.gpg
# For persistent memory and file systems with DAX; far memory by RDMA on a network device that loops back; CXL memory.
readonly modules=(
    nfit nd_pmem ext4 xfs unix_diag dummy crc32_generic rdma_rxe ib_uverbs
    cxl_acpi cxl_pci cxl_port cxl_mem cxl_pmem dax_cxl dax_pmem device_dax kmem
)

unavailable() {
    echo "setup: $*" >&2
    exit 3
}

# Options for apt with separate lists.
readonly apt_state=$here/apt
apt_options=(
    -o "Dir::Etc::SourceList=$apt_state/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$apt_state/lists" -o "Dir::Cache=$apt_state/cache"
    -o APT::Sandbox::User=root -o Acquire::Languages=none
)

update_lists() {
    mkdir -p "$apt_state/lists/partial" "$apt_state/cache/archives/partial"
    local suite
    for suite in "$@"; do
        echo "deb [signed-by=$keys] $archive $suite main"
    done >"$apt_state/sources.list"
    timeout 300 apt-get "${apt_options[@]}" -q=2 update >/dev/null 2>&1 ||
        unavailable "cannot download the list of packages from $archive; is this machine online?"
}

# The package of a suite's newest kernel, from the metapackage.
newest() {
    apt-cache "${apt_options[@]}" show --no-all-versions "linux-image-amd64/$1" 2>/dev/null |
        sed -n 's/^Depends: .*\(linux-image-[^ ,]*\).*/\1/p' | head -1
}

unpack() {
    local suite=$1 package
    package=$(newest "$suite")
    [ -n "$package" ] || unavailable "$suite has no linux-image-amd64"
    echo "setup: fetching $package"
    local work
    work=$(mktemp -d -p "$here")
    # Since Linux 6.19 the kernel and its modules are separate packages.
    local part deb
    for part in image binary modules; do
        part=${package/linux-image/linux-$part}
        apt-cache "${apt_options[@]}" show "$part" >/dev/null 2>&1 || continue
        (cd "$work" && timeout 600 apt-get "${apt_options[@]}" -q=2 download "$part") ||
            unavailable "cannot download $part"
    done
    for deb in "$work"/*.deb; do
        dpkg-deb -x "$deb" "$work/root"
    done
    # The directory of modules differs between releases.
    local base=$work/root
    [ -d "$base/lib/modules" ] || base=$work/root/usr
    local release
    release=$(basename "$base"/lib/modules/*)
    depmod -b "$base" "$release" 2>/dev/null
    mkdir -p "$work/kernel/modules"
    find "$work/root" -name 'vmlinuz*' -exec cp {} "$work/kernel/vmlinuz" \; -quit
    [ -s "$work/kernel/vmlinuz" ] || unavailable "$package contains no kernel"
    local module file name
    for module in "${modules[@]}"; do
        modprobe -C /dev/null -d "$base" -S "$release" --show-depends "$module" |
            sed -n 's/^insmod \([^ ]*\).*/\1/p'
    done | while read -r file; do
        name=$(basename "$file" .xz)
        [ -e "$work/kernel/modules/$name" ] && continue
        case $file in
            *.xz) xz --decompress --stdout "$file" >"$work/kernel/modules/$name" ;;
            *) cp "$file" "$work/kernel/modules/$name" ;;
        esac
        echo "$name" >>"$work/kernel/modules/order"
    done
    echo "${modules[*]}" >"$work/kernel/modules/wanted"
    rm -rf "${here:?}/$suite"
    mv "$work/kernel" "$here/$suite"
    rm -rf "$work"
}

mkdir -p "$here"
missing=()
for suite in "$@"; do
    [ "$(cat "$here/$suite/modules/wanted" 2>/dev/null)" = "${modules[*]}" ] || missing+=("$suite")
done
[ ${#missing[@]} -gt 0 ] || exit 0
command -v apt-get >/dev/null || unavailable "this is not Debian: no kernels for guests"
update_lists "${missing[@]}"
for suite in "${missing[@]}"; do
    unpack "$suite"
done
