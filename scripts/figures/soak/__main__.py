"""Good clients beside hostile ones, for as long as one likes: nothing may grow, get lost or become slow.

`make soak ARGS="--minutes 60"` starts a server with TLS, keys and several models on two executors, asks it for six tenths of what one executor
carries (`punctual load`, over HTTP and gRPC), alone first and then beside slow readers, resets, bombs, bad shapes, garbage, idle connections,
half-sent heads, streams that are given up, models that hang, loads every second, new certificates and keys every five. It samples the process and its metrics, and judges.
Ends with a table, a file of JSON, and a status that isn't 0 if something didn't hold.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import threading
import time

from figures import common
from figures.access import Access
from figures.common import BENCH, BINARY, Failed, Figure, Server

# What is asked: networks of some milliseconds.
GOOD = ["mobilenetv2", "mobilenetv2_1", "mobilenetv2_2"]
# What hostile clients ask and load again.
WIDE, SPARE = "identity_fp32", "mlp"
# Of what one executor carries, so that the other may be broken off.
LOAD = 0.6
DEADLINE_MS = 1000
# What a hanging execution may take. A good one must not take as long, however busy the machine is: its model would rest, too.
MAX_EXECUTION_MS = 5000
RENEW_EVERY = 5
# After the clients are gone, the server has so long to let go of everything.
SETTLE_SECONDS = 60
FLAT, SLOWER = 1.05, 1.5


# ---- what is sampled --------------------------------------------------------------------------------------------------


def sample(server):
    """The process and its metrics, now."""
    process = pathlib.Path(f"/proc/{server.pid}")
    metrics = server.metrics()
    return {
        "at": time.monotonic(),
        "rss_mib": sum(common.resident_mib(server.pid).values()),
        "descriptors": len(os.listdir(process / "fd")),
        "threads": len(os.listdir(process / "task")),
        "held_bytes": metrics.sum("punctual_io_held_bytes"),
        "in_flight": metrics.sum("punctual_requests_in_flight"),
        "violations": metrics.sum("punctual_invariant_violations_total"),
        "requests": outcomes(metrics),
    }


def outcomes(metrics):
    """Requests for the good clients' models that are over, whatever came of them."""
    return sum(metrics.sum("punctual_requests_total", model=model) for model in GOOD)


class Sampler(threading.Thread):
    """Samples until it is told to stop."""

    def __init__(self, server, every):
        super().__init__(daemon=True)
        self.server, self.every = server, every
        self.samples, self.failed, self.stopping = [], None, threading.Event()

    def run(self):
        while not self.stopping.wait(self.every):
            try:
                self.samples.append(sample(self.server))
            except OSError as error:
                self.failed = self.failed or f"{type(error).__name__}: {error}"

    def stop(self):
        self.stopping.set()
        self.join()
        return self.samples


class Renewal(threading.Thread):
    """Gives the server new certificates and keys until it is told to stop."""

    def __init__(self, access):
        super().__init__(daemon=True)
        self.access, self.times, self.stopping = access, 0, threading.Event()

    def run(self):
        while not self.stopping.wait(RENEW_EVERY):
            self.access.new_certificate()
            self.access.write_keys(f"# written {self.times}\n")
            self.times += 1

    def stop(self):
        self.stopping.set()
        self.join()


# ---- who asks -----------------------------------------------------------------------------------------------------------


