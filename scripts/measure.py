#!/usr/bin/env python3
"""Runs a program of the package `figures`: measure.py PROGRAM [ARGUMENT ...]

PROGRAM is bench, compare (both as scripts/bench.sh and scripts/compare.sh call them), soak (as make calls it), gpu (all of
docs/benchmarks-gpu.md, part by part), gpu.page (which writes it), or one of what these run: gpu.exec, gpu.precision, gpu.ready, gpu.reference, gpu.serve, gpu.auto_shares, gpu.live, gpu.ocr, gpu.widths; `measure.py PROGRAM --help` says more.
"""

import runpy
import sys

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    runpy.run_module(f"figures.{sys.argv.pop(1)}", run_name="__main__", alter_sys=True)
