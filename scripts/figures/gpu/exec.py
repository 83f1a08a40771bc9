"""Compares our executions with PyTorch's CUDA graphs on one GPU, in one run.

    scripts/measure.py gpu.exec FOLDER [--models resnet50:tf32,resnet50:f16] [--batches 1,2,4,8,16,32] [--proposals 4]
    scripts/measure.py gpu.exec FOLDER --models named --batches 1,4 --proposals 2 [--seconds 400] [--prepare-processes 4]
    scripts/measure.py gpu.exec FOLDER --compile 1,8,32 [--compile-only] [--compile-seconds 400] [--compile-processes 12] [--models ...]

Ours are run by `engine-lab exec` (`cargo build --release -p engine-lab`; ENGINE_LAB_BINARY says where else it is). Models are exported with random weights (seed fixed, see networks.py), some at a time. For each: outputs of PyTorch in fp32 without TF32 are saved and all of ours compared with them; then times,
first PyTorch's, then ours. Both are medians of single replays of a CUDA graph, by events on the device. Prints a table in Markdown, and how many are over the bound of errors or failed (report.py says what that is); writes
results.json, and failures.json with what failed. What fails is named, and the others go on; so is what hasn't begun after --seconds. `named` stands for all networks of report.NAMED.

With --compile, PyTorch's compiler comes beside them at the end, for these batches (`torch.compile(mode="max-autotune")`; compiled.py says how, and what is set). With --compile-only nothing
else is done: ours is what FOLDER/results.json has. --compile-seconds is for compiling; what isn't done then goes on in the next call with the same FOLDER. Measuring takes some ten seconds for each
pair more. Its times are put into results.json as `compiled_ms`.
"""

import argparse
import concurrent.futures
import copy
import json
import math
import multiprocessing
import pathlib
import subprocess
import sys
import time

import torch

from figures.common import ENGINE_LAB
from figures.gpu import compiled, report
from figures.gpu.networks import largest_error, make, outputs_of, prepare, split_name, without_tf32
from figures.gpu.timing import in_precision, replay_time, rows_of

ALL = "resnet50:tf32,resnet50:f16,resnet18:f16,densenet121:f16,mobilenet_v2:f16,vgg16:f16"
# One model of ours that takes longer is given up: it hangs.
EXEC_SECONDS = 150


def in_short(error):
    """The beginning of an error, or of what a command said, in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def prepare_all(names, batch, folder, processes):
    """Exports networks and saves their outputs, in processes beside one another. Returns a sentence for each name that failed."""
    networks, failures = {}, {}
    for name in names:
        networks.setdefault(split_name(name)[0], []).append(name)
    with concurrent.futures.ProcessPoolExecutor(min(processes, len(networks)), multiprocessing.get_context("spawn")) as pool:
        jobs = [(group, pool.submit(prepare, group, batch, folder)) for group in networks.values()]
        for group, job in jobs:
            if job.exception() is not None:
                failures |= dict.fromkeys(group, f"not exported: {in_short(job.exception())}")
    return failures


def torch_times(model, inputs, precision, batches):
    """Median ms of a replay, by batch; and how far PyTorch's own outputs in that precision are from those in fp32."""
    with without_tf32():
        expected = outputs_of(model, inputs)
    model, inputs = in_precision(copy.deepcopy(model), inputs, precision)
    times, error = {}, 0.0
    for batch in batches:
        rows = rows_of(inputs, batch, precision)
        with torch.no_grad():
            times[batch] = replay_time(model, rows)
        error = max(error, largest_error(outputs_of(model, rows), [right[:batch] for right in expected]))
    return times, error


def our_results(arguments, name, precision):
    """What exec says about each batch, and a sentence if it failed."""
    path = arguments.folder / f"{name}.onnx"
    command = [str(ENGINE_LAB), "exec", str(arguments.folder / "cache"), precision, arguments.batches, arguments.proposals, str(path)]
    length = split_name(name)[1]
    command += [f"sequence={length}"] if length else []
    try:
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=EXEC_SECONDS)
    except subprocess.TimeoutExpired:
        return [], f"exec took more than {EXEC_SECONDS} s"
    sys.stderr.write(ran.stderr)
    failed = f"exec failed with {ran.returncode}: {in_short(ran.stderr)}" if ran.returncode != 0 else None
    return [json.loads(line) for line in ran.stdout.splitlines()], failed


def compare(arguments):
    """Ours and PyTorch's CUDA graphs, one model after another."""
    start = time.monotonic()
    batches = [int(batch) for batch in arguments.batches.split(",")]
    entries = arguments.models.split(",")
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}", flush=True)
    names = dict.fromkeys(entry.split(":")[0] for entry in entries)
    not_exported = prepare_all(names, max(batches), arguments.folder, arguments.prepare_processes)
    print(f"{len(names)} networks exported in {time.monotonic() - start:.1f} s", flush=True)
    results, failures, made = [], {}, {}

    def keep():
        (arguments.folder / "results.json").write_text(json.dumps(results))
        (arguments.folder / "failures.json").write_text(json.dumps(failures))

    # What an earlier call left isn't of this one, and what isn't begun has failed too.
    keep()
    for entry in entries:
        name, precision = entry.split(":")
        if name in not_exported or time.monotonic() - start > arguments.seconds:
            failures[entry] = [not_exported.get(name, f"not begun after {arguments.seconds:.0f} s")]
            continue
        began = time.monotonic()
        # PyTorch's errors are of all kinds, and none of them says that ours is wrong.
        try:
            if name not in made:
                made[name] = make(name, max(batches))
            theirs, torch_error = torch_times(*made[name], precision, batches)
        except Exception as error:
            failures[entry] = [f"PyTorch failed: {in_short(error)}"]
            theirs, torch_error = {}, math.nan
        torch.cuda.empty_cache()
        torch_s, began = time.monotonic() - began, time.monotonic()
        ours, failed = our_results(arguments, name, precision)
        if failed:
            failures.setdefault(entry, []).append(failed)
        for result in ours:
            result["torch_ms"] = theirs.get(result["batch"], math.nan)
            result["torch_error"] = torch_error
            result["ratio"] = result["ms"] / result["torch_ms"]
            results.append(result)
            print(json.dumps(result), flush=True)
        said = "".join(f"; {sentence}" for sentence in failures.get(entry, []))
        print(f"{entry}: torch {torch_s:.1f} s, ours {time.monotonic() - began:.1f} s{said}", flush=True)
        keep()
    keep()
    print(report.table(entries, batches, results, failures))
    print(f"{time.monotonic() - start:.0f} s in all")
    print(report.summary(entries, results, failures))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--models", default=ALL)
    parser.add_argument("--batches", default="1,2,4,8,16,32")
    parser.add_argument("--proposals", default="4")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--prepare-processes", type=int, default=4)
    parser.add_argument("--compile", default="")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--compile-seconds", type=float, default=400)
    parser.add_argument("--compile-processes", type=int, default=12)
    arguments = parser.parse_args()
    arguments.models = ",".join(report.expand(arguments.models))
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
