"""Measures batch sizes that follow what comes: a model with powers of two, with those that its traffic adds, and with all.

    PUNCTUAL_BINARY=... scripts/measure.py gpu.sizes FOLDER [--devices cuda:0] [--seconds 4] [--network resnet50] [--objective 6] [--json FILE]

Rates are parts of what clients that wait get with all sizes. Everything else is as `punctual serve` has it by default. Before it is measured, the model with the default sizes is asked at all these rates and
left alone, in turns, until nothing is added any more. Needs PyTorch with torchvision to make the network, and no network.
"""

import argparse
import json
import os
import pathlib
import re
import time

from figures.common import BENCH, Server, configure, difference, parameter
from figures.gpu.auto_shares import settle
from figures.gpu.serve import exported, load, say, shown, total

LARGEST = 16
# None: the server's default, to which sizes are added.
MODES = {"all": ",".join(map(str, range(1, LARGEST + 1))), "powers": "1,2,4,8,16", "default": None}
PARTS_OF_CAPACITY = (0.8, 0.9, 1.0, 1.1)
CLIENTS = 128
# What came is counted every 10 s, and a size is added while the device idles.
ASKED_S, LEFT_ALONE_S, MOST_ROUNDS = 3, 3, 4
ADDED = re.compile(r"batches of (\d+) rows are computed as such")


def repository(folder, network, mode, sizes, objective):
    root = folder / "sizes" / mode
    target = root / network / "1" / "model.onnx"
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        os.link(exported(folder, network), target)
    named = parameter("batch_sizes", sizes) if sizes else ""
    configure(root, network, f"max_batch_size: {LARGEST}\n" + named + parameter("latency_objective_ms", objective))
    return root


def asked(server, network, seconds, objective, rate):
    """Poisson arrivals from as many generators as carry them."""
    generators = max(1, round(rate / 3000))
    spec = f"name=all,model={network},rate={rate / generators:.1f},deadline_ms={objective}"
    return total(load(server.http, [["--duration", seconds, "--seed", index + 1, "--class", spec] for index in range(generators)]))


def added(server):
    return [int(rows) for rows in ADDED.findall(pathlib.Path(server.log.name).read_text())]


def learn(server, network, objective, capacity):
    """Until a round adds nothing."""
    for _ in range(MOST_ROUNDS):
        before = added(server)
        for part in PARTS_OF_CAPACITY:
            asked(server, network, ASKED_S, objective, capacity * part)
        time.sleep(LEFT_ALONE_S)
        if added(server) == before:
            break
    say(f"  sizes that were added: {added(server)}")


def measure(folder, devices, seconds, network, objective):
    capacity, rows, sizes = None, [], []
    for mode, named in MODES.items():
        with Server(repository(folder, network, mode, named, objective), "--devices", devices, "--cache-dir", str(folder / "cache"), log="info") as server:
            settle(server)
            if capacity is None:
                spec = f"name=all,model={network},concurrency={CLIENTS // 4},deadline_ms={objective}"
                capacity = total(load(server.http, [["--duration", seconds, "--class", spec]] * 4))["goodput"]
            say(f"{network}, {mode}: ready after {server.start_seconds:.1f} s; capacity {capacity:.0f}/s")
            if named is None:
                learn(server, network, objective, capacity)
                sizes = added(server)
            for part in PARTS_OF_CAPACITY:
                before = server.metrics()
                found = asked(server, network, seconds, objective, capacity * part)
                after = server.metrics()
                counted = [difference(before, after, f"punctual_batch_rows_{what}") for what in ("sum", "count")]
                mean = counted[0] / max(1, counted[1])
                say(f"  {part:.0%} ({capacity * part:.0f}/s), {mean:.1f} rows in a batch: {shown(found)}")
                rows.append({"mode": mode, "part": part, "rate": capacity * part, "batch": mean, **found})
            for line in pathlib.Path(server.log.name).read_text().splitlines()[-20:]:
                say(f"  {line}")
    return {"network": network, "objective_ms": objective, "capacity": capacity, "added": sizes, "rows": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--devices", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--objective", type=float, default=6)
    parser.add_argument("--json", type=pathlib.Path, help="where figures are kept")
    given = parser.parse_args()
    BENCH.mkdir(parents=True, exist_ok=True)
    found = measure(given.folder.resolve(), given.devices, given.seconds, given.network, given.objective)
    if given.json:
        given.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
