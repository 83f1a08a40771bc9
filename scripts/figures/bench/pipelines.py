"""Pipelines live: what one more stage costs, and one deadline over three models on emulated devices beside the simulator."""

import itertools
import json
import shutil
import statistics
import subprocess
import time

from figures.bench.cache import Connection, cpu_seconds, request
from figures.bench.emulated import REPLY_MS
from figures.common import BENCH, BINARY, Failed, Figure, Server, difference, generate, load, parameter, step

STAGES = (1, 2, 4, 8)
# The application `traffic` (Gpulet's figure 11) ten times slower than on an H200, as straight lines, so that two cores can emulate it: detect, then recognise twice.
TRAFFIC = {"detect": (0.65, 11.0), "recognise": (0.4, 10.4), "identify": (1.1, 3.8)}
DEVICES = 4
SPLITS = ("load", "profile", "equal")
# Twice the longest way with batches of one.
DEADLINE_MS = 2 * sum(sum(TRAFFIC[name]) for name in ("detect", "recognise"))
RATES = (200, 280, 360)


def run(quick):
    figures, details = [], {"stages": stages(quick)}
    alone = details["stages"]["model"]
    for count in STAGES:
        found = details["stages"][str(count)]
        figures.append(Figure(f"{count} stages: time", found["p50_us"], "us", note=f"p99 {found['p99_us']:.0f}; the model alone {alone['p50_us']:.0f}"))
        figures.append(Figure(f"{count} stages: server CPU", found["cpu_us"], "us", note=f"the model alone {alone['cpu_us']:.0f}"))
    first, last = (details["stages"][str(count)] for count in (STAGES[0], STAGES[-1]))
    for key, title in [("p50_us", "time"), ("cpu_us", "server CPU")]:
        each = (last[key] - first[key]) / (STAGES[-1] - STAGES[0])
        figures.append(Figure(f"one more stage: {title}", each, "us"))
    details["traffic"], simulated = {}, simulate(3 if quick else 20)
    details["simulated"] = simulated
    for split, rate in itertools.product(SPLITS, RATES[1:2] if quick else RATES):
        with step(f"traffic, split by {split}, {rate} requests/s"):
            found = traffic(split, rate, 4 if quick else 15)
        details["traffic"][f"{split} {rate}"] = found
        there = simulated[split][rate]
        note = f"simulated {there['satisfied']:.3f}; wasted {found['wasted']:.4f} of the device time, simulated {there['wasted']:.4f}"
        figures.append(Figure(f"split by {split}, {rate} requests/s: in time", found["good"], "", note=note))
    return figures, details


def chain(count):
    """A pipeline that asks one model so many times, each time with what it gave before."""
    names = ["input", *(f"t{number}" for number in range(1, count)), "output"]
    lines = ['kind = "pipeline"', 'inputs = ["input"]', 'outputs = ["output"]']
    for number, (taken, made) in enumerate(itertools.pairwise(names)):
        lines += ["[[stage]]", f'name = "{number}"', 'model = "mlp"', f'inputs.input = "{taken}"', f'outputs.output = "{made}"']
    return "\n".join(lines)


def stages(quick):
    repository = BENCH / "pipelines"
    shutil.rmtree(repository, ignore_errors=True)
    generate(repository, "mlp")
    for count in STAGES:
        (repository / f"chain{count}").mkdir()
        (repository / f"chain{count}" / "endpoint.toml").write_text(chain(count))
    found = {}
    with Server(repository) as server, step("a model alone, and pipelines of one to eight stages"):
        connection = Connection(server.http)
        runs = {name: ([], 0.0) for name in ["model", *map(str, STAGES)]}
        ask = {name: request("mlp" if name == "model" else f"chain{name}", [1, 10], 0.5) for name in runs}
        [connection.ask(each) for each in list(ask.values()) * 20]  # warm
        # In rounds, so that noise meets all of them.
        for _ in range(5):
            for name, (times_us, cpu) in runs.items():
                before = cpu_seconds(server.pid)
                for _ in range(40 if quick else 400):
                    began = time.perf_counter()
                    connection.ask(ask[name])
                    times_us.append((time.perf_counter() - began) * 1e6)
                runs[name] = times_us, cpu + cpu_seconds(server.pid) - before
    for name, (times_us, cpu) in runs.items():
        times_us.sort()
        p99 = times_us[int(len(times_us) * 0.99)]
        found[name] = {"p50_us": statistics.median(times_us), "p99_us": p99, "cpu_us": cpu / len(times_us) * 1e6}
    return found


