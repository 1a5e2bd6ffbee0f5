#!/bin/bash
set -eu
# Installs OpenWhisk's JavaScript client below build/, for tests. Does nothing if it is installed already.

cd "$(dirname "$0")/.."
source=tests/platform/openwhisk
place=build/openwhisk
cmp -s "$source/package-lock.json" "$place/installed" && exit 0

mkdir -p "$place"
cp "$source/package.json" "$source/package-lock.json" "$place"
log=$place/npm.log
if ! (cd "$place" && npm ci --no-audit --no-fund --ignore-scripts) >"$log" 2>&1; then
    cat "$log" >&2
    echo "setup/npm.sh: cannot install OpenWhisk's client (see above)" >&2
    exit 1
fi
cp "$source/package-lock.json" "$place/installed"
