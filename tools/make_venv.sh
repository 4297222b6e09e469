#!/usr/bin/env bash
# Makes a virtual environment from Python 3.11 or later: tools/make_venv.sh FOLDER
set -euo pipefail

folder=$1

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    local name
    for name in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
        if command -v "$name" >/dev/null && is_new_enough "$name"; then
            echo "$name"
            return
        fi
    done
    echo "Python 3.11 or later is needed: apt-get install python3 python3-venv" >&2
    return 1
}

python=$(find_python)

# Debian and Ubuntu keep ensurepip in a package of its own.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    if [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$version-venv" >/dev/null
    else
        echo "$python cannot make virtual environments: sudo apt-get install $version-venv" >&2
        exit 1
    fi
fi

"$python" -m venv "$folder"