def traffic(split, rate, seconds):
    repository = BENCH / "pipelines-traffic"
    shutil.rmtree(repository, ignore_errors=True)
    for name, (alpha_ms, beta_ms) in TRAFFIC.items():
        (repository / name / "1").mkdir(parents=True)
        latency = parameter("emulated_latency", f"alpha_ms={alpha_ms},beta_ms={beta_ms}")
        (repository / name / "config.pbtxt").write_text(f'platform: "emulated"\nmax_batch_size: 32\n{latency}')
    (repository / "traffic").mkdir()
    (repository / "traffic" / "endpoint.toml").write_text(
        'kind = "pipeline"\ninputs = ["input"]\noutputs = ["y", "z"]\n'
        '[[stage]]\nmodel = "detect"\ninputs.input = "input"\noutputs.output = "x"\n'
        '[[stage]]\nmodel = "recognise"\ninputs.input = "x"\noutputs.output = "y"\n'
        '[[stage]]\nmodel = "identify"\ninputs.input = "x"\noutputs.output = "z"\n'
    )
    with Server(repository, "--devices", f"emulated:{DEVICES}", "--pipeline-split", split) as server:
        load(server, "--model", "traffic", "--rate", rate / 4, "--deadline-ms", 1000, "--duration", 1)  # warm
        before = server.metrics()
        options = ("--rate", rate, "--deadline-ms", DEADLINE_MS, "--duration", seconds, "--warmup", 0)
        report = load(server, "--model", "traffic", *options)["total"]
        after = server.metrics()
    busy = difference(before, after, "punctual_device_busy_seconds_total", action="execution")
    wasted = difference(before, after, "punctual_wasted_device_seconds_total", model="traffic")
    return {"good": report["good"] / max(1, report["requests"]), "wasted": wasted / max(busy, 1e-9), "report": report}


def simulate(seconds):
    """The same in the simulator, by split and rate."""
    folder = BENCH / "pipelines-simulated"
    folder.mkdir(parents=True, exist_ok=True)
    models = "\n".join(
        f'[[model]]\nname = "{name}"\nlatency = {{ alpha_ms = {alpha_ms}, beta_ms = {beta_ms} }}\nmax_batch = 32\n'
        for name, (alpha_ms, beta_ms) in TRAFFIC.items()
    )
    found = {}
    for split in SPLITS:
        file = folder / f"{split}.toml"
        file.write_text(f"""
{models}
[[pipeline]]
name = "traffic"
slo_ms = {DEADLINE_MS - REPLY_MS}
stage = [{{ model = "detect", next = ["recognise", "identify"] }}, {{ model = "recognise" }}, {{ model = "identify" }}]

[devices]
count = {DEVICES}

[workload]
arrivals = {{ process = "poisson" }}
rate_rps = 1

[policy.it]
kind = "punctual"
split = "{split}"

[run]
policies = ["it"]
seconds = {seconds}
warmup_seconds = 1
seeds = [1, 2]

[sweep]
"workload.rate_rps" = {json.dumps(list(RATES))}
""")
        done = subprocess.run([BINARY, "simulate", file, "--json"], capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(f"punctual simulate {file}: {done.stderr.strip()[-500:]}")
        results = json.loads(done.stdout)["results"]
        found[split] = {result["point"]["workload.rate_rps"]: result for result in results}
    return found
