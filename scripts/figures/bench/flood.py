"""Ten quiet models beside one that is asked three times what all devices carry."""

from figures.common import Figure, Server, load, step, watch
from figures.bench.emulated import DEVICES, models

ALPHA_MS, BETA_MS, DEADLINE_MS = 4.2, 20.3, 100
BEST = DEVICES * 16 / (16 * ALPHA_MS + BETA_MS) * 1e3
QUIET = [f"quiet-{index}" for index in range(10)]
# Of each, a quarter of what its fair share of the devices carries.
QUIET_RPS = round(BEST / (len(QUIET) + 1) / 4)
FLOOD_RPS = round(3 * BEST)


def run(quick):
    seconds = 4 if quick else 30
    repository = models("flood", [*QUIET, "flooded"], ALPHA_MS, BETA_MS)
    listed = ",".join(f"model={name}" for name in QUIET)
    calm = f"name=quiet,{listed},rate={QUIET_RPS * len(QUIET)},deadline_ms={DEADLINE_MS}"
    flood = f"name=flooded,model=flooded,rate={FLOOD_RPS},deadline_ms={DEADLINE_MS}"
    with Server(repository, "--devices", f"emulated:{DEVICES}") as server:
        with step(f"quiet models alone, {QUIET_RPS * len(QUIET)} requests/s"):
            alone = load(server, "--class", calm, "--duration", seconds)["classes"][0]
        with step(f"beside a flood of {FLOOD_RPS} requests/s"), watch(server) as view:
            beside, flooded = load(server, "--class", calm, "--class", flood, "--duration", seconds)["classes"]
    lost = lambda report: 1 - report["good"] / max(1, report["requests"])
    return [
        Figure("quiet models, requests", beside["rate_rps"], "/s", note=f"{len(QUIET)} models"),
        Figure("flooded model, requests", flooded["rate_rps"], "/s", note=f"the best that {DEVICES} devices could do is {BEST:.0f}"),
        Figure("quiet models lose, alone", lost(alone)),
        Figure("quiet models lose, beside the flood", lost(beside), "", ("<=", 0.01),
               f"late {beside['late']}, refused {beside['refused']} of {beside['requests']}"),
        Figure("quiet models, p99 alone", alone["latency_ms"]["p99"], "ms"),
        Figure("quiet models, p99 beside the flood", beside["latency_ms"]["p99"], "ms"),
        Figure("flooded model, in time", flooded["goodput_rps"], "/s"),
        Figure("flooded model, refusals within 1 ms of the actual send", flooded["refused_at_once_fraction"] or 0),
        Figure("cores taken by others meanwhile", view["foreign"] + view["stolen"], note=f"send lag p99 {beside['send_lag_ms']['p99']:.3g} ms"),
        Figure("successes after the deadline, from the actual send", beside["late_from_send"] + flooded["late_from_send"], "", ("<=", 0)),
    ], {"alone": alone, "beside": beside, "flooded": flooded, "server": view, "seconds_each": seconds}
