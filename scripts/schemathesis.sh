#!/usr/bin/env bash
# Sends the server for so many seconds (600 unless told) what its OpenAPI document allows and what it doesn't, and fails if an
# answer is a server error or not what the document says. The server is a build of this tree, on free ports of this machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup python schemathesis
SCHEMATHESIS_SECONDS="${1:-600}" exec .cache/venv/bin/python -m pytest -q -s tests/clients/test_openapi.py
