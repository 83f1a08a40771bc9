#!/usr/bin/env bash
# Installs Python packages into .cache/venv: those of scripts/requirements.txt, or only the few that fetching the sample models
# needs, with the argument `models`. Done already: returns at once.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"

list="requirements${1:+-$1}.txt"
hash_of() { cat "$root/scripts/requirements-models.txt" "$root/scripts/$1" | sha256sum | cut -d' ' -f1; }
installed() { [ "$(cat "$cache/venv/$1.sha256" 2>/dev/null || true)" = "$(hash_of "$1")" ]; }
# All of them include those for the models.
if installed "$list" || installed requirements.txt; then
    exit 0
fi
echo "installing the Python packages of scripts/$list into .cache/venv"
"$python" -m pip install --quiet --disable-pip-version-check --only-binary :all: -r "$root/scripts/$list"
hash_of "$list" >"$cache/venv/$list.sha256"
