#!/usr/bin/env bash
# Brings schemathesis into an environment of its own, .cache/schemathesis. Done already: returns at once.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

version=4.32.5
home="$cache/schemathesis"
if [ "$("$home/bin/schemathesis" --version 2>/dev/null)" != "schemathesis, version $version" ]; then
    echo "installing schemathesis into .cache/schemathesis"
    rm -rf "$home"
    python3 -m venv "$home"
    "$home/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: "schemathesis==$version"
fi
