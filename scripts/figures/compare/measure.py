"""One server under load: started, checked, warmed, loaded with each protocol and number of connections."""

import http.client
import json
import os
import pathlib
import subprocess
import time
import urllib.request

from figures import program
from figures.common import BINARY, Failed, Metrics, difference, processor_times, stolen_and_foreign
from figures.compare import messages
from figures.compare.processes import Tree, used_between
from figures.compare.rivals import COMPARE, free_port

LUA = pathlib.Path(__file__).parents[1] / "bench" / "overhead.lua"


class Running:
    """A server that answers, until the end of the `with` block."""

    def __init__(self, rival, model, part, reference, cores):
        self.rival, self.model, self.part, self.reference = rival, model, part, reference
        self.server_cores, self.load_cores = cores
        self.started = rival.prepare(model, part, free_port(), free_port())
        began = time.monotonic()
        self.tree = Tree(self.started.command, self.started.environment,
                         COMPARE / "logs" / f"{rival.name}-{model}.log", self.server_cores, self.started.folder)
        try:
            self._wait()
            self.start_seconds = time.monotonic() - began
            self._check()
        except BaseException:
            self.tree.stop()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.tree.stop()

    def ask(self, protocol, variant, values):
        if protocol == "grpc":
            return messages.ask_grpc(self.started.grpc_port, self.rival.remote_name(self.model, variant), values)
        path = self.rival.path(self.model, variant, protocol)
        return messages.ask_http(self.started.http_port, path, self.rival.protocols[protocol], protocol, values)

    def _wait(self):
        """Until each way of asking it has an answer, whatever that is."""
        give_up_at, patience = time.monotonic() + self.rival.start_within, None
        for protocol, variant in self.ways():
            while True:
                try:
                    self.ask(protocol, variant, messages.row(self.model, 1))
                    patience = None
                    break
                except (Failed, OSError, ValueError, http.client.HTTPException) as error:
                    if isinstance(error, Failed) and patience is None and "refused" not in str(error):
                        # It listens; models may still be loading.
                        patience = time.monotonic() + 30
                    if not self.tree.alive():
                        raise Failed(f"{self.rival.title} ended: {self.tree.said()}") from None
                    if time.monotonic() > min(give_up_at, patience or give_up_at):
                        raise Failed(
                            f"{self.rival.title} doesn't answer {protocol} ({variant}): {error}; {self.tree.said()}"
                        ) from None
                time.sleep(0.2)

    def _check(self):
        for protocol, variant in self.ways():
            self.reference.check(lambda values: self.ask(protocol, variant, values), self.model,
                                 f"{self.rival.title}, {messages.PROTOCOLS[protocol]}, {variant}")

    def ways(self):
        return [(protocol, variant) for protocol, variants in self.part.items() for variant in variants]

    def settle(self, patience=4):
        """Waits until it has nothing more to do of its own: some start helpers after they answer."""
        give_up_at, before = time.monotonic() + patience, self.tree.processor_seconds()
        while time.monotonic() < give_up_at:
            time.sleep(0.5)
            now = self.tree.processor_seconds()
            if used_between(before, now) < 0.05:
                return
            before = now

    def load(self, protocol, variant, connections, seconds):
        """Loads it in a closed loop: rate, latencies, the server's time for each request."""
        pinned = ["taskset", "-c", ",".join(map(str, self.load_cores))] if self.load_cores else []
        send = self._grpc if protocol == "grpc" else self._http
        said = self.metrics()
        machine, before, children = processor_times(), self.tree.processor_seconds(), os.times()
        result = send(pinned, protocol, variant, connections, seconds)
        after, then = self.tree.processor_seconds(), os.times()
        used = used_between(before, after)
        own = used + then.children_user + then.children_system - children.children_user - children.children_system
        result["rate"] = result["requests"] / result["seconds"]
        # None at all in the time: at least that much.
        result["cpu_us"] = used / max(1, result["requests"]) * 1e6
        result["variant"] = variant
        result |= stolen_and_foreign(machine, processor_times(), own)
        return result | executions(said, self.metrics(), processor_times()["wall"] - machine["wall"])

    def metrics(self):
        """What our own server says of itself; the others aren't asked."""
        if self.started.metrics_port is None:
            return None
        with urllib.request.urlopen(f"http://127.0.0.1:{self.started.metrics_port}/metrics", timeout=30) as answer:
            return Metrics(answer.read().decode())

    def _http(self, pinned, protocol, variant, connections, seconds):
        body = messages.body(self.rival.protocols[protocol], protocol, messages.row(self.model, 1))
        path = COMPARE / "work" / "body"
        path.write_bytes(body.data)
        environment = {
            **os.environ,
            "BENCH_BODY": str(path),
            "BENCH_TYPE": body.content_type,
            "BENCH_HEADER_LENGTH": "" if body.header_length is None else str(body.header_length),
        }
        url = f"http://127.0.0.1:{self.started.http_port}{self.rival.path(self.model, variant, protocol)}"
        command = [*pinned, "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "60s", "-s", LUA, url]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("BENCH ")]
        if not lines:
            raise Failed(f"wrk gave no result: {(done.stderr or done.stdout).strip()[-500:]}")
        result = json.loads(lines[0][6:])
        if result["bad"]:
            raise Failed(f"{self.rival.title}: {result['bad']} of {result['requests']} {protocol} requests failed; "
                         f"{self.tree.said()}")
        return result

    def _grpc(self, pinned, _protocol, variant, connections, seconds):
        command = [*pinned, BINARY, "load", "--url", f"127.0.0.1:{self.started.grpc_port}", "--protocol", "grpc",
                   "--model", self.rival.remote_name(self.model, variant), "--concurrency", connections,
                   "--grpc-connections", connections, "--duration", seconds, "--json"]
        if self.load_cores:
            # It has its core for itself: with few connections its own waking would be a good part of what is measured.
            command.append("--busy-poll")
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(f"punctual load: {done.stderr.strip()[-500:]}")
        whole = json.loads(done.stdout)
        report = whole["total"]
        if report["errors"] or report["refused"]:
            raise Failed(f"{self.rival.title}: {report['errors_by_reason']} {report['refused_by_reason']}; "
                         f"{self.tree.said()}")
        latency = report["latency_ms"]
        return {"requests": report["successes"], "seconds": whole["answered_seconds"], "bad": 0,
                **{f"{name}_us": latency[name] * 1e3 for name in ("p50", "p90", "p99")}}


def executions(before, after, wall):
    """How many executions of which size there were, what a row took in them, and how busy the executor was."""
    if before is None:
        return {}

    def change(name, **labels):
        return difference(before, after, name, **labels)

    bounds = after.by("punctual_batch_rows_bucket", "le")
    total, batches, lower = 0, {}, 0
    for bound in sorted((float(bound) for bound in bounds), key=float):
        count = change("punctual_batch_rows_bucket", le="+Inf" if bound == float("inf") else f"{bound:g}")
        if count > total:
            name = f"{bound:g}" if bound == lower + 1 else f"{lower + 1:g} to {bound:g}"
            batches[name] = int(count - total)
        total, lower = max(total, count), bound
    rows = change("punctual_batch_rows_sum")
    return {
        "batches": batches,
        "row_ms": change("punctual_execution_seconds_sum") / max(1, rows) * 1e3,
        "busy": change("punctual_device_busy_seconds_total", action="execution") / wall,
    }


def alone(path, sizes, seconds):
    """ONNX Runtime by itself in a loop, one thread: rows a second for each batch size."""
    done = subprocess.run(program("compare.alone", path, seconds, *sizes), capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"ONNX Runtime alone: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)
