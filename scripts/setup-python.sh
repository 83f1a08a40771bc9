#!/usr/bin/env bash
# Installs the Python packages of scripts/requirements.txt into .cache/venv. Done already: returns at once.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

wanted="$(sha256sum "$root/scripts/requirements.txt" | cut -d' ' -f1)"
stamp="$cache/venv/requirements.sha256"
if [ "$(cat "$stamp" 2>/dev/null || true)" = "$wanted" ]; then
    exit 0
fi
echo "installing Python packages for the model scripts and tests into .cache/venv"
"$python" -m pip install --quiet --disable-pip-version-check --only-binary :all: -r "$root/scripts/requirements.txt"
echo "$wanted" >"$stamp"
