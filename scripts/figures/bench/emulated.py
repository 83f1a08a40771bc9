"""Eight devices that only pretend, live and in the simulator: how far the server is from the scheduler that it drives.

Also what the other parts with emulated devices share.
"""

import json
import shutil
import subprocess

from figures.common import BENCH, BINARY, Failed, Figure, Server, load, parameter, step, watch

DEVICES = 8
# What the server keeps of every deadline for the answer's way (PLAN in base::margins). The simulator's answers take no time.
REPLY_MS = 3.5
# InceptionResNetV2 on a 1080Ti (Symphony's table 3), batch sizes as the server prepares them by default.
ALPHA_MS, BETA_MS, DEADLINE_MS = 5.090, 18.368, 70
RATES = (600, 700, 800, 900)


def run(quick):
    seconds = 4 if quick else 30
    rates = RATES[1:3] if quick else RATES
    repository = models("emulated", ["inception"], ALPHA_MS, BETA_MS)
    live = {}
    for rate in rates:
        with step(f"{rate} requests/s for {seconds} s"), Server(repository, "--devices", f"emulated:{DEVICES}") as server:
            with watch(server) as view:
                options = ("--rate", rate, "--deadline-ms", DEADLINE_MS, "--duration", seconds, "--warmup", seconds / 4)
                report = load(server, "--model", "inception", *options)["total"]
        live[rate] = {"client": report, "server": view}
    with step("the same in the simulator"):
        simulated = simulate("emulated", ALPHA_MS, BETA_MS, 1, DEADLINE_MS, rates, 3 if quick else 60)
    figures, apart = [], []
    for rate, found in live.items():
        report, view = found["client"], found["server"]
        good, there = report["good"] / max(1, report["requests"]), simulated[rate]["satisfied"]
        apart.append(abs(good - there))
        note = f"simulated {there:.4f}; late {report['late_from_send']}; cores taken by others {taken(view)}"
        figures.append(Figure(f"{rate} requests/s: in time", good, note=note))
    figures.append(Figure("live and simulated, furthest apart", max(apart), "", ("<=", 0.02)))
    late = sum(found["client"]["late_from_send"] for found in live.values())
    figures.append(Figure("successes after the deadline, from the actual send", late, "", ("<=", 0)))
    return figures, {"live": live, "simulated": simulated, "seconds_each": seconds}


def models(folder, names, alpha_ms, beta_ms):
    """A repository of models that only an emulated device serves: a batch of b takes alpha_ms * b + beta_ms."""
    repository = BENCH / folder
    shutil.rmtree(repository, ignore_errors=True)
    for name in names:
        (repository / name / "1").mkdir(parents=True)
        latency = parameter("emulated_latency", f"alpha_ms={alpha_ms},beta_ms={beta_ms}")
        (repository / name / "config.pbtxt").write_text(f'platform: "emulated"\nmax_batch_size: 16\n{latency}')
    return repository


def simulate(name, alpha_ms, beta_ms, count, deadline_ms, rates, seconds):
    """The same models on as many devices in the simulator, with the server's default policy and settings."""
    folder = BENCH / f"{name}-simulated"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "experiment.toml"
    file.write_text(f"""
[[model]]
name = "model"
latency = {{ alpha_ms = {alpha_ms}, beta_ms = {beta_ms} }}
slo_ms = {deadline_ms - REPLY_MS}
count = {count}

[devices]
count = {DEVICES}

[workload]
arrivals = {{ process = "poisson" }}
rate_rps = 1

[run]
seconds = {seconds * 1.25}
warmup_seconds = {seconds * 0.25}
seeds = [1, 2]

[sweep]
"workload.rate_rps" = {json.dumps(list(rates))}
""")
    done = subprocess.run([BINARY, "simulate", file, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"punctual simulate {file}: {done.stderr.strip()[-500:]}")
    return {result["point"]["workload.rate_rps"]: result for result in json.loads(done.stdout)["results"]}


def replayed(recording):
    """What the scheduler of a server did, from its recording: refusals as the server saw them."""
    done = subprocess.run([BINARY, "replay", recording, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"punctual replay {recording}: {(done.stderr or done.stdout).strip()[-500:]}")
    return json.loads(done.stdout)


def taken(view):
    return f"{view['foreign'] + view['stolen']:.2f}"
