"""Measures `--shares auto` on a GPU: Gpulet's applications, and a model in a hurry beside two that aren't.

    PUNCTUAL_BINARY=... scripts/measure.py gpu.auto_shares FOLDER [--devices cuda:0] [--seconds 8] [--json FILE]

Each load is carried three times: by whole GPUs, which is the default, by `--shares auto`, and by two fixed halves. `game` and `traffic` (Gpulet's figure 11) are endpoints with one deadline. Rates are parts of
what whole GPUs carry from 64 clients that wait for their answers. Everything else is as `punctual serve` has it by default, so that models are ready with kernels by rule and have better ones later: a load begins
when nothing was prepared for a while. Needs PyTorch with torchvision to make the models, and no network.
"""

import argparse
import json
import pathlib
import re
import subprocess
import time

from figures import program
from figures.common import BENCH, Server, configure, difference
from figures.gpu.serve import load, say, shown, total

MODES = {"whole": [], "auto": ["--shares", "auto"], "halves": None}
PARTS_OF_CAPACITY = (0.5, 0.7, 0.85, 1.0)
CLIENTS = 64
# The server keeps some of a deadline for the answer's way; the rest is about six times the longest way of each application, alone.
LOADS = {"game": {"game": 10}, "traffic": {"traffic": 14}, "hurry": {"lenet": 6, "vgg16": 150, "bert": 150}}
# Of the load `hurry`, by requests.
MIX = {"lenet": 0.1, "vgg16": 0.45, "bert": 0.45}
SHAPES = {"game": ["--shape", "digits:6,1,28,28", "--shape", "picture:1,3,224,224"], "traffic": [], "hurry": []}
# How each model's file is made (gpu.networks), and of which network.
MODELS = {
    "game": {"lenet": "plain", "resnet50": "pixels"},
    "traffic": {"ssd300": "seen", "googlenet": "after", "vgg16": "after"},
    "hurry": {"lenet": "plain", "vgg16": "pixels", "bert": "plain"},
}
ENDPOINTS = {
    "game": """
kind = "pipeline"
inputs = ["digits", "picture"]
outputs = ["numbers", "icon"]
[[stage]]
model = "lenet"
inputs = { input = "digits" }
outputs = { output = "numbers" }
for_each = ["digits"]
calls = 6
[[stage]]
model = "resnet50"
inputs = { input = "picture" }
outputs = { output = "icon" }
""",
    "traffic": """
kind = "pipeline"
inputs = ["picture", "crop"]
outputs = ["kind", "plate"]
[[stage]]
model = "ssd300"
inputs = { input = "picture" }
outputs = { output = "seen" }
[[stage]]
model = "googlenet"
inputs = { input = "crop", mask = "seen" }
outputs = { output = "kind" }
[[stage]]
model = "vgg16"
inputs = { input = "crop", mask = "seen" }
outputs = { output = "plate" }
""",
}
# Large batches of the two that aren't in a hurry take longer than the third has.
LARGEST_BATCH = {"game": 16, "traffic": 16, "hurry": 64}
# What the server's log says of how it divides.
DIVIDING = re.compile("GPUs (are|stay)|predicted to carry")
# Nothing was prepared for so long: what comes is carried with the kernels that are there.
QUIET_S, MOST_QUIET_S = 8, 60


def repository(folder, name):
    root = folder / "auto-shares" / name
    for network, kind in MODELS[name].items():
        target = root / network / "1" / "model.onnx"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(program("gpu.networks", kind, network, target), check=True)
        configure(root, network, f"max_batch_size: {LARGEST_BATCH[name]}\n")
    if name in ENDPOINTS:
        (root / name).mkdir(exist_ok=True)
        (root / name / "endpoint.toml").write_text(ENDPOINTS[name])
    return root


def classes(name, rate, deadlines=True):
    """What `punctual load` is told to send: one class for each model or endpoint, at parts of a rate; or clients that wait."""
    for model, deadline_ms in LOADS[name].items():
        part = MIX.get(model, 1) if name == "hurry" else 1
        how = f"rate={rate * part:.1f}" if rate else f"concurrency={max(1, round(CLIENTS * part))}"
        yield "--class", f"name={model},model={model},{how}" + (f",deadline_ms={deadline_ms}" if deadlines else "")


def arguments(name, seconds, rate=None, generator=0, generators=1):
    part = rate / generators if rate else None
    said = [word for each in classes(name, part, deadlines=rate is not None) for word in each]
    return ["--duration", seconds, "--seed", generator + 1, *SHAPES[name], *said]


def settle(server):
    """Waits until nothing is prepared or measured any more."""
    log, give_up_at, before, since = pathlib.Path(server.log.name), time.monotonic() + MOST_QUIET_S, -1, time.monotonic()
    while time.monotonic() < give_up_at and time.monotonic() - since < QUIET_S:
        if (size := log.stat().st_size) != before:
            before, since = size, time.monotonic()
        time.sleep(0.2)


def options(mode, devices):
    return ["--devices", f"{devices}:shares=0.5,0.5"] if mode == "halves" else ["--devices", devices, *MODES[mode]]


def measure(folder, devices, seconds, name):
    root, capacity, rows = repository(folder, name), None, []
    for mode in MODES:
        with Server(root, *options(mode, devices), "--cache-dir", str(folder / "cache"), log="info") as server:
            settle(server)
            found = load(server.http, [arguments(name, seconds)])
            served = sum(one["good"] / one["seconds"] for one in found)
            capacity = capacity or served
            say(f"{name}, {mode}: ready after {server.start_seconds:.1f} s; {CLIENTS} clients get {served:.0f}/s")
            for part in PARTS_OF_CAPACITY:
                rate = capacity * part
                generators = max(1, round(rate / 3000))
                before = server.metrics()
                found = load(server.http, [arguments(name, seconds, rate, generator, generators) for generator in range(generators)])
                after = server.metrics()
                changes = difference(before, after, "punctual_share_changes_total", what="division")
                by_class = {model: total([one for one in found if one["name"] == model]) for model in LOADS[name]}
                for model, one in by_class.items():
                    say(f"  {part:.0%} ({rate:.0f}/s), {changes:.0f} changes, {model}: {shown(one)}")
                rows.append({"mode": mode, "part": part, "rate": rate, "changes": changes, "classes": by_class, "clients": served})
            for line in filter(DIVIDING.search, pathlib.Path(server.log.name).read_text().splitlines()):
                say(f"  {line}")
    return {"capacity": capacity, "rows": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--devices", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--loads", default=",".join(LOADS))
    parser.add_argument("--json", type=pathlib.Path, help="where figures are kept")
    given = parser.parse_args()
    BENCH.mkdir(parents=True, exist_ok=True)
    found = {}
    for name in given.loads.split(","):
        found[name] = measure(given.folder.resolve(), given.devices, given.seconds, name)
        if given.json:
            given.json.write_text(json.dumps({"loads": found}))


if __name__ == "__main__":
    main()
