"""Ten thousand models on a thousand devices that only pretend: start, memory and processor time of one server."""

import pathlib
import re
import time

from figures.common import BENCH, Figure, Server, load, parameter, processor_seconds, step, watch
from figures.bench.emulated import taken

DEADLINE_MS = 100
# A batch of b takes b + 4 ms, a load 10 ms. 100 MB each: twenty fit into the usual 2 GB of a device.
LATENCY = "alpha_ms=1.0,beta_ms=4.0,load_ms=10"
WEIGHTS_MB = 100
ZIPF = 0.9
IDLE_SECONDS = 12


def run(quick):
    models, devices, seconds = (1000, 100, 5) if quick else (10_000, 1000, 30)
    loads = [(1000, None), (1000, ZIPF), (4000, None), (4000, ZIPF)]
    if quick:
        loads = loads[:2]
    with step(f"{models} models"):
        repository, pattern = write(models)
    found = {}
    with step("start"):
        server = Server(repository, "--devices", f"emulated:{devices}")
    with server:
        found["start_s"] = server.start_seconds
        found["start_cpu_s"] = processor_seconds(server.pid)
        found["threads"] = status(server.pid)["Threads"]
        with step("nobody asks"):
            time.sleep(3)
            used = processor_seconds(server.pid)
            time.sleep(IDLE_SECONDS)
            found["idle_cores"] = (processor_seconds(server.pid) - used) / IDLE_SECONDS
            found["idle_mib"] = status(server.pid)["VmRSS"] / 1024
        found["loads"] = []
        for rate, exponent in loads:
            law = f"Zipf {exponent}" if exponent else "all alike"
            options = ("--zipf", exponent) if exponent else ()
            with step(f"{rate} requests/s, {law}"), watch(server) as view:
                used, began = processor_seconds(server.pid), time.monotonic()
                report = load(server, "--model", pattern, "--rate", rate, "--deadline-ms", DEADLINE_MS, "--duration", seconds,
                              *options)["total"]
                cores = (processor_seconds(server.pid) - used) / (time.monotonic() - began)
            found["loads"].append({"rate": rate, "law": law, "cores": cores, "client": report, "server": view})
        with step("the page of metrics"):
            used = processor_seconds(server.pid)
            page = server.metrics()
            found["page"] = {"series": len(page.series), "cpu_s": processor_seconds(server.pid) - used}
        found["peak_mib"] = status(server.pid)["VmHWM"] / 1024
    return figures(models, devices, found), {"models": models, "devices": devices, "seconds_each": seconds, **found}


def write(count):
    """The models, unless they are there; and how the load generator calls them all."""
    repository = BENCH / f"fleet-{count}"
    text = 'platform: "emulated"\nmax_batch_size: 16\n'
    text += parameter("emulated_latency", LATENCY) + parameter("weights_mb", WEIGHTS_MB)
    for index in range(count):
        folder = repository / f"m{index:05}"
        (folder / "1").mkdir(parents=True, exist_ok=True)
        config = folder / "config.pbtxt"
        if not config.exists() or config.read_text() != text:
            config.write_text(text)
    return repository, f"m{{00000..{count - 1:05}}}"


def status(pid):
    """What the kernel says of a process; sizes in KiB."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+)", text, re.MULTILINE)}


def figures(models, devices, found):
    shown = [
        Figure(f"start, {models:,} models on {devices:,} devices", found["start_s"], "s", ("<=", 20),
               f"{found['start_cpu_s']:.1f} s of processor time"),
        Figure("memory of the process, at most", found["peak_mib"], "MiB", ("<=", 2000),
               f"before the first request {found['idle_mib']:,.0f}"),
        Figure("threads of the process", found["threads"]),
        Figure("cores when nobody asks", found["idle_cores"]),
    ]
    for run in found["loads"]:
        client, server = run["client"], run["server"]
        lost = client["requests"] - client["good"]
        shown.append(Figure(f"{run['rate']:,} requests/s, {run['law']}: cores", run["cores"], "", None,
                            f"p50 {client['latency_ms']['p50']:.1f} ms, p99 {client['latency_ms']['p99']:.1f} ms; cores taken by "
                            f"others {taken(server)}"))
        shown.append(Figure(f"{run['rate']:,} requests/s, {run['law']}: lost", lost / max(1, client["requests"]), "",
                            ("<=", 0.001), f"{lost} of {client['requests']:,}"))
    page = found["page"]
    shown.append(Figure("the page of metrics: processor time", page["cpu_s"], "s", None, f"{page['series']:,} series"))
    violations = found["loads"][-1]["server"]["violations"]
    shown.append(Figure("broken invariants", sum(violations.values()), "", ("<=", 0)))
    return shown
