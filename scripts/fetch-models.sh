#!/usr/bin/env bash
# Fetches the sample models into the model repository (models/, or the folder that is given). Done already: quick.
set -euo pipefail
"$(dirname "${BASH_SOURCE[0]}")/setup-python.sh" models
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
exec "$python" "$root/scripts/fetch-models.py" "${1:-$root/models}"
