#!/usr/bin/env bash
# Everything that must hold before a change lands: format, lints, documentation, Rust tests, tests with real clients.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$HOME/.cargo/bin:$PATH"

# One set of features in every step: what one has built, the next one uses. The solver of `punctual place` is part of it.
everything=(--workspace --features cli/placement,lab/placement)
export CMAKE_TOOLCHAIN_FILE="$PWD/scripts/quick-solver.cmake"

step() { printf '\n== %s (%ss)\n' "$1" "$SECONDS"; }

step "format"
cargo fmt --all --check

# Fetching takes minutes in which nothing is computed: it goes on beside the lints.
mkdir -p .cache
scripts/setup tests >.cache/setup.log 2>&1 &
setup=$!
trap 'kill "$setup" 2>/dev/null || true' EXIT
if ! cargo nextest --version >/dev/null 2>&1; then
  step "installing cargo-nextest"
  cargo install --locked --quiet cargo-nextest
fi

step "lints"
cargo clippy "${everything[@]}" --all-targets --quiet -- -D warnings
# The binary as `make serve` builds it, without the solver.
cargo clippy -p cli --quiet -- -D warnings

step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc "${everything[@]}" --no-deps --quiet

step "runtime, sample models, Python packages"
wait "$setup" || { cat .cache/setup.log; exit 1; }
trap - EXIT
cat .cache/setup.log

step "tests"
cargo nextest run "${everything[@]}" --cargo-quiet

step "real clients, scripts, licenses of dependencies"
# With --tests, features are those of the tests: without it half of the workspace would be compiled once more.
cargo build "${everything[@]}" --tests --bin punctual --quiet
.cache/venv/bin/python -m pytest -q tests

step "done"
