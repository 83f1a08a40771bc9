#!/usr/bin/env bash
# Measures the figures that the project promises, on this machine: scripts/bench.sh [--quick] [part ...]
# `scripts/bench.sh --help` lists the parts; `report` writes docs/benchmarks.md from what was measured at this commit. Without a part: all of
# them but placement, which builds a solver first; then the report. With --quick runs are short, and the page is .cache/bench/quick.md.
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
case " $* " in *" placement "*) scripts/setup.sh solver ;; esac
[ -f "$HOME/.cargo/env" ] && source "$HOME/.cargo/env"
exec "$python" scripts/bench/main.py "$@"
