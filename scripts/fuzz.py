#!/usr/bin/env python3
"""Runs libFuzzer on every parser, or on those that are named.

    scripts/fuzz.py [--minutes 20] [--jobs 2] [--page docs/fuzzing.md] [TARGET ...]

What libFuzzer learns is kept in .cache/fuzz, from which the next run goes on, and so is what each target's last run did. With --page that goes into a folder of the page's name, too, and the page has each target's last run with its commit; with
--minutes 0 nothing is run, and the page is written of what is there. Bytes that break a promise are written to .cache/fuzz/found: mend the parser, and put them into crates/fuzz/corpus/TARGET under
a name that says what they did. FUZZ_BINARY names a binary that is built already.
"""

import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import re
import subprocess
import sys

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
# Less processor time than this isn't worth reading all inputs again.
LEAST_SECONDS = 3


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


def processor_seconds(command, log, environment):
    """Runs a command with its errors in a file: the processor time that it took, which on a busy machine is less than it ran."""
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        # It was waited for here: nobody else must.
        process.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime


def run(binary, target, seconds):
    """One target for so much processor time: what was executed and reached, and files of what broke it."""
    learnt, found = KEPT / target, KEPT / "found"
    learnt.mkdir(parents=True, exist_ok=True)
    found.mkdir(exist_ok=True)
    known = set(found.glob(f"{target}-*"))
    used, executed, reached, logs = 0.0, 0, (0, 0, 0), []
    while (left := seconds - used) >= LEAST_SECONDS and len(set(found.glob(f"{target}-*")) - known) < MOST_FOUND:
        options = [f"-max_total_time={math.ceil(left)}", "-timeout=20", "-rss_limit_mb=3000", "-malloc_limit_mb=1500", "-len_control=20", "-print_final_stats=1", f"-artifact_prefix={found}/{target}-"]
        log = KEPT / f"{target}.part.log"
        used += processor_seconds([binary, learnt, SEEDS / target, *options], log, {**os.environ, "FUZZ_TARGET": target})
        said = log.read_text(errors="replace")
        log.unlink()
        logs.append(said)
        executed += statistic(said, "number_of_executed_units")
        reached = max([reached, *(tuple(map(int, numbers)) for numbers in re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", said))])
    (KEPT / f"{target}.log").write_text("\n".join(logs))
    return {"target": target, "seconds": used, "executed": executed, "edges": reached[0], "features": reached[1], "inputs": reached[2], "found": sorted(set(found.glob(f"{target}-*")) - known)}


def table(rows):
    head = "| target | commit | CPU-minutes | executions | a second | edges reached | inputs kept | broken |\n|---|---|---:|---:|---:|---:|---:|---:|"
    lines = [
        f"| `{row['target']}` | {row['commit']} | {row['seconds'] / 60:.1f} | {row['executed']:,} | {row['executed'] / max(1, row['seconds']):,.0f} | {row['edges']:,} | {row['inputs']:,} | {len(row['found'])} |"
        for row in rows
    ]
    return "\n".join([head, *lines])


def commit():
    """Which state is run. A machine without git is told by PUNCTUAL_COMMIT."""
    return os.environ.get("PUNCTUAL_COMMIT") or subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def keep(row, page):
    """What is known of a run, for the page if there is one."""
    kept = {**row, "found": [path.name for path in row["found"]], "commit": commit()}
    for folder in [KEPT, *([page.with_suffix("")] if page else [])]:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{row['target']}.json").write_text(json.dumps(kept, indent=1) + "\n")
    return kept


def write_page(page):
    """Replaces what stands between the page's two marks by each target's last run."""
    rows = [json.loads(path.read_text()) for path in sorted(page.with_suffix("").glob("*.json"))]
    begin, end = "<!-- measured -->", "<!-- /measured -->"
    before, rest = page.read_text().split(begin)
    page.write_text(before + begin + f"\n{table(rows)}\n" + end + rest.split(end)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(targets())}; all if none is named")
    parser.add_argument("--minutes", type=float, default=1, help="of processor time, for each target")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="targets at one time")
    parser.add_argument("--page", type=pathlib.Path, help="a page whose table of results is written anew")
    arguments = parser.parse_args()
    if unknown := set(arguments.targets) - set(targets()):
        parser.error(f"there is no target {', '.join(sorted(unknown))}; there are {', '.join(targets())}")
    if arguments.minutes == 0:
        if not arguments.page:
            parser.error("--minutes 0 runs nothing: with --page it writes the page")
        return write_page(arguments.page)
    binary, rows = built(), []
    chosen = arguments.targets or targets()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        running = [pool.submit(run, binary, target, arguments.minutes * 60) for target in chosen]
        for done in concurrent.futures.as_completed(running):
            row = done.result()
            rows.append(keep(row, arguments.page))
            print(f"{len(rows)} of {len(chosen)}: {row['target']}, {row['executed']:,} executions, {row['edges']:,} edges" + "".join(f"\n  broken by {path}" for path in row["found"]), flush=True)
    rows.sort(key=lambda row: row["target"])
    print("\n" + table(rows))
    if arguments.page:
        write_page(arguments.page)
    sys.exit(1 if any(row["found"] for row in rows) else 0)


if __name__ == "__main__":
    main()
