"""Twice what the server can do: it must do as much as before, say no early, and never be late."""

from figures.common import BENCH, Figure, Server, configure, generate, load, only, parameter, step, watch

MODEL = "resnet18"
# Every size is measured at the first start; on a CPU larger ones gain nothing.
SIZES = "1,2,4,8"
# The deadline, in executions.
EXECUTIONS = 10


def run(quick):
    repository = BENCH / "overload"
    generate(repository, MODEL)
    configure(repository, MODEL, parameter("batch_sizes", SIZES))
    capacity_seconds, seconds = (4, 6) if quick else (15, 30)
    with Server(repository) as server:
        with step("execution time"):
            with watch(server) as alone:
                load(server, "--model", MODEL, "--concurrency", 1, "--duration", 2 if quick else 4)
            execution_ms = alone["row_ms"]
        deadline = round(EXECUTIONS * execution_ms)
        with step(f"capacity, deadline {deadline} ms"):
            capacity = measure_capacity(server, deadline, capacity_seconds)
        rate = round(2 * capacity["rps"], 1)
        with step(f"{rate} requests/s for {seconds} s"):
            with watch(server) as view:
                options = ("--rate", rate, "--duration", seconds, "--deadline-ms", deadline)
                report = only(load(server, "--model", MODEL, *options))
        with step("capacity again"):
            again = measure_capacity(server, deadline, capacity_seconds / 3)
    details = {
        "model": MODEL, "execution_ms": execution_ms, "deadline_ms": deadline, "rate": rate, "seconds_of_overload": seconds,
        "capacity": capacity, "capacity_after": again, "client": report, "server": view,
    }
    return figures(capacity, again, report, view, deadline, execution_ms), details


def measure_capacity(server, deadline, seconds):
    """What a closed loop gets at most: with as many clients as the deadline has room for, and with batch work that is
    never refused."""
    tries = {}
    for name, options in {
        "6 clients with deadline": ("--concurrency", 6, "--deadline-ms", deadline),
        "12 clients with deadline": ("--concurrency", 12, "--deadline-ms", deadline),
        "16 clients without": ("--concurrency", 16),
    }.items():
        warmup = 0.1 * seconds / 3
        with watch(server) as view:
            report = only(load(server, "--model", MODEL, "--duration", seconds / 3, "--warmup", warmup, *options))
        tries[name] = {"rps": report["goodput_rps"], "refused": report["refused"], "server": view}
    best = max(tries.values(), key=lambda tried: tried["rps"])
    seen = best["server"]
    return {"rps": best["rps"], "row_ms": seen["row_ms"], "taken": seen["foreign"] + seen["stolen"], "tries": tries}


def figures(capacity, again, report, view, deadline, execution_ms):
    refused = max(1, report["refused"])
    found = [
        Figure("execution of one request", execution_ms, "ms"),
        Figure("deadline", deadline, "ms"),
        Figure("capacity, closed loop", capacity["rps"], "/s", note=f"after the overload {again['rps']:.1f}"),
        Figure("offered, open loop", report["rate_rps"], "/s"),
        Figure("goodput / capacity", report["goodput_rps"] / capacity["rps"], "", (">=", 0.95)),
        Figure("executor busy during the overload", view["execution_busy"]),
        Figure("one row in the overload / in the capacity run", view["row_ms"] / capacity["row_ms"], "",
               note=f"{view['mean_rows']:.2f} rows in a batch"),
        Figure("cores taken by others during the overload", view["foreign"] + view["stolen"], "",
               note=f"in the capacity run {capacity['taken']:.3g}"),
        Figure("successes after the deadline, from the actual send", report["late_from_send"], "", ("<=", 0),
               f"of {report['successes']}; from the intended send {report['late']}"),
        Figure("refusals after the deadline, from the actual send", report["refused_late_from_send"], "", ("<=", 0),
               f"of {report['refused']}; from the intended send {report['refused_late']}"),
        Figure("refusals with at least half of the deadline left", report["refused_early_fraction"] or 0, "", (">=", 0.9)),
        Figure("latency of successes, p50", report["latency_ms"]["p50"], "ms"),
        Figure("latency of successes, p99", report["latency_ms"]["p99"], "ms"),
        Figure("latency of refusals, p50", report["refusal_ms"]["p50"], "ms"),
        Figure("latency of refusals, p99", report["refusal_ms"]["p99"], "ms"),
        Figure("send lag of the generator, p99", report["send_lag_ms"]["p99"], "ms"),
        Figure("planned, and then not in time", view["refused"].get("deadline_missed", 0) / refused, "",
               note="share of the refusals"),
        Figure("errors and requests without answer", report["errors"] + report["unanswered"], "", ("<=", 0)),
    ]
    return found
