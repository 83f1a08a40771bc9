"""What keys and TLS cost: processor time of the server for each request, beside one that asks for nothing."""

import contextlib
import statistics

from figures.access import Access
from figures.bench.overhead import is_quiet, measured
from figures.common import BENCH, Failed, Figure, Server, generate, load, only, step

MODEL = "mlp"
CONNECTIONS = 32
CASES = {
    "nothing": {"keys": False, "tls": False},
    "keys": {"keys": True, "tls": False},
    "TLS": {"keys": False, "tls": True},
    "keys and TLS": {"keys": True, "tls": True},
}
TARGETS = {"keys": ("<=", 1.03), "TLS": ("<=", 1.35), "keys and TLS": ("<=", 1.35)}


def run(quick):
    repository = BENCH / "overhead"
    generate(repository, MODEL)
    seconds, rounds = (1, 2) if quick else (1, 32)
    runs = []
    with contextlib.ExitStack() as stack:
        servers = {}
        for case, asks in CASES.items():
            access = Access(BENCH / "access" / case.replace(" ", "-"), **asks)
            access.key("web", "infer", "read")
            servers[case] = stack.enter_context(Server(repository, access=access))
        for server in servers.values():
            for grpc in (False, True):
                ask(server, grpc, 1)  # warm
        for number in range(rounds):
            with step(f"round {number + 1} of {rounds}"):
                # All four within seconds, in one order and then in the other: what the machine does meets all of them.
                order = list(CASES) if number % 2 else list(reversed(CASES))
                for protocol, grpc in (("HTTP", False), ("gRPC", True)):
                    runs.append({"protocol": protocol, **{case: ask(servers[case], grpc, seconds) for case in order}})
    return figures(runs), {"runs": runs, "seconds_each": seconds, "connections": CONNECTIONS}


def ask(server, grpc, seconds):
    def loaded():
        options = ("--model", MODEL, "--concurrency", CONNECTIONS, "--grpc-connections", CONNECTIONS, "--duration", seconds)
        report = only(load(server, *options, grpc=grpc))
        if report["errors"] or report["refused"]:
            raise Failed(f"{report['errors']} errors, {report['refused']} refused")
        return {"requests": report["requests"], "seconds": seconds}

    return measured(server, loaded)


def figures(runs):
    found = []
    for protocol in ("HTTP", "gRPC"):
        rounds = [run for run in runs if run["protocol"] == protocol]
        for case in CASES:
            times = [run[case]["cpu_us"] for run in rounds]
            name = f"{protocol}, {CONNECTIONS} connections, {case}, server CPU for each request"
            found.append(Figure(name, statistics.median(times), "us", note=f"best {min(times):.1f}"))
        for case, target in TARGETS.items():
            # Within a round.
            ratios = sorted(run[case]["cpu_us"] / run["nothing"]["cpu_us"] for run in rounds)
            note = f"{ratios[len(ratios) // 4]:.3f} to {ratios[len(ratios) * 3 // 4]:.3f} in the middle half of {len(ratios)} rounds"
            found.append(Figure(f"{protocol}, {case} / nothing", statistics.median(ratios), "", target, note))
    every = [run[case] for run in runs for case in CASES]
    taken = statistics.median(one["foreign"] + one["stolen"] for one in every)
    found.append(Figure("cores taken by others meanwhile", taken, note=f"{sum(map(is_quiet, every))} of {len(every)} runs were left alone"))
    return found