def good_clients(server, rate, seconds):
    """Both protocols, half of the rate each, until they are done; their reports."""
    models = [argument for model in GOOD for argument in ("--model", model)]
    running = []
    for protocol, url in (("http-binary", server.http), ("grpc", server.grpc)):
        command = [BINARY, "load", "--json", "--url", url, "--protocol", protocol, "--rate", rate / 2, "--duration", seconds]
        command += [*models, "--deadline-ms", DEADLINE_MS, *server.access.load_options("web")]
        running.append(subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    reports = []
    try:
        for process in running:
            out, err = process.communicate()
            if process.returncode != 0:
                raise Failed(f"punctual load: {err.strip()[-500:]}")
            reports.append(common.only(json.loads(out)))
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()
    return reports


class Hostile:
    """The process of the hostile clients."""

    def __init__(self, server, hang_every):
        access = server.access
        settings = BENCH / "soak-hostile.json"
        settings.write_text(json.dumps({
            "http": server.http, "grpc": server.grpc, "ca": str(access.ca), "wide": WIDE, "spare": SPARE, "hang_every": hang_every,
            "headers": access.headers("guest"), "control": access.headers("ops"),
        }))  # fmt: skip
        command = [sys.executable, "-m", "figures.soak.hostile", str(settings)]
        environment = {**os.environ, "PYTHONPATH": str(common.ROOT / "scripts")}
        # Good clients come first where cores are short: what strangers' machines cost isn't the server's.
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, preexec_fn=lambda: os.nice(10)
        )

        # Their own start takes seconds, in which the server's memory says nothing.
        if self.process.stdout.readline() != "begun\n":
            raise Failed("the hostile clients did not start")

    def stop(self):
        """Waits until they are gone; what they did."""
        try:
            out, _ = self.process.communicate("", timeout=180)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Failed("the hostile clients don't come to an end: the server leaves one of them without an answer") from None
        return json.loads(out)


# ---- the judgement ------------------------------------------------------------------------------------------------------


