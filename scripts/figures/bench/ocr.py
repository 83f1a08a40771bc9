"""Text in pictures, from file to lines in one call: beside the package that the models come from, in Python, on one core each."""

import http.client
import json
import os
import pathlib
import statistics
import subprocess
import threading
import time
import venv
from concurrent.futures import ThreadPoolExecutor

from figures.common import BENCH, ROOT, Failed, Figure, Server, processor_seconds, step

# Made by scripts/setup ocr.
REPOSITORY = ROOT / ".cache" / "ocr"
PACKAGE = pathlib.Path(__file__).with_name("ocr_package.py")
PICTURES = BENCH / "ocr" / "pictures"
# What the package said of them, and how long it took: a GPU's figures are beside it (gpu.ocr).
SAID = BENCH / "ocr" / "package.json"
# Requests at a time where the rate is measured: the device has work while steps run.
AT_A_TIME = 2


def run(quick):
    if not (REPOSITORY / "ocr" / "endpoint.toml").exists():
        raise Failed("the models are missing: run scripts/setup ocr")
    with step("the package in an environment of its own"):
        python = environment()
    core, rounds = min(os.sched_getaffinity(0)), 1 if quick else 5
    with step("the package on 20 pictures"):
        package = asked_package(python, core, rounds)
    SAID.write_text(json.dumps(package))
    with Server(REPOSITORY) as server:
        # Everything on one core, as the package: it has threads for connections and steps, too.
        pin(server.pid, core)
        with step("the server on the same"):
            ours = asked_server(server, sorted(package["said"]), rounds)
    equal = same(package, ours)
    details = {"package": summary(package["milliseconds"]), "server": ours["summary"], "equal": len(equal)}
    details["different"] = {
        name: {"package": [line["text"] for line in lines], "server": ours["said"][name]}
        for name, lines in package["said"].items()
        if name not in equal
    }
    there, here = details["package"], details["server"]
    ratio = here["rate"] / there["rate"]
    return [
        Figure("pictures with the same texts", len(equal), "", note=f"of {len(package['said'])}"),
        Figure("the server: pictures a second", here["rate"], "/s", note=f"{AT_A_TIME} requests at a time; {here['cpu_ms']:.0f} ms of processor time each"),
        Figure("the package: pictures a second", there["rate"], "/s", note="one after the other, one thread"),
        Figure("the server's rate beside the package's", ratio, "x"),
        Figure("the server: p99, one at a time", here["p99_ms"], "ms", note=f"p50 {here['p50_ms']:.0f}"),
        Figure("the package: p99", there["p99_ms"], "ms", note=f"p50 {there['p50_ms']:.0f}"),
    ], details


def same(package, ours):
    """The pictures of which both say the same."""
    return [name for name, lines in package["said"].items() if [line["text"] for line in lines] == ours["said"][name]]


def environment():
    folder = BENCH / "ocr" / "venv"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    packages = [python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "-r", ROOT / "scripts" / "requirements-ocr.txt"]
    said(packages)
    return python


def said(command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise Failed(f"{command[0]}: {done.stderr.strip()[-500:]}")
    return done.stdout


def pin(pid, core):
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), {core})


def summary(milliseconds):
    ordered = sorted(milliseconds)
    return {
        "p50_ms": statistics.median(ordered),
        "p99_ms": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
        "rate": 1e3 * len(ordered) / sum(ordered),
    }


def asked_package(python, core, rounds):
    return json.loads(said([python, PACKAGE, PICTURES, rounds], preexec_fn=lambda: os.sched_setaffinity(0, {core})))


def body(file):
    """A request with one file, in binary: how long its head is, and all of it."""
    tensor = len(file).to_bytes(4, "little") + file
    head = json.dumps({"inputs": [{"name": "file", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(tensor)}}]}).encode()
    return len(head), head + tensor


def asked_server(server, names, rounds):
    files = {name: (PICTURES / f"{name}.png").read_bytes() for name in names}
    bodies = {name: body(file) for name, file in files.items()}
    # Each thread has its own connection.
    local = threading.local()

    def ask(name):
        if not hasattr(local, "connection"):
            local.connection = http.client.HTTPConnection(server.http, timeout=300)
        head, content = bodies[name]
        local.connection.request("POST", "/v2/models/ocr/infer", content, {"Inference-Header-Content-Length": str(head)})
        answer = local.connection.getresponse()
        answered = json.loads(answer.read())
        if answer.status != 200:
            raise Failed(f"{name}: {answered['error']}")
        return next(output["data"] for output in answered["outputs"] if output["name"] == "texts")

    said = {name: ask(name) for name in names}  # warms up
    milliseconds = []
    for _ in range(rounds):
        for name in names:
            began = time.perf_counter()
            ask(name)
            milliseconds.append((time.perf_counter() - began) * 1e3)
    cpu, began = processor_seconds(server.pid), time.perf_counter()
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        list(pool.map(ask, names * rounds))
    seconds, cpu = time.perf_counter() - began, processor_seconds(server.pid) - cpu
    count = len(names) * rounds
    return {"said": said, "summary": summary(milliseconds) | {"rate": count / seconds, "cpu_ms": cpu / count * 1e3}}
