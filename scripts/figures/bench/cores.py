"""Cores that divide themselves: what one client alone gains where they compute together, and that load loses nothing by it."""

import os
import shutil

from figures.common import BENCH, ROOT, Failed, Figure, Server, configure, generate, load, only, parameter, step, watch

GENERATED = ["resnet18", "mobilenetv2"]
FETCHED = ["all-minilm-l6-v2", "magika"]
# Load is measured with this one.
LOADED = "resnet18"
SIZES = "1,2,4,8"
# Its deadline, in executions on one core.
EXECUTIONS = 10
# Part of what executors of one core each carry.
PART = 0.8
# A client alone for so long has all cores, if that is measured to be quicker.
ALONE_SECONDS = 7


def run(quick):
    executors = max(2, len(os.sched_getaffinity(0)) - 1)
    repository = BENCH / "cores"
    generate(repository, *GENERATED)
    configure(repository, LOADED, parameter("batch_sizes", SIZES))
    for name in FETCHED:
        if not (ROOT / "models" / name).exists():
            raise Failed(f"the model {name} is missing: run scripts/setup models")
        if not (repository / name).exists():
            shutil.copytree(ROOT / "models" / name, repository / name)
    seconds = 2 if quick else 8
    found = {how: measure(repository, executors, how, seconds) for how in ("narrow", "auto")}
    capacity = found["narrow"].pop("capacity")
    rate = round(PART * capacity, 1)
    for how, each in found.items():
        each["load"] = under_load(repository, executors, how, rate, each_deadline(found), 6 if quick else 30)
    details = {"executors": executors, "capacity_rps": capacity, "rate": rate, "found": found}
    return figures(executors, capacity, rate, found), details


def server(repository, executors, how):
    return Server(repository, "--devices", f"cpu:{executors}", "--cpu-division", how, "--cache-dir", kept(how))


def kept(how):
    """Where each keeps what it prepares, so that both start for the first time."""
    return BENCH / f"cores-{how}"


def each_deadline(found):
    return max(10, round(EXECUTIONS * found["narrow"]["alone"][LOADED]["p50"]))


def together(one):
    """Whether all cores compute together now."""
    return one.metrics().sum("punctual_device_share", device="cpu:0") == 1.0


def measure(repository, executors, how, seconds):
    """What each model's requests take for one client alone, and what the server carries at most."""
    alone = {}
    shutil.rmtree(kept(how), ignore_errors=True)
    with server(repository, executors, how) as one:
        with step(f"{how}: one client for {ALONE_SECONDS} s"):
            load(one, "--model", LOADED, "--concurrency", 1, "--duration", ALONE_SECONDS)
        for name in GENERATED + FETCHED:
            with step(f"{how}: {name} alone"):
                options = ("--concurrency", 1, "--duration", seconds + 1, "--warmup", 1)
                report = only(load(one, "--model", name, *options))
            alone[name] = {**report["latency_ms"], "rps": report["goodput_rps"], "together": together(one)}
        if how != "narrow":
            return {"alone": alone, "start_seconds": one.start_seconds}
        with step("narrow: capacity"):
            deadline = round(EXECUTIONS * alone[LOADED]["p50"])
            options = ("--concurrency", 3 * executors, "--deadline-ms", deadline, "--duration", 2 * seconds, "--warmup", 1)
            capacity = only(load(one, "--model", LOADED, *options))["goodput_rps"]
    return {"alone": alone, "capacity": capacity, "start_seconds": one.start_seconds}


def under_load(repository, executors, how, rate, deadline, seconds):
    """One client alone, and then at once most of what narrow carries."""
    with server(repository, executors, how) as one:
        with step(f"{how}: one client for {ALONE_SECONDS} s, then {rate} requests/s for {seconds} s, deadline {deadline} ms"):
            load(one, "--model", LOADED, "--concurrency", 1, "--duration", ALONE_SECONDS)
            were_together = together(one)
            with watch(one) as view:
                options = ("--rate", rate, "--deadline-ms", deadline, "--duration", seconds)
                first = only(load(one, "--model", LOADED, *options))
            again = only(load(one, "--model", LOADED, *options))
            return {
                "were_together": were_together, "are_together": together(one), "first": first, "again": again, "server": view,
                "changes": one.metrics().sum("punctual_share_changes_total", what="division"), "deadline_ms": deadline,
            }


def in_time(report):
    return report["good"] / max(1, report["requests"])


def figures(executors, capacity, rate, found):
    narrow, auto = found["narrow"], found["auto"]
    figures = [Figure("executors", executors)]
    for name, one in narrow["alone"].items():
        there = auto["alone"][name]
        where = "together" if there["together"] else "apart"
        figures += [
            Figure(f"{name}, one client: p50 on one core", one["p50"], "ms", note=f"p99 {one['p99']:.3g}"),
            Figure(f"{name}, one client: p50 with auto", there["p50"], "ms", note=f"p99 {there['p99']:.3g}, {where} at the end"),
            Figure(f"{name}, one client: times as quick with auto", one["p50"] / there["p50"]),
        ]
    first, again = (({how: each["load"][which] for how, each in found.items()}) for which in ("first", "again"))
    lost = (in_time(first["narrow"]) - in_time(first["auto"])) * first["auto"]["requests"] / rate
    return figures + [
        Figure(f"{LOADED}: carried by executors of one core", capacity, "/s"),
        Figure(f"{LOADED}, {rate} /s after one client: in time with narrow", in_time(first["narrow"])),
        Figure(f"{LOADED}, {rate} /s after one client: in time with auto", in_time(first["auto"]),
               note=f"{auto['load']['changes']:.0f} changes; cores were {'together' if auto['load']['were_together'] else 'apart'}"),
        Figure("load that the change lost, in seconds of it", lost, "s", ("<=", 1)),
        Figure(f"{LOADED}, going on: goodput with auto / narrow", again["auto"]["goodput_rps"] / max(1e-9, again["narrow"]["goodput_rps"]),
               "", (">=", 0.98)),
        Figure("seconds until ready, first start: narrow", narrow["start_seconds"], "s", note=f"auto {auto['start_seconds']:.2f}"),
    ]