def flatness(samples):
    """The largest memory after the first tenth of the time over that of the second tenth, by the medians of tenths: a body that is inflated just then isn't growth."""
    tenth = max(1, len(samples) // 10)
    medians = [
        statistics.median(one["rss_mib"] for one in samples[start : start + tenth]) for start in range(tenth, len(samples) - tenth + 1, tenth)
    ]
    return max(medians) / medians[0] if medians else 1.0


def p99(reports):
    """Of both protocols together the larger one; endless where one of a hundred requests had no answer in time."""
    worst = 0.0
    for report in reports:
        lost = report["requests"] - report["successes"]
        worst = max(worst, report["latency_ms"]["p99"] if lost <= 0.01 * report["requests"] else float("inf"))
    return worst


def unaccounted(reports, before, after):
    """Requests that good clients have no outcome for, and by how many the server's count differs from theirs."""
    told = sum(report["successes"] + report["refused"] + report["errors"] for report in reports)
    sent = sum(report["requests"] for report in reports)
    return sent - told, abs((after - before) - sent)


def settled(server, before, seconds=SETTLE_SECONDS):
    """How things are when the server had the time to let go: as soon as nothing is left, at the latest then."""
    give_up_at = time.monotonic() + seconds
    while True:
        now = sample(server)
        left = now["descriptors"] > before["descriptors"] or now["held_bytes"] or now["in_flight"]
        if not left or time.monotonic() > give_up_at:
            return now
        time.sleep(0.5)


def figures(quiet, loud, before, after, samples, code, times_p99):
    without, apart = unaccounted(loud, before["requests"], after["requests"])
    sent = sum(report["requests"] for report in loud)
    errors = sum(report["errors"] for report in loud)
    latency = Figure("p99 of the good clients / of the quiet run", p99(loud) / p99(quiet), "", ("<=", SLOWER) if times_p99 else None)
    return [
        Figure("requests of the good clients", sent),
        Figure("good clients' requests without an outcome", without, "", ("<=", 0)),
        Figure("good clients' requests that the server counts otherwise", apart, "", ("<=", 0)),
        Figure("good clients' errors", errors, "", ("<=", 0)),
        Figure("good clients' refusals", sum(report["refused"] for report in loud) / max(1, sent), note="share of their requests"),
        Figure("p99 of the quiet run", p99(quiet), "ms"),
        Figure("p99 beside hostile clients", p99(loud), "ms"),
        latency,
        Figure("memory at the end of the first tenth", samples[len(samples) // 10]["rss_mib"], "MiB"),
        Figure("memory at its largest after it", max(one["rss_mib"] for one in samples[len(samples) // 10 :]), "MiB"),
        Figure("largest tenth's memory / second tenth's", flatness(samples), "", ("<=", FLAT)),
        Figure("descriptors more than before the hostile clients", after["descriptors"] - before["descriptors"], "", ("<=", 0)),
        Figure("threads more than before", after["threads"] - before["threads"], note="those of executions that can't be broken off are left behind"),
        Figure("bytes held when they are gone", after["held_bytes"], "", ("<=", 0)),
        Figure("requests in flight when they are gone", after["in_flight"], "", ("<=", 0)),
        Figure("broken invariants", after["violations"], "", ("<=", 0)),
        Figure("exit code", code, "", ("<=", 0)),
    ]


# ---- the run ------------------------------------------------------------------------------------------------------------


def write_repository():
    repository = BENCH / "soak"
    common.generate(repository, "mobilenetv2", SPARE)
    common.variants(repository, "mobilenetv2", len(GOOD) - 1)
    if not (repository / WIDE).exists():
        common.generate(BENCH / "soak-tests", "tests")
        (repository / WIDE).symlink_to(BENCH / "soak-tests" / WIDE)
    return repository


def main():
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=60, help="how long the hostile clients are there")
    parser.add_argument("--without-p99", action="store_true", help="don't judge latencies: the machine has something else to do")
    args = parser.parse_args()
    # Told to stop: leave no server behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    BENCH.mkdir(parents=True, exist_ok=True)
    try:
        passed = soak(args.minutes * 60, not args.without_p99)
    except Failed as reason:
        sys.exit(f"no soak: {reason}")
    sys.exit(0 if passed else "not everything held")


def soak(seconds, times_p99):
    repository = write_repository()
    access = Access(BENCH / "soak-access")
    access.key("web", "infer", "read")
    access.key("guest", "infer")
    access.key("ops", "infer", "read", "control")
    load_before = common.load_average()
    quiet_seconds = max(20, seconds / 10)
    options = ["--devices", "cpu:2", "--model-control-mode", "both", "--max-execution-ms", MAX_EXECUTION_MS]
    hang_every = max(120, seconds / 20) if seconds > 240 else seconds / 2
    server = Server(repository, *map(str, options), access=access)
    try:
        with common.step("capacity of one client after another"):
            alone = common.only(common.load(server, "--model", GOOD[0], "--concurrency", 1, "--duration", 5))
        rate = LOAD * alone["goodput_rps"]
        with common.step(f"quiet, {rate:.0f} requests/s for {quiet_seconds:.0f} s"):
            quiet = good_clients(server, rate, quiet_seconds)
        if times_p99 and p99(quiet) == float("inf"):
            raise Failed("one of a hundred requests has no answer in time with nobody beside: the machine has something else to do")
        before = settled(server, {"descriptors": 0}, 5)
        sampler, renewal, hostile = Sampler(server, max(0.5, seconds / 1000)), Renewal(access), Hostile(server, hang_every)
        sampler.start()
        renewal.start()
        with common.step(f"beside hostile clients, {seconds:.0f} s"):
            loud = good_clients(server, rate, seconds)
        samples = sampler.stop()
        did = hostile.stop()
        renewal.stop()
        after = settled(server, before)
    finally:
        server.stop()
    found = figures(quiet, loud, before, after, samples, server.process.returncode, times_p99)
    unexpected = {kind: outcome for kind, of in did.items() for outcome in of if outcome.startswith(f"{kind}: ")}
    found.append(Figure("answers to hostile clients that they may not get", len(unexpected), "", ("<=", 0), str(unexpected or "")))
    found.append(Figure("samples that could not be taken", 1 if sampler.failed else 0, "", ("<=", 0), sampler.failed or ""))
    details = {
        "seconds": seconds, "rate": rate, "quiet": quiet, "loud": loud, "before": before, "after": after, "hostile": did,
        "certificates": renewal.times, "samples": samples,
    }  # fmt: skip
    common.publish("soak", found, details, load_before, quick=False)
    print("  what they did: " + "; ".join(f"{kind} {sum(of.values())}" for kind, of in sorted(did.items())) + f"; new certificates {renewal.times}")
    return all(figure.verdict != "SHORT OF IT" for figure in found)


if __name__ == "__main__":
    main()
