#!/usr/bin/env bash
# Measures this server beside others on this machine: scripts/compare.sh [--quick] [--only NAME,...] [--models mlp,resnet18]
# See `scripts/compare.sh --help`. Writes .cache/compare/results.json and docs/comparison.md. The server under test is
# PUNCTUAL_BIN, or target/release/punctual.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup python runtime wrk
export PUNCTUAL_BINARY="${PUNCTUAL_BIN:-$PWD/target/release/punctual}"
exec nice -n "${COMPARE_NICE:-0}" .cache/venv/bin/python scripts/measure.py compare "$@"
