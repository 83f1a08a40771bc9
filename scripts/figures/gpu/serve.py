"""Measures the whole server on a GPU: capacity, figure 5, how right predictions and the simulator are, shares.

    PUNCTUAL_BINARY=... scripts/measure.py gpu.serve FOLDER PART [PART ...] [--devices cuda:0] [--seconds 4] [--count 3600] [--networks resnet50,bert] [--policies punctual,PyTorch] [--objectives 5,10] [--json FILE]

Parts: `capacity` (3,600 copies of ResNet-18 in 8 GB, Clockwork's section 6.2), `figure5` (15 copies of ResNet-50, 16 clients each), `honesty` (the same models at given rates, live
and in the simulator), `shares` (batches in parts of the GPU), `changes` (parts that change under load), `lengths` (BERT with sentences of different lengths), `shapes` (images of any height and width), `fallback` (a model that isn't for GPUs). Models have random weights,
images come as bytes. --json keeps what was found, part by part. Load comes from this machine over loopback. Needs PyTorch with torchvision to make the models, and no network.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

from figures import program
from figures.common import BENCH, BINARY, Metrics, Server, configure, parameter

BATCHES = "1,2,4,8,16"
# The last is PyTorch's own server.
POLICIES = ("punctual", "clockwork", "clipper", "timeout", "eager", "PyTorch")
OBJECTIVES_MS = (5, 10, 20, 50, 100, 500)
NETWORKS = ("resnet50", "vgg16", "mobilenet_v2", "bert")
# What is measured is as fast as it gets, from the first request on.
SETTLED = ("--ready-soon=false",)
# What is read of the metrics: thousands of models have millions of other lines.
WANTED = (
    "punctual_device", "punctual_prediction", "punctual_completion", "punctual_actions", "punctual_load_seconds", "punctual_invariant",
    "punctual_requests_total", "punctual_cold_starts_total", "punctual_batch_rows_sum", "punctual_batch_rows_count", "nv_inference_count",
)


def say(text):
    print(text, flush=True)


# ---- models ---------------------------------------------------------------------------------------------------------


def exported(folder, network, pixels=True):
    """The network's file, made if it isn't there."""
    path = folder / "networks" / f"{network}{'-pixels' if pixels else ''}.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(program("gpu.networks", "pixels" if pixels else "plain", network, path), check=True)
    return path


def repository(folder, network, names, precision, batches=BATCHES, pixels=True, more=""):
    """So many models of one file."""
    file = exported(folder, network, pixels)
    root = folder / f"{network}-{precision}-{len(names)}"
    largest = max(int(size) for size in batches.split(","))
    for name in names:
        target = root / name / "1" / "model.onnx"
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            os.link(file, target)
        configure(root, name, f"max_batch_size: {largest}\n" + parameter("batch_sizes", batches) + parameter("precision", precision) + more)
    return root


# ---- load and metrics -----------------------------------------------------------------------------------------------


def look(server):
    with urllib.request.urlopen(f"http://{server.addresses['metrics']}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return Metrics("\n".join(line for line in lines if line.startswith(WANTED)))


def load(url, processes):
    """Runs several generators at once, each with its own arguments; gives all their classes."""

    def one(arguments):
        command = [str(BINARY), "load", "--url", url, "--json", *map(str, arguments)]
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: {ran.stderr.strip()[-500:]}")
        return json.loads(ran.stdout)

    with concurrent.futures.ThreadPoolExecutor(len(processes)) as pool:
        reports = list(pool.map(one, processes))
    return [dict(found, seconds=report["seconds"]) for report in reports for found in report["classes"]]


def total(classes):
    """All classes as one: rates, counts, the worst quantiles."""
    counts = {key: sum(found[key] for found in classes) for key in ("requests", "good", "late", "refused", "errors", "unanswered", "late_from_send")}
    reasons = {}
    for found in classes:
        for reason, count in {**found["refused_by_reason"], **found["errors_by_reason"]}.items():
            reasons[reason] = reasons.get(reason, 0) + count
    return {
        **counts, "reasons": reasons, "goodput": sum(found["good"] / found["seconds"] for found in classes),
        "p50": max(found["latency_ms"]["p50"] for found in classes), "p99": max(found["latency_ms"]["p99"] for found in classes),
        "max": max(found["latency_ms"]["max"] for found in classes), "lag": max(found["send_lag_ms"]["p99"] for found in classes),
    }


def shown(found):
    others = {key: found[key] for key in ("late", "errors", "unanswered") if found[key]}
    return (
        f"asked {found['requests']}, good {found['good']} ({found['goodput']:.0f}/s), p50 {found['p50']:.2f}, p99 {found['p99']:.2f}, max {found['max']:.2f} ms, "
        f"send lag p99 {found['lag']:.2f} ms, {others or 'none late'}, {found['reasons'] or 'none refused'}"
    )


def quantile(before, after, name, part, **labels):
    """A quantile of a histogram's growth, on the line between the bounds of its bucket; None if nothing was counted."""
    grown = {}
    for sign, seen in ((-1, before), (1, after)):
        for found, has, value in seen.series:
            if found == f"{name}_bucket" and all(has.get(key) == wanted for key, wanted in labels.items()):
                bound = float(has["le"].replace("+Inf", "inf"))
                grown[bound] = grown.get(bound, 0) + sign * value
    bounds = sorted(grown)
    if not bounds or grown[bounds[-1]] <= 0:
        return None
    wanted, below, counted = part * grown[bounds[-1]], 0.0, 0.0
    for bound in bounds:
        if grown[bound] >= wanted:
            return below + (bound - below) * (wanted - counted) / max(1e-12, grown[bound] - counted) if bound != float("inf") else below
        below, counted = bound, grown[bound]


