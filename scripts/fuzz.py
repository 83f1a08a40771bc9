#!/usr/bin/env python3
"""Runs libFuzzer on every parser, or on those that are named.

    scripts/fuzz.py [--minutes 20] [--jobs 2] [--page docs/fuzzing.md] [TARGET ...]

What libFuzzer learns is kept in .cache/fuzz, from which the next run goes on. Bytes that break a promise are written to .cache/fuzz/found: mend the parser, and put them into crates/fuzz/corpus/TARGET under
a name that says what they did. FUZZ_BINARY names a binary that is built already.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SEEDS = ROOT / "crates" / "fuzz" / "corpus"
KEPT = ROOT / ".cache" / "fuzz"
PLATFORM = "x86_64-unknown-linux-gnu" if os.uname().machine == "x86_64" else "aarch64-unknown-linux-gnu"
# Counters at every edge, and what comparisons compare: what libFuzzer learns from. All of these are options of LLVM that a stable compiler passes on.
COVERAGE = "-Cpasses=sancov-module " + " ".join(
    f"-Cllvm-args=-sanitizer-coverage-{option}" for option in ("level=4", "inline-8bit-counters", "pc-table", "trace-compares")
)
# Found more often than this, a target isn't run on: the first ones must be mended.
MOST_FOUND = 10


def built():
    """The binary, built if nobody names one."""
    if named := os.environ.get("FUZZ_BINARY"):
        return pathlib.Path(named)
    folder = ROOT / "target" / "fuzzing"
    flags = {**os.environ, "RUSTFLAGS": COVERAGE, "CARGO_TARGET_DIR": str(folder)}
    subprocess.run(["cargo", "build", "--profile", "fuzz", "--target", PLATFORM, "-p", "fuzz", "--features", "libfuzzer", "--bin", "fuzz"], cwd=ROOT, env=flags, check=True)
    return folder / PLATFORM / "fuzz" / "fuzz"


def targets():
    return sorted(folder.name for folder in SEEDS.iterdir() if folder.is_dir())


def statistic(said, name):
    return sum(map(int, re.findall(rf"stat::{name}:\s+(\d+)", said)))


def run(binary, target, seconds):
    """One target for so long: what was executed and reached, and files of what broke it."""
    learnt, found = KEPT / target, KEPT / "found"
    learnt.mkdir(parents=True, exist_ok=True)
    found.mkdir(exist_ok=True)
    known = set(found.glob(f"{target}-*"))
    began, executed, reached, logs = time.monotonic(), 0, (0, 0, 0), []
    while (left := seconds - (time.monotonic() - began)) >= 1 and len(set(found.glob(f"{target}-*")) - known) < MOST_FOUND:
        options = [f"-max_total_time={int(left)}", "-timeout=20", "-rss_limit_mb=3000", "-malloc_limit_mb=1500", "-len_control=20", "-print_final_stats=1", f"-artifact_prefix={found}/{target}-"]
        ran = subprocess.run([binary, learnt, SEEDS / target, *options], capture_output=True, text=True, errors="replace", env={**os.environ, "FUZZ_TARGET": target})
        logs.append(ran.stderr)
        executed += statistic(ran.stderr, "number_of_executed_units")
        reached = max([reached, *(tuple(map(int, numbers)) for numbers in re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", ran.stderr))])
    (KEPT / f"{target}.log").write_text("\n".join(logs))
    took = time.monotonic() - began
    return {"target": target, "seconds": took, "executed": executed, "edges": reached[0], "features": reached[1], "inputs": reached[2], "found": sorted(set(found.glob(f"{target}-*")) - known)}


def table(rows):
    head = "| target | CPU-minutes | executions | a second | edges reached | inputs kept | broken |\n|---|---:|---:|---:|---:|---:|---:|"
    lines = [
        f"| `{row['target']}` | {row['seconds'] / 60:.1f} | {row['executed']:,} | {row['executed'] / max(1, row['seconds']):,.0f} | {row['edges']:,} | {row['inputs']:,} | {len(row['found'])} |"
        for row in rows
    ]
    return "\n".join([head, *lines])


def write_page(page, rows, minutes):
    """Replaces what stands between the page's two marks."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip() or os.environ.get("PUNCTUAL_COMMIT", "unknown")
    begin, end = "<!-- measured -->", "<!-- /measured -->"
    before, rest = page.read_text().split(begin)
    text = f"\nCommit {commit}, `make fuzz ARGS=\"--minutes {minutes:g}\"`:\n\n{table(rows)}\n"
    page.write_text(before + begin + text + end + rest.split(end)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(targets())}; all if none is named")
    parser.add_argument("--minutes", type=float, default=1, help="for each target")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="targets at one time")
    parser.add_argument("--page", type=pathlib.Path, help="a page whose table of results is written anew")
    arguments = parser.parse_args()
    if unknown := set(arguments.targets) - set(targets()):
        parser.error(f"there is no target {', '.join(sorted(unknown))}; there are {', '.join(targets())}")
    binary, rows = built(), []
    chosen = arguments.targets or targets()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        running = [pool.submit(run, binary, target, arguments.minutes * 60) for target in chosen]
        for done in concurrent.futures.as_completed(running):
            row = done.result()
            rows.append(row)
            print(f"{len(rows)} of {len(chosen)}: {row['target']}, {row['executed']:,} executions, {row['edges']:,} edges" + "".join(f"\n  broken by {path}" for path in row["found"]), flush=True)
    rows.sort(key=lambda row: row["target"])
    print("\n" + table(rows))
    if arguments.page:
        write_page(arguments.page, rows, arguments.minutes)
    sys.exit(1 if any(row["found"] for row in rows) else 0)


if __name__ == "__main__":
    main()
