"""Ten times as many models as fit into the device's memory, asked by Zipf's law."""

import http.client
import json
import shutil
import statistics
import time

from figures.common import BENCH, Failed, Figure, Server, configure, difference, generate, load, parameter, resident_mib, step
from figures.common import watch

EXPONENT = 0.9
DEADLINE_MS = 50
# Single requests may take as long as they take.
PATIENCE_MS = 2000
# How busy the device would be if every request were cold and the way to it cost nothing.
BUSY = 0.4
# The first model is the hot one; it gets this share of all requests whatever Zipf's law says.
HOT_SHARE = 0.2


def run(quick):
    count, memory, seconds = (100, "100MB", 5) if quick else (500, "500MB", 30)
    repository = BENCH / f"many-{count}"
    with step(f"{count} models of 10 MB"):
        generate(repository, f"filler:{count}")
        names = [f"filler_{index:03}" for index in range(count)]
        for name in names:
            configure(repository, name, parameter("batch_sizes", "1,4"))
    options = ("--device-memory", memory, "--profile-budget-ms", "30")
    cache = repository / ".punctual"
    shutil.rmtree(cache, ignore_errors=True)
    with step("first start"), Server(repository, *options) as server:
        first = server.start_seconds
    with step("second start"):
        server = Server(repository, *options)
    with server:
        second = server.start_seconds
        with step("each model twice in a row"):
            probes = probe(server, names)
        rate = BUSY / statistics.median(probes["cold_ms"]) * 1e3
        fitting = names[: int(memory[:-2]) // 12]
        runs = {}
        for title, others in {"alone": [], "others that fit": fitting[1:], "all others": names[1:]}.items():
            with step(f"hot model, {title}"):
                runs[title] = together(server, names[0], others, rate, seconds)
        resident = resident_mib(server.pid)
    details = {
        "models": count, "memory": memory, "deadline_ms": DEADLINE_MS, "exponent": EXPONENT, "rate": rate,
        "first_start_s": first, "second_start_s": second, "probes": {kind: spread(values) for kind, values in probes.items()}, "runs": runs, "resident_mib": resident,
    }
    return figures(details), details


def probe(server, names):
    """Asks all models one after another, each twice, in two rounds. Under least recent use the first request of a pair
    always finds its model unloaded, and the second finds it loaded; in the first round nothing was ever loaded."""
    tensor = {"name": "input", "shape": [1, 64], "datatype": "FP32", "data": [0.5] * 64}
    body = json.dumps({"inputs": [tensor], "parameters": {"timeout": PATIENCE_MS * 1000}})
    host, port = server.http.split(":")
    connection = http.client.HTTPConnection(host, int(port))

    def ask(name):
        began = time.perf_counter()
        connection.request("POST", f"/v2/models/{name}/infer", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise Failed(f"{name}: {answer.status} {text[:200]}")
        return (time.perf_counter() - began) * 1e3

    times = {"first_ms": [], "cold_ms": [], "warm_ms": []}
    before = server.metrics()
    for kind in ("first_ms", "cold_ms"):
        for name in names:
            times[kind].append(ask(name))
            times["warm_ms"].append(ask(name))
    cold = difference(before, server.metrics(), "punctual_cold_starts_total")
    if cold != 2 * len(names):
        raise Failed(f"{cold:.0f} of {2 * len(names)} first requests were cold starts, all of them should be")
    return times


def together(server, hot, others, rate, seconds):
    """The hot model at its share, and the others by Zipf's law, in classes by popularity."""
    weights = [(name, 1 / (rank + 1) ** EXPONENT) for rank, name in enumerate(others, 1)]
    classes = {"hot": [(hot, 1.0)], "popular": weights[:10], "middling": weights[10:100], "rare": weights[100:]}
    total = sum(weight for _, weight in weights)
    lines = []
    for name, members in classes.items():
        if not members:
            continue
        share = HOT_SHARE if name == "hot" else (1 - HOT_SHARE) * sum(weight for _, weight in members) / total
        models = ", ".join(f'"{model}:{weight:.6f}"' for model, weight in members)
        lines += ["[[class]]", f'name = "{name}"', f"models = [{models}]", f"rate = {rate * share:.3f}",
                  f"deadline_ms = {DEADLINE_MS}", ""]
    path = BENCH / "many.toml"
    path.write_text("\n".join(lines))
    before = server.metrics()
    with watch(server) as view:
        report = load(server, "--file", path, "--duration", seconds)
    after = server.metrics()
    cold = {}
    for name, members in classes.items():
        cold[name] = sum(difference(before, after, "punctual_cold_starts_total", model=model) for model, _ in members)
    loads = difference(before, after, "punctual_loads_total")
    load_ms = difference(before, after, "punctual_load_seconds_sum") / max(1, loads) * 1e3
    return {"classes": {found["name"]: {**found, "cold": cold[found["name"]]} for found in report["classes"]},
            "server": view, "loads": loads, "load_ms": load_ms}


def spread(values):
    ordered = sorted(values)
    at = lambda quantile: ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]
    return {"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": ordered[-1]}


def figures(details):
    runs, probes = details["runs"], details["probes"]
    alone, fitting, all_others = (runs[title]["classes"]["hot"] for title in ("alone", "others that fit", "all others"))
    busy = runs["all others"]
    classes = busy["classes"].values()
    requests, cold = sum(c["requests"] for c in classes), sum(c["cold"] for c in classes)
    late = sum(c["late_from_send"] for c in classes)
    found = [
        Figure(f"first start, {details['models']} models", details["first_start_s"], "s"),
        Figure("second start", details["second_start_s"], "s"),
        Figure("memory of the process", details["resident_mib"]["own"], "MiB",
               note=f"mapped files {details['resident_mib']['files']:,.0f}"),
        Figure("one request, first since the start, p50", probes["first_ms"]["p50"], "ms",
               note=f"p99 {probes['first_ms']['p99']:.2f}, max {probes['first_ms']['max']:.1f}"),
        Figure("one request, cold, p50", probes["cold_ms"]["p50"], "ms", note=f"p99 {probes['cold_ms']['p99']:.2f}"),
        Figure("one request, warm, p50", probes["warm_ms"]["p50"], "ms", note=f"p99 {probes['warm_ms']['p99']:.2f}"),
        Figure("requests to all models", sum(c["rate_rps"] for c in classes), "/s",
               note=f"deadline {details['deadline_ms']} ms"),
        Figure("cold share of the requests", cold / max(1, requests), "", note=f"{busy['loads']:.0f} loads"),
        Figure("a load, mean", busy["load_ms"], "ms"),
    ]
    for c in classes:
        found.append(Figure(f"{c['name']} models, p50", c["latency_ms"]["p50"], "ms",
                            note=f"p99 {c['latency_ms']['p99']:.2f}, cold {c['cold'] / max(1, c['requests']):.1%}"))
    found += [
        Figure("requests within the deadline", sum(c["good"] for c in classes) / max(1, requests)),
        Figure("successes after the deadline, from the actual send", late, "", ("<=", 0)),
        Figure("errors and requests without answer", sum(c["errors"] + c["unanswered"] for c in classes), "", ("<=", 0)),
        Figure("hot model alone, p99", alone["latency_ms"]["p99"], "ms", note=f"p50 {alone['latency_ms']['p50']:.2f}"),
        Figure("hot model, others that fit, p99", fitting["latency_ms"]["p99"], "ms",
               note=f"p50 {fitting['latency_ms']['p50']:.2f}"),
        Figure("hot model, all others, p99", all_others["latency_ms"]["p99"], "ms",
               note=f"p50 {all_others['latency_ms']['p50']:.2f}"),
        Figure("hot model within the deadline, all others", all_others["good"] / max(1, all_others["requests"]), "",
               (">=", 0.99), f"with others that fit {fitting['good'] / max(1, fitting['requests']):.4f}"),
        Figure("hot model, cold starts", all_others["cold"], "", ("<=", 0)),
    ]
    return found
