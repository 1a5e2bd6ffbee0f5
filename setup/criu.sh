#!/usr/bin/env bash
# Unpacks the CRIU of a newer Debian, with its libraries, below build/criu, for comparisons in
# benchmarks. Nothing is installed. Does nothing if CRIU 4 or later is installed or unpacked already.
# Fails with the reason if none is available.
set -euo pipefail
cd "$(dirname "$0")/.."

suite=trixie # the first Debian with CRIU 4
place=$PWD/build/criu
log=$PWD/build/setup-criu.log

fail() {
    echo "setup/criu.sh: cannot get a CRIU: $1" >&2
    exit 1
}

if criu --version 2>/dev/null | grep -Eq '^Version: ([4-9]|[1-9][0-9])' || [ -e "$place/command" ]
then
    exit 0
fi
[ "$(uname -m)" = x86_64 ] || fail "it is only available for x86_64"
command -v apt-get >/dev/null || fail "this is not Debian; install CRIU 4 or later by hand"

# The mirror of this machine's own packages.
read -r mirror < <(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' \
    'Label: Debian') || fail "apt has no mirror of Debian"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e "$keys" ] || fail "$keys is missing (Debian: debian-archive-keyring)"

rm -rf "$place"
mkdir -p "$place"/apt/{lists,archives}/partial "$place/root"
echo "deb [signed-by=$keys] $mirror $suite main" >"$place/apt/sources.list"
: >"$place/apt/status" # nothing counts as installed, so that all libraries are downloaded
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
} >"$log" 2>&1 || fail "its packages cannot be downloaded, see $log"
rm -rf "$place/apt"

# The command that starts it, one word a line: with its own loader and libraries.
libraries=$place/root/usr/lib/x86_64-linux-gnu
words=("$libraries/ld-linux-x86-64.so.2" --library-path "$libraries" "$place/root/usr/sbin/criu")
"${words[@]}" --version >>"$log" 2>&1 || fail "it does not start, see $log"
printf '%s\n' "${words[@]}" >"$place/command"
