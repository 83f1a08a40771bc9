#!/usr/bin/env bash
# Measures this server beside others on this machine: scripts/compare.sh [--quick] [--only NAME,...] [--models mlp,resnet18]
# See `scripts/compare.sh --help`. Writes .cache/compare/results.json and docs/comparison.md. The server under test is
# PUNCTUAL_BIN, or target/release/punctual.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/venv.sh
scripts/setup-python.sh
scripts/setup-runtime.sh

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
if ! command -v wrk >/dev/null; then
  echo "installing wrk"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq wrk >/dev/null
fi
export PUNCTUAL_BINARY="${PUNCTUAL_BIN:-$PWD/target/release/punctual}"
# What the figures of docs/benchmarks.md are measured with serves here too.
export PYTHONPATH="$PWD/scripts/bench"
exec nice -n "${COMPARE_NICE:-0}" "$python" scripts/compare/main.py "$@"
