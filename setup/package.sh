#!/usr/bin/env bash
# Builds a wheel and a Debian package below build/package. Both carry the release build of the program, and the
# libraries for objects in shared memory.
set -euo pipefail
cd "$(dirname "$0")/.."

out=$PWD/build/package
root=$out/root
python=.venv/bin/python
rm -rf "$out"
mkdir -p "$out"

# shellcheck disable=SC2046
cargo build --release --package farfork-cli --bin farfork $(FARFORK_RDMA=1 setup/features.sh)
cargo build --release --package farfork-objects --package farfork-malloc --lib
program=${CARGO_TARGET_DIR:-$PWD/target}/release/farfork
libraries=(libfarfork.so libfarfork_malloc.so)
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' python/pyproject.toml)
# The oldest C library that they run with.
glibc=$(objdump --dynamic-syms "$program" "${libraries[@]/#/${program%/*}/}" | grep -o 'GLIBC_2\.[0-9]*' | sort --version-sort --unique | tail -1)

echo "packaging: wheel for ${glibc/_/ } and later"
stripped=$out/farfork
strip --strip-debug -o "$stripped" "$program"
for library in "${libraries[@]}"; do
    strip --strip-debug -o "$out/$library" "${program%/*}/$library"
done
FARFORK_WHEEL_PROGRAM=$stripped FARFORK_WHEEL_LIBRARIES=$out/libfarfork.so:$out/libfarfork_malloc.so \
    FARFORK_WHEEL_PLATFORM="manylinux_2_${glibc#GLIBC_2.}_x86_64" \
    "$python" -m pip wheel --quiet --no-deps --no-build-isolation --disable-pip-version-check \
    --wheel-dir "$out" ./python

echo "packaging: Debian package"
install -D --mode 755 "$stripped" "$root/usr/bin/farfork"
"$stripped" generate "$root/usr/share"
gzip --best --no-name "$root"/usr/share/man/man1/*
modules=$root/usr/lib/python3/dist-packages
mkdir -p "$modules"
cp -r python/farfork python/snapshot_restore_py "$modules"
install --mode 644 --target-directory "$modules/farfork" "${libraries[@]/#/$out/}"
find "$modules" -name __pycache__ -prune -exec rm -r {} +
install -D --mode 644 packaging/farfork.service "$root/lib/systemd/system/farfork.service"
install -D --mode 644 LICENSE "$root/usr/share/doc/farfork/copyright"
mkdir "$root/DEBIAN"
sed "s/@VERSION@/$version/; s/@DEPENDS@/libc6 (>= ${glibc#GLIBC_})/" packaging/control >"$root/DEBIAN/control"
dpkg-deb --build --root-owner-group "$root" "$out/farfork_${version}_amd64.deb" >/dev/null

rm -rf "$root" "$stripped" "${libraries[@]/#/$out/}"
ls -l "$out"
