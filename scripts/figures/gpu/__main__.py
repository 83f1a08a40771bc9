"""Measures parts of docs/benchmarks-gpu.md on a GPU.

    scripts/measure.py gpu FOLDER PART [PART ...] --results RESULTS

Each part takes minutes, and leaves RESULTS/PART.json; `scripts/measure.py gpu.page RESULTS` makes the page of them. FOLDER keeps networks, kernels and compilers' caches for the next call. Needs
`cargo build --release -p engine-lab` (ENGINE_LAB_BINARY), for parts of a whole server `cargo build --release -p cli` (PUNCTUAL_BINARY), and PyTorch with torchvision, which makes the networks. A machine without git
is told the commit by PUNCTUAL_COMMIT.
"""

import argparse
import json
import pathlib
import shlex
import subprocess
import sys

from figures import program
from figures.common import ENGINE_LAB, ROOT
from figures.gpu import results
from figures.gpu.page import SECTIONS

EXEC_MODELS = "resnet50:tf32,resnet50:f16,resnet18:f16,densenet121:f16,mobilenet_v2:f16,vgg16:f16,bert:f16"


def run(command):
    """Shows what it says, and ends with it if it fails."""
    subprocess.run([str(word) for word in command], check=True)


def measured(folder, name, *arguments):
    """Runs a program of this package that writes its results itself, and reads them."""
    run(program(name, folder, *arguments))
    return json.loads((folder / "results.json").read_text())


def executions(folder, *arguments):
    """What gpu.exec found, with what failed."""
    rows = measured(folder, "gpu.exec", *arguments)
    failures = folder / "failures.json"
    return {"rows": rows, "failures": json.loads(failures.read_text()) if failures.exists() else {}}


def tool(folder, part, *arguments):
    """Runs a tool of the engines' laboratory."""
    figures = folder / f"{part}.figures.json"
    run([ENGINE_LAB, *arguments, "--json", figures])
    return json.loads(figures.read_text())


def network(folder, name):
    """The network's file, made if it isn't there."""
    path = folder / "networks" / f"{name}.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        run(program("gpu.networks", "plain", name, path))
    return path


def of_network(tool_name, name, precision, *more):
    cached = lambda folder: ["--precision", precision, "--cache", folder / "cache", *more]
    return lambda folder, part: tool(folder, part, tool_name, network(folder, name), *cached(folder))


def nodes(folder, part):
    """Those that `make test` has written, or else written here, which needs the package onnx."""
    cases = ROOT / ".cache" / "onnx-nodes"
    if not cases.exists():
        cases = folder / "onnx-nodes"
    if not cases.exists():
        run([sys.executable, ROOT / "scripts" / "onnx-node-cases.py", "--out", cases])
    return tool(folder, part, "nodes", cases, "fp32", "12")


def precision(folder, part):
    """The networks come from `scripts/measure.py gpu.precision FOLDER/precision`, which needs packages but no GPU."""
    return tool(folder, part, "precision", folder / "precision", "--cache", folder / "cache")


def served(folder, part, *options):
    """A part of the whole server."""
    figures = folder / f"{part}.figures.json"
    run(program("gpu.serve", folder, part, "--json", figures, *options))
    return json.loads(figures.read_text())[part]


def ready(folder, part, *options):
    """How soon models are ready, and how good they are later."""
    figures = folder / f"{part}.figures.json"
    run(program("gpu.ready", folder / "ready", "--json", figures, *options))
    return json.loads(figures.read_text())


def auto_shares(folder, part, *options):
    """GPUs that divide themselves, beside whole ones."""
    figures = folder / f"{part}.figures.json"
    run(program("gpu.auto_shares", folder, "--json", figures, *options))
    return json.loads(figures.read_text())


def sizes(folder, part, *options):
    """Batch sizes that follow what comes."""
    figures = folder / f"{part}.figures.json"
    run(program("gpu.sizes", folder, "--json", figures, *options))
    return json.loads(figures.read_text())


def ocr(folder, part):
    """Text in pictures."""
    figures = folder / f"{part}.figures.json"
    run(program("gpu.ocr", "--json", figures))
    return json.loads(figures.read_text())


PARTS = {
    "exec": lambda folder, _: executions(folder / "exec", "--proposals", "3", "--models", EXEC_MODELS),
    "compiled": lambda folder, _: executions(folder / "exec", "--proposals", "3", "--models", EXEC_MODELS, "--compile-only", "--compile", "1,8"),
    "named": lambda folder, _: executions(folder / "named", "--models", "named", "--batches", "1,4", "--proposals", "2", "--seconds", "400"),
    "reference": lambda folder, _: {"rows": measured(folder / "reference", "gpu.reference")},
    "precision": precision,
    "ready": ready,
    "sizes": sizes,
    "auto_shares": auto_shares,
    "ocr": ocr,
    "nodes": nodes,
    "kernels": lambda folder, part: tool(folder, part, "kernels", folder / "cache"),
    "loads": lambda folder, part: tool(folder, part, "loads"),
    "fetches": lambda folder, part: tool(folder, part, "fetches"),
    "model": of_network("model", "resnet18", "fp16", "--replays", "1000"),
    "loading": of_network("model", "resnet50", "fp16", "--batches", "1,2", "--replays", "100000"),
    "flow": of_network("flow", "resnet50", "tf32", "--batches", "1,16"),
    "launches": of_network("launches", "resnet50", "fp16", "--batches", "1"),
    "divisions": lambda folder, part: tool(folder, part, "shares"),
    **dict.fromkeys(("shares", "capacity", "figure5", "honesty", "changes", "lengths", "shapes", "fallback"), served),
}
assert set(PARTS) == set(SECTIONS), "every part is on the page, and nothing else"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--results", type=pathlib.Path, required=True)
    parser.add_argument("--options", type=shlex.split, default=[], help="passed on to gpu.serve, gpu.ready, gpu.sizes or gpu.auto_shares, such as \"--seconds 2\"; the page shows them")
    arguments = parser.parse_args()
    if arguments.options and (others := [part for part in arguments.parts if PARTS[part] not in (served, ready, sizes, auto_shares)]):
        parser.error(f"--options are for parts of a whole server, which {', '.join(others)} isn't")
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for part in arguments.parts:
        figures = PARTS[part](folder, part, *arguments.options)
        told = f" --options {shlex.quote(shlex.join(arguments.options))}" if arguments.options else ""
        results.keep(arguments.results, part, f"scripts/measure.py gpu FOLDER {part} --results RESULTS{told}", figures)


if __name__ == "__main__":
    main()
