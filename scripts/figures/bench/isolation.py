"""An urgent model beside batch clients on other models of its size that take all that is left."""

from figures.common import BENCH, Figure, Server, configure, generate, load, only, parameter, step, variants, watch

MODEL = "mobilenetv2"
OTHERS = 4
# Clients of each of the others; two keep it busy, more make it batch.
CLIENTS = 2
SHARE = 0.3
EXECUTIONS = 12


def run(quick):
    repository = BENCH / "isolation"
    generate(repository, MODEL)
    others = variants(repository, MODEL, OTHERS)
    for name in (MODEL, *others):
        configure(repository, name, parameter("batch_sizes", "1,2,4"))
    seconds = 5 if quick else 30
    with Server(repository) as server:
        with step("execution time"):
            with watch(server) as single:
                load(server, "--model", MODEL, "--concurrency", 1, "--duration", 2 if quick else 4)
            execution_ms = single["row_ms"]
        with step("capacity"):
            capacity = only(load(server, "--model", MODEL, "--concurrency", 8, "--duration", seconds / 3))["goodput_rps"]
        deadline, rate = round(EXECUTIONS * execution_ms, 1), round(SHARE * capacity, 1)
        urgent = f"name=urgent,model={MODEL},rate={rate},deadline_ms={deadline}"
        bulk = f"name=batch,{','.join(f'model={name}' for name in others)},concurrency={CLIENTS * OTHERS}"
        with step(f"alone: {rate} requests/s, deadline {deadline} ms"):
            alone = only(load(server, "--class", urgent, "--duration", seconds))
        with step("batch clients alone"):
            free = only(load(server, "--class", bulk, "--duration", seconds / 3))
        with step("both"):
            with watch(server) as view:
                report = load(server, "--class", urgent, "--class", bulk, "--duration", seconds)
    both, batch = report["classes"]
    details = {
        "model": MODEL, "others": others, "clients_each": CLIENTS, "execution_ms": execution_ms, "capacity_rps": capacity,
        "deadline_ms": deadline, "rate": rate, "seconds_of_both": seconds, "alone": alone, "both": both, "batch": batch,
        "batch_alone": free, "server": view,
    }
    within = lambda report: report["good"] / max(1, report["requests"])
    return [
        Figure("execution of one request", execution_ms, "ms"),
        Figure("capacity, closed loop", capacity, "/s", note=f"batch clients alone {free['goodput_rps']:.1f}"),
        Figure(f"deadline of the urgent model ({EXECUTIONS} executions)", deadline, "ms"),
        Figure("urgent requests", both["rate_rps"], "/s"),
        Figure("urgent within the deadline, alone", within(alone)),
        Figure("urgent within the deadline, with batch clients", within(both), "", (">=", 0.99),
               f"late {both['late']}, refused {both['refused']} of {both['requests']}"),
        Figure("urgent, p50 alone", alone["latency_ms"]["p50"], "ms"),
        Figure("urgent, p50 with batch clients", both["latency_ms"]["p50"], "ms"),
        Figure("urgent, p99 alone", alone["latency_ms"]["p99"], "ms"),
        Figure("urgent, p99 with batch clients", both["latency_ms"]["p99"], "ms"),
        Figure("batch clients / capacity", batch["goodput_rps"] / capacity, "", (">=", 0.6)),
        Figure("both / capacity", (batch["goodput_rps"] + both["goodput_rps"]) / capacity),
        Figure("cores taken by others meanwhile", view["foreign"] + view["stolen"]),
        Figure("successes after the deadline, from the actual send", both["late_from_send"], "", ("<=", 0)),
        Figure("errors and requests without answer", sum(r["errors"] + r["unanswered"] for r in (both, batch)), "", ("<=", 0)),
    ], details
