#!/usr/bin/env bash
# Runs every experiment of experiments/ and writes docs/experiments: a page with tables, and its plots.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec target/release/punctual simulate experiments --page docs/experiments
