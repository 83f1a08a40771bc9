"""Sentences of different lengths: how many are answered in time, with the policy that knows about lengths and with others.

MiniLM with its real weights, on one core; three applications whose sentences have other lengths. The same in the simulator,
from what was measured here: the two must agree.
"""

import json
import math
import random
import shutil
import statistics
import subprocess

from figures.common import BENCH, BINARY, ROOT, Failed, Figure, Server, configure, load, parameter, step, watch

MODEL = "all-minilm-l6-v2"
# What `punctual serve` does without a flag, and two rivals.
DEFAULT = "punctual"
POLICIES = (DEFAULT, "clockwork", "timeout")
# Of what 99 of 100 sentences take alone at most.
OBJECTIVES = (1.5, 2, 3, 4, 5)
SHORTEST, LONGEST = 4, 256
# Each with its share of the requests, and the median and the deviation of the logarithm of its lengths.
APPLICATIONS = {"search": (0.5, 12, 0.5), "chat": (0.3, 40, 0.5), "documents": (0.2, 140, 0.4)}
# What one core could answer if every request ran alone, and how much of that is asked for.
LOAD = 0.8
MEASURED_LENGTHS = (4, 8, 16, 32, 64, 128, 192, 256)
SIZES = "1,2,4,8"


def run(quick):
    if not (ROOT / "models" / MODEL).exists():
        raise Failed(f"models/{MODEL} is missing: fetch it with 'make models'")
    seconds = 6 if quick else 60
    objectives = OBJECTIVES[:2] if quick else OBJECTIVES
    lengths = draw(20_000)
    repository = prepare(round(statistics.mean(lengths)))
    curve, profile = measure(repository, quick)
    alone = sorted(at(curve, length) for length in lengths)
    mean, p99 = statistics.mean(alone), alone[int(0.99 * len(alone))]
    rate = LOAD * 1000 / mean
    live = {
        policy: {objective: serve(repository, policy, objective * p99, rate, seconds) for objective in objectives}
        for policy in POLICIES
    }
    with step("the same in the simulator"):
        simulated = simulate(curve, profile, lengths, objectives, p99, rate, seconds)
    details = {"curve_ms": curve, "profile": profile, "alone_mean_ms": mean, "alone_p99_ms": p99, "rate": rate,
               "live": live, "simulated": simulated}
    return figures(live, simulated, mean, p99, rate), details


def draw(count):
    """Lengths as all applications together send them, always the same ones."""
    source = random.Random(1)
    shares = [share for share, _, _ in APPLICATIONS.values()]
    found = []
    for _ in range(count):
        _, median, sigma = source.choices(list(APPLICATIONS.values()), shares)[0]
        length = round(median * math.exp(sigma * source.gauss(0, 1)))
        found.append(min(max(length, SHORTEST), LONGEST))
    return found


def prepare(length):
    """A repository with the one model, which may be padded, measured at the average length."""
    repository = BENCH / "minilm"
    # Measured anew each time: the simulator gets the same table, and one from a busy machine would mislead both.
    shutil.rmtree(repository / ".punctual" / "profiles", ignore_errors=True)
    target = repository / MODEL / "1" / "model.onnx"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / "models" / MODEL / "1" / "model.onnx", target)
    names = ("input_ids", "attention_mask", "token_type_ids")
    configure(
        repository, MODEL,
        "max_batch_size: 8\n"
        + parameter("batch_sizes", SIZES)
        + parameter("padding", ",".join(f"{name}=0" for name in names))
        + parameter("profile_inputs", ",".join(f"{name}={length}" for name in names)),
    )
    return repository


def asking(*more):
    # A mask of ones: what was sent counts.
    return ("--value", "attention_mask:1", *more)


def measure(repository, quick):
    """What a sentence takes alone, by its length, and what batches of average ones take."""
    curve = {}
    with Server(repository, "--online-profile-share", "0") as server:
        for length in MEASURED_LENGTHS:
            with step(f"{length} tokens alone"), watch(server) as view:
                load(server, *asking("--model", MODEL, "--concurrency", 1, "--lengths", length,
                                     "--duration", 1 if quick else 4))
            curve[length] = view["row_ms"]
    files = list((repository / ".punctual" / "profiles").glob("*.json"))
    if not files:
        raise Failed("the server kept no profile")
    kept = json.loads(max(files, key=lambda file: file.stat().st_mtime).read_text())
    batches, quantiles = ({entry["batch"]: entry[key] / 1e6 for entry in kept["batches"]} for key in ("median_ns", "p99_ns"))
    return curve, {"batch_ms": batches, "batch_p99_ms": quantiles, "fixed_ms": kept["fixed_ns"] / 1e6}


