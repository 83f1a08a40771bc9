"""Compares plans, executed by the reference on the CPU, with PyTorch: what of exec.py can be known without a GPU.

    scripts/measure.py gpu.reference FOLDER [--models named] [--batch 2]

Plans are executed by `engine-lab plan` (`cargo build --release -p engine-lab`); --models as for exec.py. For each: how far our outputs are from PyTorch's in fp32, and how far PyTorch's own are in that precision. The reference doesn't
round the factors of products as TF32 does, so that tf32 is only another plan for it. Writes results.json. Exits with 1 if one failed or is over the bound.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

# Both sides are computed on the CPU, also on a machine that has a GPU: torch must not see it.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch

from figures.common import ENGINE_LAB
from figures.gpu import report
from figures.gpu.networks import largest_error, make, outputs_of, prepare, split_name
from figures.gpu.timing import in_precision, rows_of

# With nothing rounded but to fp32, errors are smaller by far than what a GPU may have.
EXACT = 1e-4


def execute(arguments, name, precision, expected, scratch):
    """Runs the plan; returns its error, and how many steps of each kind it has."""
    for path in arguments.folder.glob(f"{name}.input*.bin"):
        os.symlink(path.resolve(), scratch / path.name.removeprefix(f"{name}."))
    command = [str(ENGINE_LAB), "plan", str(arguments.folder / f"{name}.onnx"), "--batch", str(arguments.batch), "--precision", precision, "--quiet", "--run", str(scratch)]
    length = split_name(name)[1]
    command += ["--size", f"sequence={length}"] if length else []
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode != 0:
        raise RuntimeError(ran.stderr.strip())
    outputs = []
    for position, right in enumerate(expected):
        content = bytearray((scratch / f"output{position}.bin").read_bytes())
        outputs.append(torch.frombuffer(content, dtype=torch.float32).view(right.shape))
    return largest_error(outputs, expected), ran.stdout.splitlines()[1].split(", plan")[0]


def compare(arguments, name, precision):
    """One line; returns what was found, or None if it failed."""
    began = time.monotonic()
    model, inputs = make(name, arguments.batch)
    expected = outputs_of(model, inputs)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            error, steps = execute(arguments, name, precision, expected, pathlib.Path(scratch))
    except RuntimeError as failed:
        print(f"{name} {precision}: {failed}", flush=True)
        return None
    model, inputs = in_precision(model, inputs, precision)
    torch_error = largest_error(outputs_of(model, rows_of(inputs, arguments.batch, precision)), expected)
    over = report.is_over({"precision": precision, "error": error, "torch_error": torch_error}) if precision == "f16" else not error <= EXACT
    said = f"error {error:.1e}, PyTorch's {torch_error:.1e}{', OVER' if over else ''}"
    print(f"{name} {precision}: {said}, {time.monotonic() - began:.0f} s, {steps}", flush=True)
    return {"model": name, "precision": precision, "error": error, "torch_error": torch_error, "over": over, "steps": steps}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--models", default="named")
    parser.add_argument("--batch", type=int, default=2)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    entries = [entry.split(":") for entry in report.expand(arguments.models)]
    networks = {}
    for name in dict.fromkeys(name for name, _ in entries):
        networks.setdefault(split_name(name)[0], []).append(name)
    for group in networks.values():
        prepare(group, arguments.batch, arguments.folder)
    found = [compare(arguments, *entry) for entry in entries]
    bad = sum(row is None or row["over"] for row in found)
    (arguments.folder / "results.json").write_text(json.dumps([row for row in found if row]))
    print(f"{len(entries)} compared: {bad} failed or over the bound")
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
