#!/usr/bin/env bash
# Everything that must hold before a change lands: format, lints, documentation, Rust tests, tests with real clients.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ -f "$HOME/.cargo/env" ] && source "$HOME/.cargo/env"

step() { printf '\n== %s (%ss)\n' "$1" "$SECONDS"; }

step "runtime, sample models, Python packages"
scripts/setup-tests.sh
if ! cargo nextest --version >/dev/null 2>&1; then
  step "installing cargo-nextest"
  cargo install --locked --quiet cargo-nextest
fi

step "format"
cargo fmt --all --check

step "lints"
cargo clippy --workspace --all-targets --quiet -- -D warnings

step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet

step "tests"
cargo nextest run --workspace --cargo-quiet

step "real clients"
cargo build -p cli --quiet
source scripts/venv.sh
"$python" -m pytest -q tests/clients

step "done"
