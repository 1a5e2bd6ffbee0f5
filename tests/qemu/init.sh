#!/bin/busybox sh
set -eu
# The first process of a guest: sets up what tests/qemu/run.sh has packed, and runs the scenes that the
# kernel's command line names: `scenes=media`, `scenes=profile`, `scenes=cxl`, `scenes=groups` or `scenes=rdma`.
/bin/busybox --install -s /bin
export PATH=/usr/bin:/usr/sbin:/bin:/sbin HOME=/root TERM=dumb

# Containers have roots that the kernel can turn about, which its first file system is not.
if [ -z "${moved:-}" ]; then
    mkdir /moved
    mount -t tmpfs -o size=60%,mode=755 root /moved
    for each in /*; do
        [ "$each" = /moved ] || cp -a "$each" /moved
    done
    moved=1 exec switch_root /moved /init
fi

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs tmp /dev/shm
mount -t cgroup2 cgroup /sys/fs/cgroup
ip link set lo up
while read -r module; do insmod "/modules/$module" || true; done </modules/order
echo "GUEST $(uname -r)"

# A file system on the persistent memory that is mapped directly, and far memory.
media() {
    mkdir -p /mnt/dax /mnt/far
    # Extents that begin at multiples of 2 MiB can be mapped by one entry of a page table each.
    ndctl create-namespace --force --reconfig=namespace0.0 --mode=fsdax >/dev/null &&
        mkfs.ext4 -q -b 4096 -E stride=512,stripe_width=512 /dev/pmem0 &&
        mount -t ext4 -o dax=always /dev/pmem0 /mnt/dax || echo "GUEST FAILED: no DAX file system"
    mount -t tmpfs -o huge=always,mpol=bind:1,size=900m far /mnt/far
}

# CXL memory as a node without processors, and a file system in it.
cxl_memory() {
    mkdir -p /mnt/far
    cxl create-region -t pmem -m -d decoder0.0 -w 1 -g 4096 mem0 >/dev/null &&
        ndctl create-namespace --force --mode=devdax --map=mem >/dev/null &&
        echo dax0.0 >/sys/bus/dax/drivers/device_dax/unbind &&
        echo dax0.0 >/sys/bus/dax/drivers/kmem/new_id &&
        [ "$(cat /sys/devices/system/node/has_memory)" = 0-1 ] &&
        [ "$(cat /sys/devices/system/node/has_cpu)" = 0 ] &&
        mount -t tmpfs -o mpol=bind:1,size=700m far /mnt/far || echo "GUEST FAILED: no CXL memory"
}

case ${scenes:?} in
    media) media ;;
    cxl) cxl_memory ;;
esac
cd /tmp
/usr/bin/sh "/${scenes:?}.sh" 2>&1 | grep -v '^SKIPPED [0-9]* tests' || true
echo "GUEST DONE"
poweroff -f
