"""PyTorch's compiler beside ours: `torch.compile(mode="max-autotune")` for many models and batches. Called by exec.py, which says how.

Its search compiles some twenty Triton kernels for each different convolution and product, one after another, which leaves most cores idle: a network takes minutes. So pairs of a
model and a batch are compiled beside one another, each in a process of its own, and then measured one after another:

    compile   process, process, ...   each pair until it has run once; what isn't done after --compile-seconds is ended, and goes on from its caches in the next call
    measure   process                 each pair alone from its caches, recorded in a CUDA graph

What is set: `max-autotune-no-cudagraphs`, which is max-autotune without its own CUDA graph, because the whole is recorded in one here, as everything else is. The search is the default one in
full: its default backends (PyTorch's own kernels and Triton), all of their configurations, coordinate descent. TORCHINDUCTOR_COMPILE_THREADS divides the cores. Each pair has its own TORCHINDUCTOR_CACHE_DIR (graphs and autotuning results: the
file of the latter is written as a whole, so that processes that share it lose each other's) under FOLDER/inductor, and all share one TRITON_CACHE_DIR (kernels).

Autotuning beside other processes is noisy. So a benchmark of a candidate kernel holds a lock (FOLDER/inductor/gpu.lock): the device runs one at a time. Others still compile on the CPU then;
Inductor takes the shortest of up to a hundred runs by the device's events, which busy cores lengthen less than a median. Not behind the lock are first calls: each of a kernel before its benchmark, and
one of the compiled network.

With Python 3.11.0 to 3.11.8 Inductor compiles candidates one after another (it avoids a mistake of these versions): more --compile-processes help then.
"""

import contextlib
import dataclasses
import fcntl
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import time

from figures import program

# A pair that isn't loaded from its caches and measured after so long is given up.
MEASURE_SECONDS = 150
# Processes that wait for their turn to measure: they import PyTorch meanwhile.
MEASURE_PROCESSES = 3


@dataclasses.dataclass(frozen=True)
class Pair:
    model: str
    precision: str
    batch: int

    def __str__(self):
        return f"{self.model} {self.precision} b{self.batch}"

    def file_name(self):
        return f"{self.model}.{self.precision}.{self.batch}"

    def found_in(self, results):
        """Our own result for it, or None."""
        mine = (self.model, self.precision, self.batch)
        return next((r for r in results if (r["model"], r["precision"].lower(), r["batch"]) == mine), None)


def pairs_of(models, batches):
    """Batch by batch, so that every model has its turn."""
    entries = [entry.split(":") for entry in models.split(",")]
    return [Pair(model, precision, int(batch)) for batch in batches.split(",") for model, precision in entries]


class Lock:
    """One holder among all processes; whoever holds it may take it again. A process that ends gives it back."""

    def __init__(self, path):
        self.file = open(path, "a")
        self.held = 0

    def try_to_take(self):
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self.held += 1
        return True

    def __enter__(self):
        if self.held == 0:
            fcntl.flock(self.file, fcntl.LOCK_EX)
        self.held += 1

    def __exit__(self, *_):
        self.held -= 1
        if self.held == 0:
            fcntl.flock(self.file, fcntl.LOCK_UN)


@dataclasses.dataclass
class Job:
    """A command, and where what it prints goes."""

    key: object
    command: list
    environment: dict
    log: pathlib.Path


def run_all(jobs, processes, expired):
    """Runs commands, so many at a time, each in a process group of its own; yields (key, return code, seconds) when one ends. Once `expired()`, none begins any more, and those that run are ended
    with everything that they started: their return code is None."""
    waiting, running = list(jobs), {}
    try:
        while (waiting or running) and not expired():
            while waiting and len(running) < processes:
                job = waiting.pop(0)
                with open(job.log, "a") as log:
                    process = subprocess.Popen(
                        job.command, env=job.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
                    )
                running[process] = (job, time.monotonic())
            for process in [process for process in running if process.poll() is not None]:
                job, began = running.pop(process)
                yield job.key, process.returncode, time.monotonic() - began
            time.sleep(0.05)
    finally:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    for process, (job, began) in running.items():
        code = process.returncode
        yield job.key, None if code == -signal.SIGKILL else code, time.monotonic() - began


def environment(folder, pair, threads):
    caches = folder / "inductor"
    return {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(caches / pair.file_name()),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": str(threads),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
    }


def job_of(folder, pair, what, threads):
    command = program("gpu.compiled", what, pair.model, pair.precision, pair.batch, folder)
    return Job(pair, command, environment(folder, pair, threads), folder / "inductor" / f"{pair.file_name()}.log")


def done_file(folder, pair):
    return folder / "inductor" / f"{pair.file_name()}.done"


def time_file(folder, pair):
    return folder / "inductor" / f"{pair.file_name()}.ms"


def last_line(path):
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()] if path.exists() else []
    return lines[-1][:200] if lines else "it printed nothing"


