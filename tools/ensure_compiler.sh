#!/usr/bin/env bash
# The CPU kernels are compiled at first use: finds a C++ compiler, or installs one where
# that is allowed. Without one Repartee still runs, slower.
set -euo pipefail

if command -v "${CXX:-g++}" >/dev/null; then
    exit 0
fi

if [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; then
    echo "Installing g++ for the CPU kernels"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends g++ libc6-dev >/dev/null
else
    echo "Without g++ the engine is several times slower: sudo apt-get install g++" >&2
fi
