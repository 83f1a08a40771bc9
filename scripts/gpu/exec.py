#!/usr/bin/env python3
"""Compares our executions with PyTorch's CUDA graphs on one GPU, in one run.

    scripts/gpu/exec.py EXEC_BINARY FOLDER [--models resnet50:tf32,resnet50:f16] [--batches 1,2,4,8,16,32] [--proposals 4]
    scripts/gpu/exec.py EXEC_BINARY FOLDER --compile 1,8,32 [--compile-only] [--compile-seconds 400] [--compile-processes 12] [--models ...]

EXEC_BINARY is `cargo build --release -p engine-cuda --example exec`. Models are exported with random weights (seed fixed, see networks.py). For each: outputs of PyTorch in fp32 without TF32 are saved and ours compared with them; then times, first
PyTorch's, then ours. Both are medians of single replays of a CUDA graph, by events on the device. Prints a table in Markdown; writes results.json.

With --compile, PyTorch's compiler comes beside them at the end, for these batches (`torch.compile(mode="max-autotune")`; compiled.py says how, and what is set). With --compile-only nothing
else is done: ours is what FOLDER/results.json has. --compile-seconds is for compiling; what isn't done then goes on in the next call with the same FOLDER. Measuring takes some ten seconds for each
pair more. Its times are put into results.json as `compiled_ms`.
"""

import argparse
import json
import math
import pathlib
import subprocess
import time

import torch

import compiled
from networks import SEQUENCE, export, make
from timing import in_precision, replay_time, rows_of

ALL = "resnet50:tf32,resnet50:f16,resnet18:f16,densenet121:f16,mobilenet_v2:f16,vgg16:f16"


def torch_times(model, example, precision, batches, expected):
    """Median ms of a replay, by batch; and how far PyTorch's own outputs in that precision are from those in fp32."""
    model, example = in_precision(model, example, precision)
    times, error = {}, 0.0
    for batch in batches:
        x = rows_of(example, batch, precision)
        with torch.no_grad():
            times[batch] = replay_time(model, x)
            right = expected[:batch]
            error = max(error, ((model(x).float() - right).abs().max() / right.abs().max()).item())
    return times, error


def compare(arguments):
    """Ours and PyTorch's CUDA graphs, one model after another."""
    batches = [int(batch) for batch in arguments.batches.split(",")]
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}", flush=True)
    results = []
    expected = {}
    for entry in arguments.models.split(","):
        name, precision = entry.split(":")
        path = arguments.folder / f"{name}.onnx"
        began = time.time()
        model, example = make(name, max(batches))
        if name not in expected:
            torch.backends.cuda.matmul.allow_tf32 = False
            torch.backends.cudnn.allow_tf32 = False
            with torch.no_grad():
                output = expected[name] = model(example)
            output.float().cpu().numpy().tofile(arguments.folder / f"{name}.output0.bin")
            example.cpu().numpy().tofile(arguments.folder / f"{name}.input0.bin")
            export(model, example, path)
        export_s = time.time() - began
        began = time.time()
        theirs, torch_error = torch_times(model, example, precision, batches, expected[name])
        torch_s = time.time() - began
        del model, example
        torch.cuda.empty_cache()
        began = time.time()
        command = [arguments.binary, str(arguments.folder / "cache"), precision, arguments.batches, arguments.proposals, str(path)]
        if name == "bert":
            command += [f"input:1={SEQUENCE}"]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if ran.returncode != 0:
            print(f"{entry}: exec failed with {ran.returncode}", flush=True)
        for line in ran.stdout.splitlines():
            result = json.loads(line)
            result["torch_ms"] = theirs[result["batch"]]
            result["torch_error"] = torch_error
            result["ratio"] = result["ms"] / result["torch_ms"]
            results.append(result)
            print(json.dumps(result), flush=True)
        print(f"{entry}: export {export_s:.1f} s, torch {torch_s:.1f} s, ours {time.time() - began:.1f} s", flush=True)
        (arguments.folder / "results.json").write_text(json.dumps(results))
    print("| model | " + " | ".join(f"b{batch}" for batch in batches) + " | error | PyTorch's |\n|---|" + "---|" * (len(batches) + 2))
    for entry in arguments.models.split(","):
        name, precision = entry.split(":")
        mine = {r["batch"]: r for r in results if r["model"] == name and r["precision"].lower() == precision}
        cells = [f"{mine[b]['ms']:.3f} / {mine[b]['torch_ms']:.3f} = {mine[b]['ratio']:.2f}" if b in mine else "" for b in batches]
        errors = (max(r["error"] for r in mine.values()), max(r["torch_error"] for r in mine.values())) if mine else (math.nan, math.nan)
        print(f"| {name} {precision} | " + " | ".join(cells) + f" | {errors[0]:.1e} | {errors[1]:.1e} |")
    if results:
        mean = compiled.geometric_mean([r["ratio"] for r in results])
        print(f"geometric mean {mean:.3f}, largest {max(r['ratio'] for r in results):.3f}, largest error {max(r['error'] for r in results):.1e}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--models", default=ALL)
    parser.add_argument("--batches", default="1,2,4,8,16,32")
    parser.add_argument("--proposals", default="4")
    parser.add_argument("--compile", default="")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--compile-seconds", type=float, default=400)
    parser.add_argument("--compile-processes", type=int, default=12)
    arguments = parser.parse_args()
    if arguments.compile_only and not arguments.compile:
        parser.error("--compile-only needs batches: --compile 1,8,32")
    if arguments.compile_only and not (arguments.folder / "results.json").exists():
        parser.error(f"{arguments.folder}/results.json isn't there: run without --compile-only first")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if not arguments.compile_only:
        compare(arguments)
    if arguments.compile:
        until = time.monotonic() + arguments.compile_seconds
        expired = lambda: time.monotonic() > until
        compiled.beside(arguments.folder, arguments.models, arguments.compile, expired, arguments.compile_processes)


if __name__ == "__main__":
    main()