class Seen:
    """What the server says of the time since it was made."""

    def __init__(self, server):
        self.server, self.before, self.began = server, look(server), time.monotonic()

    def end(self):
        after, wall = look(self.server), time.monotonic() - self.began
        change = lambda name, **labels: after.sum(name, **labels) - self.before.sum(name, **labels)
        busy = {action: change("punctual_device_busy_seconds_total", action=action) / wall for action in ("execution", "load")}
        cold = change("punctual_cold_starts_total") / max(1, change("punctual_requests_total"))
        executed, good = change("nv_inference_count"), change("punctual_requests_total", outcome="success")
        say(
            f"    device busy {busy['execution']:.1%}, link {busy['load']:.1%}; {change('punctual_batch_rows_sum') / max(1, change('punctual_batch_rows_count')):.1f} rows in a batch; "
            f"{change('punctual_device_transfer_seconds_total', hidden='yes') / max(1e-9, change('punctual_device_transfer_seconds_total')):.0%} of transfers hidden; "
            f"{executed:.0f} rows executed, {good:.0f} good, cold {cold:.1%}; "
            f"actions {after.by('punctual_actions_total', 'result')}; broken invariants {after.by('punctual_invariant_violations_total', 'invariant')}"
        )

        def micros(name, **labels):
            """The median, the 99th and the 99.9th percentile."""
            values = seconds(name, **labels)
            return "none" if None in values else ", ".join(f"{value * 1e6:.0f}" for value in values)

        def seconds(name, **labels):
            return [quantile(self.before, after, name, part, **labels) for part in (0.5, 0.99, 0.999)]

        error, predictions = "punctual_prediction_error_seconds", {}
        for action in ("execution", "load"):
            off = seconds(error, action=action)
            predictions[action] = None if None in off else dict(zip(("p50", "p99", "p999"), off))
            counts = [change(f"{error}_count", action=action, direction=direction) for direction in ("over", "under")]
            say(
                f"    predicted {action}, off by p50, p99, p99.9 in us: {micros(error, action=action)}; of {counts[0]:.0f} that were quicker "
                f"{micros(error, action=action, direction='over')}; of {counts[1]:.0f} that were slower {micros(error, action=action, direction='under')}"
            )
        say(f"    predicted completions, off by: {micros('punctual_completion_error_seconds')}; loads took {micros('punctual_load_seconds')}")
        return {"busy": busy["execution"], "link": busy["load"], "cold": cold, "executed": executed, "good": good, "predictions": predictions}


