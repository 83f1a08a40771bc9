"""Measures how soon models are ready on a GPU, and whether those that were tuned in idle time are as fast as those that were tuned at the start.

    PUNCTUAL_BINARY=... scripts/measure.py gpu.ready FOLDER [--count 100] [--tuned 3] [--tune-within 240] [--devices cuda:0] [--json FILE]

One model from nothing until its first answer; so many different models (gpu.widths makes them) until all are ready, from nothing and with what that start left in its cache; and for some of them, one execution after the
server has tuned them, beside one of a server that tunes before a model is ready. Each with caches of their own. Needs PyTorch with torchvision to make the models.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import time
import urllib.error
import urllib.request

from figures import program
from figures.common import BENCH, BINARY, Server
from figures.gpu.widths import variants


def say(text):
    print(text, flush=True)


def fresh(folder, name):
    """A folder with nothing in it."""
    path = folder / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def some(folder, repository, name, models):
    """A repository with these models of another."""
    root = fresh(folder, name)
    for model in models:
        target = root / model / "1" / "model.onnx"
        target.parent.mkdir(parents=True)
        os.link(repository / model / "1" / "model.onnx", target)
    return root


def body(model):
    """A request of one row, in binary."""
    shape, kind, size = ([1, 128], "INT64", 8) if model.startswith("bert") else ([1, 3, 224, 224], "FP32", 4)
    count = 1
    for extent in shape:
        count *= extent
    head = json.dumps({"inputs": [{"name": "input", "datatype": kind, "shape": shape, "parameters": {"binary_data_size": count * size}}]}).encode()
    return head, head + bytes(count * size)


def first_answer(root, model, devices, cache, within=60):
    """Seconds from the start of a server to the first answer of its model."""
    head, request = body(model)
    port = 18_231
    command = [BINARY, "serve", "--model-repository", root, "--devices", devices, "--cache-dir", cache, "--log", "warn", "--http-port", str(port), "--grpc-port", "0", "--metrics-port", "0"]
    began = time.monotonic()
    server = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)
    try:
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/v2/models/{model}/infer", request, {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"})
        while time.monotonic() - began < within:
            try:
                with urllib.request.urlopen(asked, timeout=within) as answer:
                    answer.read()
                return time.monotonic() - began
            except (urllib.error.URLError, ConnectionError):
                if server.poll() is not None:
                    raise SystemExit(f"the server ended with {server.returncode}")
                time.sleep(0.005)
        raise SystemExit(f"{model} didn't answer within {within} s")
    finally:
        server.terminate()
        server.wait(60)


def start(root, devices, cache, title):
    """Seconds until all models are ready."""
    with Server(root, "--devices", devices, "--cache-dir", str(cache), log="info") as server:
        text = pathlib.Path(server.log.name).read_text()
        provisional = text.count("better_later=true")
    say(f"{title}: ready after {server.start_seconds:.1f} s, {provisional} by rule")
    for line in text.splitlines():
        if "models are done after" in line:
            say(f"  {line}")
    return {"seconds": server.start_seconds, "by_rule": provisional}


def readies(text, model):
    """What the lines `ready` of a model say, in their order: whether it gets better."""
    lines = [line for line in text.splitlines() if " ready " in f" {line} " and f"model={model} " in line.replace('"', "")]
    return ["better_later=true" in line for line in lines]


def tune(root, models, devices, cache, within):
    """Lets a server tune its models: how long after all were ready each was tuned, of those that were."""
    with Server(root, "--devices", devices, "--cache-dir", str(cache), log="info") as server:
        log, began, took = pathlib.Path(server.log.name), time.monotonic(), {}
        while len(took) < len(models) and time.monotonic() - began < within:
            time.sleep(0.2)
            text = log.read_text()
            for model in models:
                found = readies(text, model)
                if model not in took and found and not found[-1]:
                    took[model] = time.monotonic() - began
                    say(f"  {model} is tuned {took[model]:.1f} s after all were ready")
        warnings = [line for line in log.read_text().splitlines() if "it stays as it was ready at first" in line]
    for line in warnings:
        say(f"  {line}")
    return took


def profile(root, devices, cache):
    """What an execution takes by the device's clock, by model and batch size."""
    command = [BINARY, "profile", root, "--device", devices, "--cache-dir", cache, "--runs", "300", "--loads", "1"]
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if ran.returncode != 0:
        raise SystemExit(f"profile: {ran.stderr.strip()[-800:]}")
    return executions(ran.stdout)


def executions(text):
    """The medians of tables of `punctual profile`, in ms: by model and batch size, with what it is computed in."""
    found, head, precision = {}, [], ""
    for line in text.splitlines():
        cells = line.split(",")
        if line.startswith("#"):
            precision = line.rsplit("; ", 1)[0].rsplit(", ", 1)[-1]
        elif cells[0] == "model":
            head = cells
        else:
            named = dict(zip(head, cells))
            times = {name[1 : -len("_device_ms")]: float(value) for name, value in named.items() if name.endswith("_device_ms") and value}
            found[cells[0]] = {"precision": precision, "ms": times}
    return found


def measure(folder, devices, count, tuned, within):
    repository = folder / "widths"
    began = time.monotonic()
    subprocess.run(program("gpu.widths", repository, "--count", str(count)), check=True)
    names = [name for name, _, _ in variants(count)]
    say(f"{count} models, made in {time.monotonic() - began:.0f} s")
    figures = {"count": count}
    # What the CUDA libraries read of the disk for the first time isn't ours.
    first_answer(some(folder, repository, "warm", names[1:2]), names[1], devices, fresh(folder, "cache-warm"))
    one = some(folder, repository, "one", names[:1])
    figures["one"] = {"model": names[0], "first_answer_s": first_answer(one, names[0], devices, fresh(folder, "cache-one"))}
    say(f"{names[0]} from nothing: first answer after {figures['one']['first_answer_s']:.2f} s")
    cache = fresh(folder, "cache-all")
    root = some(folder, repository, "all", names)
    figures["all"] = {"nothing": start(root, devices, cache, f"{count} models from nothing"), "cached": start(root, devices, cache, f"{count} models with that cache")}
    return {**figures, **tuned_later(folder, repository, names[:tuned], devices, within)}


def tuned_later(folder, repository, chosen, devices, within):
    """The same models, tuned in idle time and tuned at the start; nothing where there are none."""
    figures = {"tuned_s": {}, "again": None, "in_idle_time": {}, "at_the_start": {}}
    if not chosen:
        return figures
    few = some(folder, repository, "few", chosen)
    later, first = fresh(folder, "cache-later"), fresh(folder, "cache-first")
    figures["tuned_s"] = tune(few, chosen, devices, later, within)
    figures["again"] = start(few, devices, later, f"{len(chosen)} tuned models with their cache")
    figures["in_idle_time"] = profile(few, devices, later)
    figures["at_the_start"] = profile(few, devices, first)
    for model in chosen:
        say(f"{model}: in idle time {figures['in_idle_time'].get(model)}, at the start {figures['at_the_start'].get(model)}")
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--tuned", type=int, default=3)
    parser.add_argument("--tune-within", type=float, default=240)
    parser.add_argument("--devices", default="cuda:0")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    BENCH.mkdir(parents=True, exist_ok=True)
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    figures = measure(folder, arguments.devices, arguments.count, arguments.tuned, arguments.tune_within)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
