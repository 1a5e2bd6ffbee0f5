#!/usr/bin/env bash
# Creates .venv and build/models. Does nothing if they are up to date, and prints only failures. Needs
# Python 3.11. As root, installs Debian's venv module if it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
models=build/models
inputs=(setup/python.sh setup/requirements.lock setup/requirements-source.lock setup/models/*.py
    python/pyproject.toml)
log=build/setup-python.log

# Runs a step. Prints its output only if it fails.
step() {
    local what=$1
    shift
    if ! "$@" >"$log" 2>&1; then
        cat "$log" >&2
        echo "setup/python.sh: $what failed (see above)" >&2
        exit 1
    fi
}

is_python_311() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; }
has_venv() { "$1" -c 'import ensurepip, venv; ensurepip.version()' 2>/dev/null; }

# Prints each Python 3.11: Debian's, the one in PATH, pyenv's.
pythons() {
    local candidate
    for candidate in /usr/bin/python3.11 "$(command -v python3.11 || true)" \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.11*/bin/python3.11; do
        if [[ -x $candidate ]] && is_python_311 "$candidate"; then echo "$candidate"; fi
    done
}

# Prints the first Python 3.11 that can create virtual environments.
find_python() {
    local candidate
    for candidate in $(pythons); do
        if has_venv "$candidate"; then
            echo "$candidate"
            return
        fi
    done
}

install_venv() {
    if [[ -z $(pythons) ]]; then
        echo "setup/python.sh: no Python 3.11 found; install python3.11 and run this again" >&2
        exit 1
    fi
    step "apt-get update" apt-get -qq update
    step "installing python3-venv" env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq install --no-install-recommends python3-venv
}

make_venv() {
    local python
    [[ -n $(find_python) ]] || install_venv
    python=$(find_python)
    if [[ -z $python ]]; then
        echo "setup/python.sh: Python 3.11 cannot create a venv; install python3.11-venv" >&2
        exit 1
    fi
    rm -rf "$venv"
    step "creating $venv" "$python" -m venv "$venv"
}

# The lock is complete. --no-deps keeps out dependencies that it omits on purpose.
install_packages() {
    local pip=("$venv/bin/python" -m pip install --quiet --no-deps --disable-pip-version-check
        --root-user-action=ignore)
    step "installing setup/requirements.lock" "${pip[@]}" --require-hashes --only-binary :all: \
        -r setup/requirements.lock
    step "installing setup/requirements-source.lock" "${pip[@]}" --require-hashes \
        --no-binary :all: --no-build-isolation -r setup/requirements-source.lock
    step "installing the package farfork" "${pip[@]}" --no-build-isolation -e python
}

mkdir -p build
exec 9>build/setup-python.lock
flock 9

wanted=$(cat "${inputs[@]}" | sha256sum)
stamp=$venv/farfork-stamp
if [[ $(cat "$stamp" 2>/dev/null) == "$wanted" && -s $models/textgenrnn/model.onnx ]] \
    && "$venv/bin/python" -c 'import farfork' 2>/dev/null; then
    exit 0
fi

rm -f "$stamp"
is_python_311 "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1 || make_venv
install_packages
step "building the models of the sample functions" "$venv/bin/python" setup/models "$models"
echo "$wanted" >"$stamp"
