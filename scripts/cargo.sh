#!/usr/bin/env bash
# Cargo, also right after it was installed, when this shell's PATH doesn't know of it yet.
set -euo pipefail
[ -f "$HOME/.cargo/env" ] && source "$HOME/.cargo/env"
exec cargo "$@"
