"""Model shards and the ranker, alone on two cores: requests a second, and instructions for each."""

import re
import shutil
import subprocess

from common import BENCH, ROOT, Failed, Figure, step
from tools import built

PROGRAM = ROOT / "target" / "release" / "examples" / "shards"
GRID = [(models, executors) for models in (1, 10, 100, 1000) for executors in (8, 64, 1024, 4096)]
TARGET = 2_000_000
REQUESTS = 400_000


def run(quick):
    with step("building"):
        built("sim", "shards")
    # Real time where the system allows it: a tick for somebody else is too late for two milliseconds.
    before = ["chrt", "-f", "1"] if shutil.which("chrt") and allowed() else []
    behind = ["--breathe"] if before else []
    rows = []
    for models, executors in GRID[::5] if quick else GRID:
        with step(f"{models} models, {executors} executors"):
            rate = [str(TARGET)] if quick else []
            text = output(*before, PROGRAM, str(models), str(executors), *rate, *behind)
            row = {"models": models, "executors": executors, **parse(text), **instructions(models, executors)}
        rows.append(row)
    least = min(rows, key=lambda row: row["requests_per_second"])
    where = f"{least['models']:,} models, {least['executors']:,} executors"
    figures = [Figure("requests/s, the least of all", least["requests_per_second"], "/s", (">=", TARGET), where)]
    counted = [row["instructions"] for row in rows if row["instructions"]]
    if counted:
        figures.append(Figure("instructions for a request, the most of all", max(counted), note=f"least {min(counted)}"))
    return figures, {"rows": rows, "real_time": bool(before)}


def allowed():
    return subprocess.run(["chrt", "-f", "1", "true"], capture_output=True).returncode == 0


def output(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))} failed: {done.stderr[-500:]}")
    return done.stdout


def parse(text):
    """The row that the search printed last; a rate of 0 where no run was valid."""
    fields = text.splitlines()[-1].split()
    if "valid" in fields:
        return {"requests_per_second": 0, "served": 0, "late_ms": 0, "batch": 0}
    _, _, rate, served, late, batch = fields[:6]
    return {"requests_per_second": int(rate), "served": float(served.rstrip("%")) / 100, "late_ms": float(late),
            "batch": float(batch)}


def instructions(models, executors):
    """Of both machines with emulated executors, in one thread and virtual time; of these, the ranker's."""
    if not shutil.which("valgrind"):
        return {"instructions": 0, "of_ranker": 0}
    profile = BENCH / "callgrind.out"
    output("valgrind", "--tool=callgrind", f"--callgrind-out-file={profile}", "--toggle-collect=*measured*",
           PROGRAM, "--once", str(models), str(executors), str(REQUESTS))
    listing = output("callgrind_annotate", "--inclusive=yes", "--threshold=100", str(profile))
    def count(pattern):
        found = re.search(rf"^\s*([\d,]+) .*{pattern}", listing, re.MULTILINE)
        return round(int(found[1].replace(",", "")) / REQUESTS) if found else 0
    return {"instructions": count("PROGRAM TOTALS"), "of_ranker": count(r"shards\.rs:shards::RankerSide::turn")}
