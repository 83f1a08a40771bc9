#!/usr/bin/env bash
# Runs every experiment of experiments/ and writes docs/experiments: a page with tables, and its plots. What was run before with
# the same sources isn't run again. With --all also the large sweeps, whose results are kept beside the page.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
commit="commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
git diff --quiet HEAD -- crates experiments 2>/dev/null || commit="$commit and changes"
exec target/release/punctual simulate experiments --page docs/experiments --cache target/experiments --commit "$commit" "$@"
