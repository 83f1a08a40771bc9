"""A million simulated requests, and the first experiments of docs/experiments."""

import re
import statistics
import subprocess
import time

from figures.common import BINARY, ROOT, Failed, Figure, step
from figures.bench.tools import lab, lab_built

# Those that take seconds; the others are run by `make experiments`.
EXPERIMENTS = ("clockwork-fig5b", "clockwork-fig5", "clockwork-fig6", "clockwork-fig7")


def run(quick):
    with step("building"):
        lab_built()
    seconds, texts = [], []
    for repetition in range(1 if quick else 5):
        with step(f"a million requests, {repetition + 1}"):
            texts.append(lab("million").strip())
        found = re.search(r"(\d+) requests, .* in ([\d.]+) s", texts[-1])
        if not found:
            raise Failed(f"million printed no time: {texts[-1][:500]}")
        seconds.append(float(found[2]) * 1e6 / int(found[1]))
    figures = [Figure("one million simulated requests", statistics.median(seconds), "s", ("<=", 5),
                      f"best {min(seconds):.2f}")]
    for name in EXPERIMENTS[:1] if quick else EXPERIMENTS:
        file = ROOT / "experiments" / f"{name}.toml"
        with step(file.stem):
            began = time.monotonic()
            done = subprocess.run([BINARY, "simulate", file, "--json"], capture_output=True, text=True)
            took = time.monotonic() - began
        if done.returncode != 0:
            raise Failed(f"punctual simulate {file.name}: {done.stderr.strip()[-500:]}")
        figures.append(Figure(f"experiment {file.stem}", took, "s"))
    return figures, {"output": texts}
