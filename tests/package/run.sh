#!/usr/bin/env bash
# Builds the packages and tries them where nothing of farfork is: the wheel in a new virtual environment, the
# Debian package in a new Debian root. Part of `make test-long`.
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() {
    echo "tests/package/run.sh: $1" >&2
    exit 1
}
place=
serving=
end() {
    [ -z "$serving" ] || kill "$serving" 2>/dev/null || true
    wait
    for mount in root/proc pool; do
        [ -z "$place" ] || umount --recursive --lazy "$place/$mount" 2>/dev/null || true
    done
    [ -z "$place" ] || rm -rf --one-file-system "$place"
}
trap end EXIT
# Users of functions pass it.
place=$(mktemp -d /run/farfork-package-XXXXXX)
chmod 711 "$place"

setup/package.sh
wheel=$(ls build/package/*.whl)
deb=$(ls build/package/*.deb)

echo "=== the wheel, in a virtual environment"
/usr/bin/python3.11 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --no-index --disable-pip-version-check "$wheel"
cd "$place"
venv/bin/python -c 'import farfork, snapshot_restore_py' || fail "the package cannot be imported"
export FARFORK_RUN=$place/run FARFORK_POOL=$place/pool
venv/bin/farfork region create region --size 1M
venv/bin/python -c 'from farfork import objects
box = objects.attach("region").mailbox("box")
box.send(b"x")
assert box.receive() == b"x"' || fail "the package has no working libfarfork.so"
malloc=$(echo "$place"/venv/lib/python3*/site-packages/farfork/libfarfork_malloc.so)
said=$(LD_PRELOAD=$malloc venv/bin/python -c 'print("hello")' 2>&1) || true
[ "$said" = hello ] || fail "libfarfork_malloc.so of the wheel does not work: $said"
venv/bin/farfork pool create "$FARFORK_POOL" --size 512M
mkdir -m 711 state
venv/bin/farfork serve --state state --listen 127.0.0.1:0 --nodes 1 --node-memory 1G >said 2>log </dev/null &
serving=$!
for _ in $(seq 100); do
    grep -q http said && break
    sleep 0.2
done
FARFORK_URL=$(cat said)
[ -n "$FARFORK_URL" ] || fail "farfork serve does not start: $(tail log)"
FARFORK_KEY=$(cat state/guest.key)
export FARFORK_URL FARFORK_KEY
echo 'def main(args): import sys; return {"hello": args.get("name"), "python": sys.executable}' >hello.py
venv/bin/farfork deploy hello.py
answer=$(venv/bin/farfork invoke hello --param name Ada)
echo "$answer"
[[ $answer == *'"Ada"'* ]] || fail "the function answers $answer"
[[ $answer == *"$place/venv/"* ]] || fail "the function runs in another Python: $answer"
kill "$serving"
wait "$serving" || fail "farfork serve ends with $?"
serving=
venv/bin/farfork pool destroy "$FARFORK_POOL"
cd - >/dev/null

echo "=== the Debian package, in a new Debian root"
command -v debootstrap >/dev/null || fail "debootstrap is missing (setup/system.sh --tests installs it)"
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1)
debootstrap --variant=minbase bookworm "$place/root" "$mirror" >"$place/debootstrap.log" 2>&1 ||
    fail "debootstrap fails: $(tail -3 "$place/debootstrap.log")"
cp "$deb" "$place/root/farfork.deb"
cp /etc/resolv.conf "$place/root/etc/" 2>/dev/null || true
cp -r /etc/apt/apt.conf.d/. "$place/root/etc/apt/apt.conf.d/"
cp /etc/apt/sources.list "$place/root/etc/apt/" 2>/dev/null || true
mount -t proc proc "$place/root/proc"
inside() { chroot "$place/root" /usr/bin/env DEBIAN_FRONTEND=noninteractive "$@"; }
inside apt-get -qq update
inside apt-get -qq --yes --no-install-recommends install /farfork.deb >/dev/null 2>&1 ||
    fail "apt cannot install the package"
inside farfork --version
inside python3 -c 'import farfork, snapshot_restore_py'
said=$(inside LD_PRELOAD=/usr/lib/python3/dist-packages/farfork/libfarfork_malloc.so python3 -c 'print("hello")' 2>&1) || true
[ "$said" = hello ] || fail "libfarfork_malloc.so of the Debian package does not work: $said"
inside farfork doctor --json >"$place/doctor" || true
grep -q '"' "$place/doctor" || fail "farfork doctor prints nothing"
for file in /usr/share/man/man1/farfork.1.gz /usr/share/bash-completion/completions/farfork \
    /lib/systemd/system/farfork.service; do
    [ -e "$place/root$file" ] || fail "$file is missing"
done
inside apt-get -qq --yes remove farfork >/dev/null 2>&1
[ ! -e "$place/root/usr/bin/farfork" ] || fail "the package leaves its program"
[ ! -e "$place/root/usr/lib/python3/dist-packages/farfork" ] || fail "the package leaves its modules"
echo "=== both packages work"
