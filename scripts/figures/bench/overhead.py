"""What the server itself costs: a network of 10x10 that takes 6 us, asked over loopback."""

import json
import os
import pathlib
import statistics
import struct
import subprocess

from figures.common import BENCH, Failed, Figure, Server, configure, generate, load, only, parameter, processor_seconds
from figures.common import processor_times, step, stolen_and_foreign, wait_for_quiet

LUA = pathlib.Path(__file__).with_name("overhead.lua")
VALUES = [0.25, -1.5, 0.5, 3.0, -0.125, 1.0, 2.0, -0.75, 0.0, 1.5]
# A deadline that is always met: the other way through the scheduler.
OBJECTIVE_MS = 50
CONNECTIONS = (1, 8, 32)
# Where others took less of the cores than this, a run counts as undisturbed.
QUIET = 0.05


def run(quick):
    repository = BENCH / "overhead"
    generate(repository, "mlp")
    timed = repository / "mlp_timed" / "1" / "model.onnx"
    if not timed.exists():
        timed.parent.mkdir(parents=True)
        timed.write_bytes((repository / "mlp" / "1" / "model.onnx").read_bytes())
    configure(repository, "mlp_timed", parameter("latency_objective_ms", OBJECTIVE_MS))
    bodies = write_bodies()
    seconds, wanted, most = (1, 1, 2) if quick else (3, 4, 10)
    runs = {}
    with Server(repository) as server:
        cases = [(kind, model, connections) for connections in CONNECTIONS for model in ("mlp", "mlp_timed")
                 for kind in ("json", "binary")]
        wrk(server, bodies["json"], "mlp", 32, 1)  # warm
        for repetition in range(most):
            with step(f"repetition {repetition + 1}"):
                # In turns, so that noise meets all of them.
                for kind, model, connections in cases:
                    measured = wrk(server, bodies[kind], model, connections, seconds)
                    runs.setdefault(f"{kind} {model} {connections}", []).append(measured)
                for connections in CONNECTIONS:
                    runs.setdefault(f"grpc mlp {connections}", []).append(grpc(server, connections, seconds))
            if all(sum(map(is_quiet, of)) >= wanted for of in runs.values()):
                break
            if not all(is_quiet(of[-1]) for of in runs.values()):
                wait_for_quiet(20)
    return figures(runs), {"runs": runs, "seconds_each": seconds, "objective_ms": OBJECTIVE_MS}


def write_bodies():
    tensor = {"name": "input", "shape": [1, 10], "datatype": "FP32"}
    plain = json.dumps({"inputs": [{**tensor, "data": VALUES}]}).encode()
    data = struct.pack("<10f", *VALUES)
    header = {"inputs": [{**tensor, "parameters": {"binary_data_size": len(data)}}],
              "outputs": [{"name": "output", "parameters": {"binary_data": True}}]}
    header = json.dumps(header).encode()
    kinds = {"json": (plain, "application/json", ""),
             "binary": (header + data, "application/octet-stream", str(len(header)))}
    bodies = {}
    for kind, (body, content_type, header_length) in kinds.items():
        path = BENCH / f"overhead-{kind}.body"
        path.write_bytes(body)
        bodies[kind] = {"BENCH_BODY": str(path), "BENCH_TYPE": content_type, "BENCH_HEADER_LENGTH": header_length}
    return bodies


def wrk(server, environment, model, connections, seconds):
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", LUA]
    command.append(f"http://{server.http}/v2/models/{model}/infer")
    return measured(server, lambda: parse(command, environment))


def parse(command, environment):
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("BENCH ")]
    if not lines:
        raise Failed(f"wrk gave no result: {(done.stderr or done.stdout).strip()[-500:]}")
    result = json.loads(lines[0][6:])
    if result["bad"] or not result["requests"]:
        raise Failed(f"wrk: {result['bad']} of {result['requests']} requests failed")
    return result


def grpc(server, connections, seconds):
    def ask():
        report = only(load(server, "--model", "mlp", "--concurrency", connections, "--duration", seconds, grpc=True))
        if report["errors"] or report["refused"]:
            raise Failed(f"gRPC: {report['errors']} errors, {report['refused']} refused")
        latency = report["latency_ms"]
        return {"requests": report["requests"], "seconds": seconds, "bad": 0,
                **{f"{name}_us": latency[name] * 1e3 for name in ("p50", "p90", "p99")}}

    return measured(server, ask)


def measured(server, ask):
    """Runs it and adds what the server's process used."""
    before, used = processor_times(), processor_seconds(server.pid)
    children = os.times()
    result = ask()
    used = processor_seconds(server.pid) - used
    after, then = processor_times(), os.times()
    own = used + then.children_user + then.children_system - children.children_user - children.children_system
    result["rate"] = result["requests"] / result["seconds"]
    result["cpu_us"] = used / result["requests"] * 1e6
    return {**result, **stolen_and_foreign(before, after, own)}


def is_quiet(run):
    return run["foreign"] + run["stolen"] < QUIET


def figures(runs):
    def chosen(case):
        """The runs that others left alone; all, where there are too few of these."""
        alone = [run for run in runs[case] if is_quiet(run)]
        return alone if len(alone) >= 2 else runs[case]

    def median(case, field):
        return statistics.median(run[field] for run in chosen(case))

    found = []

    def add(name, case, field, unit, target=None, lowest=True):
        best = (min if lowest else max)(run[field] for run in chosen(case))
        found.append(Figure(name, median(case, field), unit, target, f"best {best:,.1f}"))

    targets = {("HTTP JSON", 1, "p50_us"): ("<=", 80), ("HTTP JSON", 32, "rate"): (">=", 48_000),
               ("HTTP JSON", 32, "cpu_us"): ("<=", 30)}
    for name, case in (("HTTP JSON", "json mlp"), ("HTTP binary", "binary mlp"), ("HTTP JSON, deadline", "json mlp_timed"),
                       ("HTTP binary, deadline", "binary mlp_timed"), ("gRPC, punctual load", "grpc mlp")):
        for connections in CONNECTIONS:
            said = f"{name}, {connections} connection{'s' if connections > 1 else ''}"
            for field, title, unit in (("p50_us", "median latency", "us"), ("rate", "rate", "/s"),
                                       ("cpu_us", "server CPU for each request", "us")):
                # Alone a connection says what a request takes, many say what the server carries.
                if (field == "p50_us") == (connections < 32) or connections == 8:
                    target = targets.get((name, connections, field))
                    add(f"{said}, {title}", f"{case} {connections}", field, unit, target, lowest=field != "rate")
    # Within one repetition both met nearly the same machine.
    for field, connections, title in (("rate", 32, "rate at 32 connections"), ("cpu_us", 32, "server CPU at 32")):
        pairs = list(zip(runs[f"binary mlp {connections}"], runs[f"json mlp {connections}"]))
        alone = [pair for pair in pairs if all(map(is_quiet, pair))]
        if len(alone) >= 2:
            ratio = statistics.median(binary[field] / plain[field] for binary, plain in alone)
        else:
            ratio = median(f"binary mlp {connections}", field) / median(f"json mlp {connections}", field)
        # Equal is enough, and equal things differ by this much from run to run.
        target = (">=", 0.97) if field == "rate" else ("<=", 1.03)
        found.append(Figure(f"binary / JSON, {title}", ratio, "", target))
    counted = [run for case in runs for run in chosen(case)]
    taken = statistics.median(run["foreign"] + run["stolen"] for run in counted)
    every = sum(len(of) for of in runs.values())
    found.append(Figure("cores taken by others meanwhile", taken, note=f"{len(counted)} of {every} runs counted"))
    return found
