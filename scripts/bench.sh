#!/usr/bin/env bash
# Measures the figures that the project promises, on this machine: scripts/bench.sh [--quick] [part ...]
# `scripts/bench.sh --help` lists the parts; `report` writes docs/benchmarks.md from what was measured at this commit, or, where
# nothing was, into the page which of its sections are older than the code. Without a part: all of them but placement, which
# builds a solver first, apart and ocr; then the report. With --quick runs are short, and the page is .cache/bench/quick.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup python runtime wrk
case " $* " in *" placement "*) scripts/setup solver ;; esac
case " $* " in *" ocr "*) scripts/setup ocr ;; esac
case " $* " in "  " | " --quick " | *" models "*) scripts/setup strangers ;; esac
PATH="$HOME/.cargo/bin:$PATH" exec .cache/venv/bin/python scripts/measure.py bench "$@"