# ---- parts ----------------------------------------------------------------------------------------------------------


def capacity(folder, devices, seconds, count=3600, memory="8GB"):
    names = [f"r18-{index:04}" for index in range(count + 1)]
    began = time.monotonic()
    root = repository(folder, "resnet18", names, "fp16")
    say(f"capacity: {len(names)} models written in {time.monotonic() - began:.1f} s")
    with Server(root, "--devices", devices, "--device-memory", memory, *SETTLED, "--cache-dir", str(folder / "cache")) as server:
        say(f"  ready {server.start_seconds:.1f} s after the start")
        minor, major = names[0], f"r18-{{0001..{count:04}}}"
        ramp = 30 * seconds
        found = []
        phases = [
            ("models join, one after another, until all are there; 1,000 requests/s", 1000, ramp + 2 * seconds, f",from_s={seconds / 2},join_every_ms={ramp * 1000 / count:.3f}"),
            ("all models, 1,000 requests/s", 1000, 5 * seconds, ""),
            ("all models, 3,000 requests/s", 3000, 5 * seconds, ""),
            ("all models, 6,000 requests/s", 6000, 5 * seconds, ""),
        ]
        for title, rate, length, more in phases:
            seen = Seen(server)
            arguments = [["--duration", length, "--class", f"name=minor,model={minor},rate=200,deadline_ms=100"]]
            # Each generator has a share of the rate and all of the models.
            generators = max(1, rate // 1500)
            for index in range(generators):
                spec = f"name=major,model={major},rate={rate / generators},deadline_ms=100{more}"
                arguments.append(["--duration", length, "--seed", index + 2, "--class", spec])
            classes = load(server.http, arguments)
            say(f"  {title}, {length:g} s")
            totals = {name: total([one for one in classes if one["name"] == name]) for name in ("minor", "major")}
            for name, one in totals.items():
                say(f"    {name}: {shown(one)}")
            found.append({"title": f"{title}, {length:g} s", **totals, "seen": seen.end()})
        return {"models": len(names), "ready_seconds": server.start_seconds, "phases": found}


def generators(names, clients, objective, length):
    """The closed loops of figure 5, on five threads."""
    parts = [names[index::5] for index in range(5)]
    return [
        ["--duration", length, "--warmup", length / 4]
        + [word for name in part for word in ("--class", f"name={name},model={name},concurrency={clients},deadline_ms={objective}")]
        for part in parts if part
    ]


def figure5(folder, devices, seconds, policies=POLICIES, objectives=OBJECTIVES_MS, precision="tf32"):
    names = [f"resnet50-{index:02}" for index in range(15)]
    root = repository(folder, "resnet50", names, precision)
    table = {}
    for policy in (policy for policy in policies if policy != "PyTorch"):
        with Server(root, "--devices", devices, "--policy", policy, *SETTLED, "--cache-dir", str(folder / "cache")) as server:
            say(f"figure 5, {policy}: ready after {server.start_seconds:.1f} s")
            seen = Seen(server)
            for objective in objectives:
                found = total(load(server.http, generators(names, 16, objective, seconds)))
                table[policy, objective] = found["goodput"]
                say(f"  {objective} ms: {shown(found)}")
            seen.end()
    rival = program("gpu.torch_server", "resnet50", len(names), precision)
    if "PyTorch" in policies and devices.startswith("cuda"):
        process = subprocess.Popen(rival, stdout=subprocess.PIPE, text=True)
        try:
            port = re.match(r"port (\d+)", process.stdout.readline())[1]
            for objective in objectives:
                found = total(load(f"127.0.0.1:{port}", generators(names, 16, objective, seconds)))
                table["PyTorch", objective] = found["goodput"]
                say(f"  PyTorch's server, {objective} ms: {shown(found)}")
        finally:
            process.terminate()
            process.wait()
    say("| goodput/s | " + " | ".join(f"{objective} ms" for objective in objectives) + " |\n|---|" + "---|" * len(objectives))
    for policy in dict.fromkeys(policy for policy, _ in table):
        say(f"| {policy} | " + " | ".join(f"{table[policy, objective]:,.0f}" for objective in objectives) + " |")
    goodput = {policy: [table[policy, objective] for objective in objectives] for policy in dict.fromkeys(policy for policy, _ in table)}
    return {"objectives_ms": list(objectives), "goodput": goodput}


def honesty(folder, devices, seconds, precision="tf32", objective=25):
    """Open loops at rates below and above what the device can do; the simulator has the table that `profile` writes."""
    names = [f"resnet50-{index:02}" for index in range(15)]
    root = repository(folder, "resnet50", names, precision)
    profiles = folder / "profiles"
    command = [str(BINARY), "profile", str(root), "--model", names[0], "--device", devices, "--runs", "400", "--output", str(profiles), "--cache-dir", str(folder / "cache")]
    subprocess.run(command, check=True)
    say((profiles / f"{names[0]}.csv").read_text().strip())
    header, row = [line.split(",") for line in (profiles / f"{names[0]}.csv").read_text().splitlines()[1:3]]
    profile = dict(zip(header, row))
    # Transfers overlap with other batches.
    capacity = 16e3 / (float(profile["b16_ms"]) - float(profile["b16_beside_ms"]))
    rates = [round(capacity * part, -1) for part in (0.5, 0.8, 1.0, 1.3)]
    file = folder / "honesty.toml"
    file.write_text(f"""
[[model]]
name = "resnet50"
count = {len(names)}
latency = {{ file = "profiles/{names[0]}.csv", row = "{names[0]}" }}
weights_mb = {profile["weights_mb"]}
slo_ms = {objective}

[devices]
count = 1
memory_mb = 60000

[scheduler]
schedule_ahead_ms = 0
profile_window = 100

[run]
policies = ["punctual", "clockwork"]
seconds = 20
warmup_seconds = 4
seeds = [1, 2, 3]

[sweep]
"workload.rate_rps" = {json.dumps(rates)}
""")
    ran = subprocess.run([str(BINARY), "simulate", str(file), "--json"], capture_output=True, text=True)
    if ran.returncode != 0:
        raise SystemExit(f"the simulator: {ran.stderr.strip()[-600:]}")
    simulated = {(found["policy"], found["point"]["workload.rate_rps"]): found for found in json.loads(ran.stdout)["results"]}
    rows = []
    for policy in ("punctual", "clockwork"):
        with Server(root, "--devices", devices, "--policy", policy, *SETTLED, "--cache-dir", str(folder / "cache")) as server:
            # The first rate comes twice: the first time, models are loaded during their first batches.
            for turn, rate in enumerate([rates[0], *rates]):
                seen = Seen(server)
                parts = [names[index::5] for index in range(5)]
                arguments = [
                    ["--duration", 2 * seconds, "--warmup", seconds / 2, "--seed", index + 1]
                    + ["--class", f"name=all,{','.join(f'model={name}' for name in part)},rate={rate / 5},deadline_ms={objective}"]
                    for index, part in enumerate(parts)
                ]
                found = total(load(server.http, arguments))
                there = simulated[policy, rate]
                live, model = found["good"] / found["requests"], there["satisfied"]
                say(f"  {policy}, {rate:.0f}/s ({rate / capacity:.0%}): live {live:.4f}, simulated {model:.4f}, apart {abs(live - model):.4f}; {shown(found)}")
                seen = seen.end()
                if turn > 0:
                    rows.append({"policy": policy, "rate": rate, "part": rate / capacity, "live": live, "simulated": model, "seen": seen})
    return {"rates": rows}


def shares(folder, devices, seconds, networks=NETWORKS):
    """Batches in parts of the GPU, by our kernels."""
    found = []
    for network in networks:
        root = repository(folder, network, [network], "fp16", "1,8,32", pixels=False)
        for parts in ("1", "0.2,0.3,0.5", "0.2,0.8"):
            device = devices if parts == "1" else f"{devices}:shares={parts}"
            command = [str(BINARY), "profile", str(root), "--device", device, "--runs", "100", "--loads", "3", "--cache-dir", str(folder / "cache")]
            began = time.monotonic()
            ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            said = ran.stdout.strip()
            say(f"{network}, shares {parts} ({time.monotonic() - began:.0f} s)\n{said}")
            found.append({"network": network, "shares": parts, "output": said})
    return {"networks": found}


def changes(folder, devices, seconds, precision="tf32", rate=8000, objective=25):
    """Two shares under load, first left alone, then divided differently ten times a second."""
    names = [f"resnet50-{index:02}" for index in range(15)]
    root = repository(folder / "changes", "resnet50", names, precision, "1,4,8")
    divisions, phases = ("0.5,0.5", "0.25,0.75"), []
    with Server(root, "--devices", f"{devices}:shares={'|'.join(divisions)}", *SETTLED, "--cache-dir", str(folder / "cache")) as server:
        say(f"changes: ready after {server.start_seconds:.1f} s")
        for title, pause in (("models are loaded", None), ("left alone", None), ("changed every 100 ms", 0.1)):
            took, stop = [], threading.Event()

            def change():
                while not stop.wait(pause):
                    request = urllib.request.Request(f"http://{server.http}/v2/shares", f'{{"shares": [{divisions[(len(took) + 1) % 2]}]}}'.encode())
                    began = time.perf_counter()
                    urllib.request.urlopen(request, timeout=10).read()
                    took.append(time.perf_counter() - began)

            seen, changer = Seen(server), threading.Thread(target=change)
            if pause:
                changer.start()
            parts = [names[index::5] for index in range(5)]
            arguments = [
                ["--duration", 2 * seconds, "--seed", index + 1, "--class", f"name=all,{','.join(f'model={name}' for name in part)},rate={rate / 5},deadline_ms={objective}"]
                for index, part in enumerate(parts)
            ]
            found = total(load(server.http, arguments))
            stop.set()
            if pause:
                changer.join()
            say(f"  {title}: {shown(found)}")
            if took:
                took.sort()
                say(f"    {len(took)} changes, each by HTTP in p50 {took[len(took) // 2] * 1e6:.0f} us, max {took[-1] * 1e6:.0f} us")
            middle, longest = (took[len(took) // 2] * 1e6, took[-1] * 1e6) if took else (None, None)
            phases.append({"title": title, "found": found, "seen": seen.end(), "changes": len(took), "change_p50_us": middle, "change_max_us": longest})
    return {"phases": phases}


def ask(url, model, tensors, shape=None):
    """One request in JSON: the first output as a list of numbers, or the error's sentence. `shape`: of all inputs."""
    inputs = [{"name": name, "datatype": datatype, "shape": shape or [1, len(values)], "data": values} for name, datatype, values in tensors]
    request = urllib.request.Request(f"http://{url}/v2/models/{model}/infer", json.dumps({"inputs": inputs}).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["outputs"][0]["data"]
    except urllib.error.HTTPError as error:
        return json.load(error).get("error", str(error))


def lengths(folder, devices, seconds):
    """Sentences of any length in a model that is prepared for four of them: filled up and masked, as on the CPU."""
    file = folder / "networks" / "sentences.onnx"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(program("gpu.networks", "sentences", "sentences", file), check=True)
    root = folder / "sentences"
    target = root / "sentences" / "1" / "model.onnx"
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        os.link(file, target)
    configure(root, "sentences", "max_batch_size: 8\n" + parameter("batch_sizes", "1,4,8") + parameter("sequence_lengths", "16,32,64,128") + parameter("precision", "fp16"))
    answers = {}
    for where in (devices, "cpu:1"):
        with Server(root, "--devices", where, "--cpu-fallback=false", *SETTLED, "--cache-dir", str(folder / "cache")) as server:
            say(f"lengths on {where}: ready after {server.start_seconds:.1f} s")
            answers[where] = []
            for length in (1, 4, 15, 16, 17, 31, 40, 64, 100, 128):
                ids = [(7 * place + length) % 1000 for place in range(length)]
                answers[where].append((length, ask(server.http, "sentences", [("ids", "INT64", ids), ("attention_mask", "INT64", [1] * length)])))
            if where == devices:
                refusal = ask(server.http, "sentences", [("ids", "INT64", [1] * 129), ("attention_mask", "INT64", [1] * 129)])
                say(f"  129 tokens: {refusal}")
                seen = Seen(server)
                arguments = ["--duration", seconds, "--model", "sentences", "--rate", 1000, "--deadline-ms", 20, "--lengths", "uniform:4:128", "--value", "attention_mask:1"]
                found = total(load(server.http, [arguments]))
                say(f"  {shown(found)}")
                seen.end()
    worst = 0.0
    for (length, ours), (_, theirs) in zip(answers[devices], answers["cpu:1"]):
        if isinstance(ours, str) or isinstance(theirs, str) or len(ours) != len(theirs):
            sys.exit(f"{length} tokens: {str(ours)[:200]} against {str(theirs)[:200]}")
        worst = max(worst, max(abs(a - b) for a, b in zip(ours, theirs)) / max(abs(b) for b in theirs))
    say(f"  largest difference from ONNX Runtime on the CPU, of the largest output: {worst:.1e}")
    return {"found": found, "difference": worst, "refusal": str(refusal)}


def open_images(target):
    """A network of convolutions whose images may have any height and width."""
    from onnx import TensorProto, helper, save

    channels = (3, 16, 32, 32)
    nodes, weights, tensor = [], [], "image"
    for layer, (inner, outer) in enumerate(zip(channels, channels[1:])):
        count = outer * inner * 9
        weights.append(helper.make_tensor(f"w{layer}", TensorProto.FLOAT, (outer, inner, 3, 3), [((index * 37) % 101 - 50) / 500 for index in range(count)]))
        nodes.append(helper.make_node("Conv", [tensor, f"w{layer}"], [f"c{layer}"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]))
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"]))
        tensor = f"r{layer}"
    nodes.append(helper.make_node("Transpose", [tensor], ["map"], perm=[0, 2, 3, 1]))
    made = helper.make_graph(
        nodes, "images", [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info("map", TensorProto.FLOAT, ["rows", "down", "across", 32])], weights,
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(target))


def shapes(folder, devices, seconds, within=120):
    """Images of any height and width: the CPU computes the first of a shape, the GPU those after it, and both say the same."""
    root = folder / "shapes"
    open_images(root / "images" / "1" / "model.onnx")
    configure(root, "images", parameter("precision", "fp32"))
    asked = [(48, 64), (64, 48), (96, 96), (31, 77), (128, 32), (64, 64)]

    def answers(server):
        for height, width in asked:
            values = [((7 * place) % 255) / 255 for place in range(3 * height * width)]
            began = time.monotonic()
            answer = ask(server.http, "images", [("image", "FP32", values)], [1, 3, height, width])
            yield answer, (time.monotonic() - began) * 1e3

    with Server(root, "--devices", "cpu:1", *SETTLED, "--cache-dir", str(folder / "cache")) as server:
        expected = [answer for answer, _ in answers(server)]
    with Server(root, "--devices", devices, *SETTLED, "--cache-dir", str(folder / "cache"), log="info") as server:
        first = list(answers(server))
        log, give_up_at, prepared = pathlib.Path(server.log.name), time.monotonic() + within, 0
        while prepared < len(asked) and time.monotonic() < give_up_at:
            time.sleep(0.1)
            lines = [line for line in log.read_text().splitlines() if "on the device from now on" in line or "stays on the CPU" in line]
            prepared = sum(any(f"[1, 3, {height}, {width}]" in line for line in lines if "from now on" in line) for height, width in asked)
        later = list(answers(server))
    difference = lambda found: max(
        max(abs(a - b) for a, b in zip(ours, theirs)) / max(map(abs, theirs)) if isinstance(ours, list) and len(ours) == len(theirs) else float("inf")
        for (ours, _), theirs in zip(found, expected)
    )
    took = lambda found: [round(milliseconds, 2) for _, milliseconds in found]
    say(f"shapes: first {took(first)} ms, off by {difference(first):.1e}; later {took(later)} ms, off by {difference(later):.1e}")
    for line in lines:
        say(f"  {line}")
    return {"shapes": len(asked), "prepared": prepared, "first_ms": took(first), "later_ms": took(later), "difference": max(difference(first), difference(later))}


def fallback(folder, devices, seconds):
    """A model with an operator that isn't there for GPUs: named, or computed on the CPU if that is allowed."""
    from onnx import TensorProto, helper, save

    root = folder / "fallback"
    target = root / "scaled" / "1" / "model.onnx"
    target.parent.mkdir(parents=True, exist_ok=True)
    size = 8
    node = helper.make_node("Scaler", ["input"], ["output"], domain="ai.onnx.ml", offset=[0.5] * size, scale=[2.0] * size)
    made = helper.make_graph(
        [node], "scaled", [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", size])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", size])],
    )
    save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)], ir_version=8), str(target))
    configure(root, "scaled", "max_batch_size: 4\n" + parameter("batch_sizes", "1,4"))
    try:
        with Server(root, "--devices", devices, "--cpu-fallback=false", *SETTLED, "--cache-dir", str(folder / "cache")):
            refusal = "a Scaler is served on the GPU"
    except Exception as error:
        refusal = str(error)
    say(f"fallback, not allowed: {refusal}")
    answers = []
    for options in (["--devices", devices], ["--devices", "cpu:1"]):
        with Server(root, *options, *SETTLED, "--cache-dir", str(folder / "cache")) as server:
            answers.append(ask(server.http, "scaled", [("input", "FP32", [index / 8 for index in range(size)])]))
    # Equal sentences are no equal outputs.
    same = isinstance(answers[0], list) and answers[0] == answers[1]
    say(f"fallback, allowed: {answers[0]}, as on the CPU alone: {same}")
    return {"refusal": refusal, "same": same}


PARTS = {part.__name__: part for part in (capacity, figure5, honesty, shares, changes, lengths, shapes, fallback)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--devices", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--count", type=int, default=3600)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--objectives", default=",".join(map(str, OBJECTIVES_MS)), help="in ms")
    parser.add_argument("--json", type=pathlib.Path, help="where figures are kept")
    arguments = parser.parse_args()
    BENCH.mkdir(parents=True, exist_ok=True)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    more = {
        "capacity": {"count": arguments.count},
        "figure5": {"policies": arguments.policies.split(","), "objectives": [int(objective) for objective in arguments.objectives.split(",")]},
        "shares": {"networks": arguments.networks.split(",")},
    }
    found = {}
    for part in arguments.parts:
        found[part] = PARTS[part](arguments.folder.resolve(), arguments.devices, arguments.seconds, **more.get(part, {}))
        if arguments.json:
            arguments.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
