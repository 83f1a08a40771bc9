#!/usr/bin/env bash
# Runs Triton's perf_analyzer against a server on this machine, in all its ways of sending load, and shows its reports.
# Takes the length of one window of measurement in milliseconds (2000 unless told), and PUNCTUAL_BIN, the program to measure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup python perf-analyzer
PERF_ANALYZER_MS="${1:-2000}" exec .cache/venv/bin/python -m pytest -q -s tests/clients/test_perf_analyzer.py
