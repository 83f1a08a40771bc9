"""Shows on a GPU that a model leaves a precision in which live requests are off, while it answers.

    PUNCTUAL_BINARY=... scripts/measure.py gpu.live FOLDER [--devices cuda:0] [--within 300] [--size 4096] [--json FILE]

Two networks are made whose inputs are near enough in 16 bits as long as they are between 0 and 1, as those are that the server makes up: `loud` overflows in 16 bits if they are large, and is right in TF32; `wave`, the sine of a product,
is right in 32 bits alone then. Each is asked with small inputs until it is computed in what evidence shows, then with large ones until twenty answers in a row are right. At last it says what the next start, with the same cache, begins in. Needs numpy and onnx.
"""

import argparse
import json
import pathlib
import time
import urllib.error
import urllib.request

import numpy as np

from figures.common import BENCH, Failed, Server
from onnx_writer import FLOAT, Graph

# How far an answer may be off, as a part of the output's range; the server's own bound.
BOUND = 1e-2
# How large inputs are that are off: what is left of a sum of them is far beyond what 16 bits hold, or many turns of the sine.
LARGE = {"loud": 1e6, "wave": 2e3}
RIGHT_IN_A_ROW = 20


def weights(size):
    """Products of rows between 0 and 1 are about as large as 1."""
    return (np.random.default_rng(7).standard_normal((size, 16)) * np.sqrt(3 / size)).astype(np.float32)


def network(name, size):
    graph = Graph(name)
    # The first product keeps what it is given; with it, a model takes long enough that 16 bits save something.
    kept = graph.node("MatMul", graph.input("x", FLOAT, ["batch", size]), graph.weight(np.eye(size, dtype=np.float32)))
    h = graph.node("MatMul", kept, graph.weight(weights(size)))
    if name == "wave":
        graph.node("Sin", h, named="y")
    else:
        graph.node("Div", h, graph.node("Add", graph.node("Abs", h), graph.weight(np.float32(1).reshape(1))), named="y")
    graph.output("y", FLOAT, ["batch", 16])
    return graph


def right(name, x, factors):
    h = x.astype(np.float64) @ factors.astype(np.float64)
    return np.sin(h) if name == "wave" else h / (1 + np.abs(h))


def call(url, body=None):
    """The head of an answer, and what is behind it in binary."""
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            whole = answer.read()
            end = int(answer.headers.get("Inference-Header-Content-Length", len(whole)))
            return json.loads(whole[:end]), whole[end:]
    except urllib.error.HTTPError as refused:
        raise Failed(f"{url} answered {refused.code}: {refused.read().decode()}") from refused


def computed_in(server, name):
    said = call(f"http://{server.http}/v2/models/{name}/config")[0]["parameters"].get("computed_in", {}).get("string_value", "")
    return said, said.replace(";", ",").partition(",")[0]


def off(server, name, x, factors):
    """How far the answer to a request is off; every request has one."""
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}
    # In binary: JSON has no infinity.
    wanted = {"name": "y", "parameters": {"binary_data": True}}
    found = np.frombuffer(call(f"http://{server.http}/v2/models/{name}/infer", {"inputs": [tensor], "outputs": [wanted]})[1], np.float32)
    error = np.abs(found - right(name, x, factors)[0]).max() / 2
    return float(error) if np.isfinite(error) else float("inf")


def watch(server, name, factors, within):
    random, size = np.random.default_rng(11), factors.shape[0]
    row = lambda scale: (random.random((1, size)) * scale).astype(np.float32)
    began = time.monotonic()
    while computed_in(server, name)[1] not in ("fp16", "tf32"):
        off(server, name, row(1), factors)
        if time.monotonic() - began > within:
            raise Failed(f"{name} is computed in {computed_in(server, name)[0]!r} after {within} s")
        time.sleep(0.05)
    before, began, asked, wrong, in_a_row = computed_in(server, name)[1], time.monotonic(), 0, 0, 0
    while in_a_row < RIGHT_IN_A_ROW:
        error = off(server, name, row(LARGE[name]), factors)
        asked, wrong, in_a_row = asked + 1, wrong + (error > BOUND), in_a_row + 1 if error <= BOUND else 0
        if time.monotonic() - began > within:
            raise Failed(f"{name} is still off by {error:.1e} after {within} s: {computed_in(server, name)[0]}")
        time.sleep(0.02)
    said, after = computed_in(server, name)
    return {"model": name, "before": before, "after": after, "seconds": round(time.monotonic() - began, 1), "asked": asked, "wrong": wrong, "said": said}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=pathlib.Path)
    arguments.add_argument("--devices", default="cuda:0")
    arguments.add_argument("--within", type=float, default=300, help="seconds for each step")
    arguments.add_argument("--size", type=int, default=4096, help="numbers in a row")
    arguments.add_argument("--json", type=pathlib.Path)
    given = arguments.parse_args()
    BENCH.mkdir(parents=True, exist_ok=True)
    root, factors = given.folder / "live", weights(given.size)
    for name in LARGE:
        network(name, given.size).write(root)
    options = ["--devices", given.devices, "--cache-dir", str(given.folder / "live-cache")]
    with Server(root, *options, log="info") as server:
        found = [watch(server, name, factors, given.within) for name in LARGE]
        for each in found:
            print("{model}: {before} -> {after} after {seconds} s of large inputs, {wrong} of {asked} answers off, none refused; {said}".format(**each), flush=True)
    with Server(root, *options, log="info") as server:
        for each in found:
            each["next_start"] = computed_in(server, each["model"])[1]
            print(f"{each['model']}: the next start begins in {each['next_start']}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
