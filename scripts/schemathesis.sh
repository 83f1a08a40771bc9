#!/usr/bin/env bash
# Sends the server for so many seconds (600 unless told) what its OpenAPI document allows and what it doesn't, and fails if an
# answer is a server error or not what the document says. The server is a build of this tree, on free ports of this machine.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/venv.sh"
"$root/scripts/setup-schemathesis.sh"
cd "$root"
SCHEMATHESIS_SECONDS="${1:-600}" exec "$python" -m pytest -q -s tests/clients/test_openapi.py