def geometric_mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def beside(folder, models, batches, expired, processes, make_job=job_of):
    """Compiles (until `expired()`) and measures what isn't in FOLDER/results.json yet, beside our own results there, and puts it in as `compiled_ms`."""
    folder = folder.resolve()
    results_path = folder / "results.json"
    results = json.loads(results_path.read_text())
    pairs = []
    for pair in pairs_of(models, batches):
        if pair.found_in(results) is None:
            print(f"{pair}: not in {results_path}, so there is nothing to compare", flush=True)
        else:
            pairs.append(pair)
    (folder / "inductor").mkdir(exist_ok=True)
    # More than there are cores: a process that benchmarks or traces leaves its own idle.
    threads = max(2, 2 * len(os.sched_getaffinity(0)) // processes)
    print(f"Python {sys.version.split()[0]}: {len(pairs)} pairs, {processes} processes with {threads} compilers each", flush=True)
    missing = [pair for pair in pairs if not done_file(folder, pair).exists()]
    compiling = [make_job(folder, pair, "compile", threads) for pair in missing]
    for pair, code, took in run_all(compiling, processes, expired):
        if code is None:
            print(f"{pair}: not compiled after {took:.0f} s", flush=True)
        elif code != 0:
            print(f"{pair}: PyTorch's compiler failed with {code} after {took:.0f} s: {last_line(folder / 'inductor' / f'{pair.file_name()}.log')}", flush=True)
        else:
            print(f"{pair}: compiled in {took:.0f} s", flush=True)
    ready = [pair for pair in pairs if done_file(folder, pair).exists() and "compiled_ms" not in pair.found_in(results)]
    # Nothing is compiled here: one thread, and so no pool of compilers.
    measuring = [make_job(folder, pair, "measure", 1) for pair in ready]
    for pair, code, _ in run_all(measuring, MEASURE_PROCESSES, lambda: False):
        if code != 0:
            print(f"{pair}: not measured ({code}): {last_line(folder / 'inductor' / f'{pair.file_name()}.log')}", flush=True)
            continue
        ours = pair.found_in(results)
        ours["compiled_ms"] = float(time_file(folder, pair).read_text())
        print(f"{pair}: {ours['ms']:.3f} / {ours['compiled_ms']:.3f} compiled = {ours['ms'] / ours['compiled_ms']:.2f}", flush=True)
        results_path.write_text(json.dumps(results))
    ratios = [r["ms"] / r["compiled_ms"] for r in results if "compiled_ms" in r]
    if ratios:
        print(f"ours over torch.compile: geometric mean {geometric_mean(ratios):.3f} of {len(ratios)}, largest {max(ratios):.3f}", flush=True)
    return results


def benchmark_one_at_a_time(lock):
    """Lets Inductor's benchmarks run under the lock. What a first call compiles or looks for is done before it, so that others needn't wait for it."""
    from torch._inductor.runtime import benchmarking

    kind = type(benchmarking.benchmarker)
    original = kind.benchmark_gpu

    def benchmark_gpu(self, _callable, *arguments, **options):
        # A candidate that fails does so again below, where it is expected.
        with contextlib.suppress(Exception):
            _callable()
        with lock:
            return original(self, _callable, *arguments, **options)

    kind.benchmark_gpu = benchmark_gpu


def worker(what, model_name, precision, batch, folder):
    """One pair, in a process of its own."""
    # What PyTorch would import when it first compiles, so that nobody has to wait for it at the lock.
    import torch._inductor.compile_fx  # noqa: F401
    import torchvision  # noqa: F401

    pair, folder = Pair(model_name, precision, int(batch)), pathlib.Path(folder)
    lock = Lock(folder / "inductor" / "gpu.lock")
    compile_worker(pair, folder, lock) if what == "compile" else measure_worker(pair, folder, lock)


def network(pair):
    """Its compiled network (not compiled yet: that happens when it is called) and inputs."""
    import torch

    from figures.gpu.networks import make
    from figures.gpu.timing import in_precision, rows_of

    model, inputs = in_precision(*make(pair.model, pair.batch), pair.precision)
    compiled = torch.compile(model, mode="max-autotune-no-cudagraphs", fullgraph=True, dynamic=False)
    return compiled, rows_of(inputs, pair.batch, pair.precision)


def compile_worker(pair, folder, lock):
    import torch
    from torch._inductor.async_compile import AsyncCompile

    benchmark_one_at_a_time(lock)
    # Otherwise the first kernels are compiled by threads of this process.
    with contextlib.suppress(TimeoutError):
        AsyncCompile.wait_pool_ready()
    with lock:
        compiled, inputs = network(pair)
    with torch.no_grad():
        compiled(*inputs)
    torch.cuda.synchronize()
    done_file(folder, pair).touch()


def measure_worker(pair, folder, lock):
    import torch

    from figures.gpu.timing import replay_time

    # While one measures, nobody else uses the device.
    with lock:
        signal.alarm(MEASURE_SECONDS)
        compiled, inputs = network(pair)
        with torch.no_grad():
            time_file(folder, pair).write_text(str(replay_time(compiled, inputs)))


if __name__ == "__main__":
    worker(*sys.argv[1:])
