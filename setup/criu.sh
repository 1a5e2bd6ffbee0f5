#!/usr/bin/env bash
# Unpacks below build/criu the CRIU of a newer Debian with the libraries it wants, for benchmarks
# to compare with; the system stays as it is. Does nothing where a CRIU from version 4 on is
# installed or was unpacked before. Fails with the reason where none can be had.
set -euo pipefail
cd "$(dirname "$0")/.."

suite=trixie # the first Debian that carries a CRIU from version 4 on
place=$PWD/build/criu
log=$PWD/build/setup-criu.log

fail() {
    echo "setup/criu.sh: no CRIU to compare with: $1" >&2
    exit 1
}

if criu --version 2>/dev/null | grep -Eq '^Version: ([4-9]|[1-9][0-9])' || [ -e "$place/command" ]
then
    exit 0
fi
[ "$(uname -m)" = x86_64 ] || fail "only set up for x86_64"
command -v apt-get >/dev/null || fail "this is not Debian; install CRIU 4 or later by hand"

# The mirror that this machine's own packages come from.
read -r mirror < <(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' \
    'Label: Debian') || fail "apt knows no mirror of Debian"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e "$keys" ] || fail "$keys is missing (Debian: debian-archive-keyring)"

rm -rf "$place"
mkdir -p "$place"/apt/{lists,archives}/partial "$place/root"
echo "deb [signed-by=$keys] $mirror $suite main" >"$place/apt/sources.list"
: >"$place/apt/status" # nothing counts as installed, so all libraries come along
cat >"$place/apt/apt.conf" <<END
Dir::Etc::sourcelist "$place/apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$place/apt/lists";
Dir::State::status "$place/apt/status";
Dir::Cache "$place/apt";
APT::Sandbox::User "root";
END
export APT_CONFIG=$place/apt/apt.conf
echo "setup: fetching the CRIU of Debian $suite"
{
    apt-get -q=2 update
    apt-get -q=2 --yes --no-install-recommends --download-only install criu
    for package in "$place"/apt/archives/*.deb; do
        dpkg-deb --extract "$package" "$place/root"
    done
} >"$log" 2>&1 || fail "fetching its packages failed, see $log"
rm -rf "$place/apt"

# The words that start it, one a line: its own loader, its own libraries.
libraries=$place/root/usr/lib/x86_64-linux-gnu
words=("$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" "$place/root/usr/sbin/criu")
"${words[@]}" --version >>"$log" 2>&1 || fail "it does not start, see $log"
printf '%s\n' "${words[@]}" >"$place/command"
