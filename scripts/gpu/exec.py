#!/usr/bin/env python3
"""Compares our executions with PyTorch's CUDA graphs on one GPU, in one run.

    scripts/gpu/exec.py EXEC_BINARY FOLDER [--models resnet50:tf32,resnet50:f16] [--batches 1,2,4,8,16,32] [--proposals 4] [--compile 1,8,32] [--compile-seconds 400]

EXEC_BINARY is `cargo build --release -p engine-cuda --example exec`. Models are exported with random weights (seed fixed, see networks.py). For each: outputs of PyTorch in fp32 without TF32 are saved and ours compared with them; then times, first
PyTorch's, then ours. Both are medians of single replays of a CUDA graph, by events on the device. Prints a table in Markdown; writes results.json.

With --compile, PyTorch's compiler comes beside them at the end (`torch.compile(mode="max-autotune-no-cudagraphs")`, then recorded in a CUDA graph like everything
else here, which leaves out what Python would add), for these batches and as many models as there is time for: a network takes it a minute or more.
"""

import argparse
import json
import math
import pathlib
import statistics
import subprocess
import time

import torch

from networks import SEQUENCE, export, make

ALL = "resnet50:tf32,resnet50:f16,resnet18:f16,densenet121:f16,mobilenet_v2:f16,vgg16:f16"


def choose_precision(precision):
    tf32 = precision != "f32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True


def in_precision(model, example, precision):
    """The model and its input as PyTorch computes them best."""
    choose_precision(precision)
    model = model.to(memory_format=torch.channels_last) if example.dim() == 4 else model
    return (model.half() if precision == "f16" else model), example


def rows_of(example, batch, precision):
    x = example[:batch].clone()
    if x.dim() == 4:
        x = x.to(memory_format=torch.channels_last)
        x = x.half() if precision == "f16" else x
    return x


def replay_time(model, x):
    """Median ms of a replay of the model's CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(x)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x)
    for _ in range(30):
        graph.replay()
    torch.cuda.synchronize()
    taken = []
    for _ in range(200):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end))
    return statistics.median(taken)


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


def compiled_times(entries, batches, seconds, results):
    """The same for what PyTorch's compiler makes of the models, as far as the time goes."""
    began, ratios = time.time(), []
    # Batch by batch, so that every model has its turn.
    for batch in batches:
        for name, precision in entries:
            ours = next((r for r in results if (r["model"], r["precision"].lower(), r["batch"]) == (name, precision, batch)), None)
            if time.time() - began > seconds or ours is None:
                continue
            torch._dynamo.reset()
            model, example = in_precision(*make(name, batch), precision)
            started = time.time()
            try:
                with torch.no_grad():
                    compiled = torch.compile(model, mode="max-autotune-no-cudagraphs", fullgraph=True, dynamic=False)
                    took = replay_time(compiled, rows_of(example, batch, precision))
            except Exception as error:
                print(f"{name} {precision} b{batch}: PyTorch's compiler failed: {type(error).__name__}: {str(error)[:200]}", flush=True)
                continue
            ours["compiled_ms"] = took
            ratios.append(ours["ms"] / took)
            print(f"{name} {precision} b{batch}: {ours['ms']:.3f} / {took:.3f} compiled = {ratios[-1]:.2f} ({time.time() - started:.0f} s)", flush=True)
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"ours over torch.compile: geometric mean {mean:.3f} of {len(ratios)}, largest {max(ratios):.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--models", default=ALL)
    parser.add_argument("--batches", default="1,2,4,8,16,32")
    parser.add_argument("--proposals", default="4")
    parser.add_argument("--compile", default="")
    parser.add_argument("--compile-seconds", type=float, default=400)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
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
    if arguments.compile:
        entries = [tuple(entry.split(":")) for entry in arguments.models.split(",")]
        compiled_times(entries, [int(batch) for batch in arguments.compile.split(",")], arguments.compile_seconds, results)
        (arguments.folder / "results.json").write_text(json.dumps(results))
    if results:
        mean = math.exp(sum(math.log(r["ratio"]) for r in results) / len(results))
        print(f"geometric mean {mean:.3f}, largest {max(r['ratio'] for r in results):.3f}, largest error {max(r['error'] for r in results):.1e}")


if __name__ == "__main__":
    main()