def at(curve, length):
    """Between two lengths that were measured: on the line between them."""
    known = sorted(curve)
    above = next((other for other in known if other >= length), known[-1])
    below = max((other for other in known if other <= length), default=known[0])
    if above == below:
        return curve[above]
    return curve[below] + (curve[above] - curve[below]) * (length - below) / (above - below)


def serve(repository, policy, deadline, rate, seconds):
    """The share of requests that are answered in time, with the server's own view of it."""
    classes = []
    for name, (share, median, sigma) in APPLICATIONS.items():
        lengths = f"lognormal:{median}:{sigma}:{SHORTEST}:{LONGEST}"
        classes += ["--class", f"name={name},model={MODEL},rate={share * rate:.3f},deadline_ms={deadline:.3f},"
                               f"application={name},lengths={lengths}"]
    with step(f"{policy}, {rate:.0f} requests/s, deadline {deadline:.1f} ms"):
        with Server(repository, *chosen(policy)) as server, watch(server) as view:
            report = load(server, *asking(*classes, "--duration", seconds, "--warmup", seconds / 4))
            metrics = server.metrics()
    view["measured"] = {
        run: metrics.sum("punctual_online_measurement_seconds_count", run=run) for run in ("served", "again")
    }
    good = sum(found["good"] for found in report["classes"])
    asked = sum(found["requests"] for found in report["classes"])
    by_application = {found["name"]: found["good"] / max(1, found["requests"]) for found in report["classes"]}
    return {"finished": good / max(1, asked), "requests": asked, "applications": by_application, "server": view}


def chosen(policy):
    """The default needs no flag; a rival is named."""
    return () if policy == DEFAULT else ("--policy", policy)


def simulate(curve, profile, lengths, objectives, p99, rate, seconds):
    """The finish rate of each policy at each objective, with the simulator's workers."""
    folder = BENCH / "minilm-simulated"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{length},{at(curve, length):.6f}" for length in lengths]
    (folder / "requests.csv").write_text("\n".join(["tokens,ms", *lines]) + "\n")
    table, quantiles = (
        ", ".join(f'"{batch}" = {took:.6f}' for batch, took in profile[key].items()) for key in ("batch_ms", "batch_p99_ms")
    )
    text = f"""
[about]
title = "MiniLM as it was measured"

[[model]]
name = "{MODEL}"
slo_ms = {objectives[0] * p99:.3f}
latency = {{ batch_ms = {{ {table} }}, batch_p99_ms = {{ {quantiles} }}, fixed_ms = {profile["fixed_ms"]:.6f} }}
times = {{ file = "requests.csv", columns_ms = {{ ms = 1.0 }}, hint_column = "tokens", hint_sigma = 0.0 }}

[devices]
count = 1

[workload]
rate_rps = {rate:.3f}

[noise]
exec_sigma = 0.03

[run]
policies = {json.dumps(POLICIES)}
seconds = {max(30, seconds)}
warmup_seconds = {max(30, seconds) / 4}
seeds = [1, 2, 3]

[sweep]
slo_ms = {json.dumps([round(objective * p99, 3) for objective in objectives])}
"""
    file = folder / "minilm.toml"
    file.write_text(text)
    done = subprocess.run([BINARY, "simulate", file, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"punctual simulate {file}: {done.stderr.strip()[-500:]}")
    found = {policy: {} for policy in POLICIES}
    for result in json.loads(done.stdout)["results"]:
        objective = min(objectives, key=lambda objective: abs(objective * p99 - result["point"]["slo_ms"]))
        found[result["policy"]][objective] = result["satisfied"]
    return found


def figures(live, simulated, mean, p99, rate):
    shown = [
        Figure("a sentence alone, on average", mean, "ms"),
        Figure("a sentence alone, 99th percentile", p99, "ms"),
        Figure("requests", rate, "/s", note=f"{LOAD:.0%} of what would be answered one by one"),
    ]
    for policy, by_objective in live.items():
        for objective, found in by_objective.items():
            there = simulated[policy].get(objective)
            note = "" if there is None else f"simulated {there:.3f}; cores taken by others {found['server']['foreign']:.2f}"
            named = "the server" if policy == DEFAULT else f"rival: {policy}"
            shown.append(Figure(f"{named}, {objective:g} x p99 alone: answered in time", found["finished"], note=note))
    rivals = [policy for policy in live if policy != DEFAULT]
    gains = [
        found["finished"] - max(live[rival][objective]["finished"] for rival in rivals)
        for objective, found in live[DEFAULT].items()
    ]
    apart = [
        abs(found["finished"] - simulated[policy][objective])
        for policy, by_objective in live.items() for objective, found in by_objective.items()
        if objective in simulated[policy]
    ]
    shown.append(Figure("the server over the better of the rivals, at worst", min(gains), "", (">=", 0)))
    shown.append(Figure("live and simulated, furthest apart", max(apart, default=1.0), "", ("<=", 0.05)))
    return shown
