#!/usr/bin/env bash
# The page's tests drive a real Chromium: finds one, or installs it where that is allowed.
set -euo pipefail

for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then
        exit 0
    fi
done

if [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; then
    echo "Installing Chromium for the page's tests"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null
else
    echo "The page's tests need Chromium: sudo apt-get install chromium" >&2
    exit 1
fi
