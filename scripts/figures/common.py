"""What all parts share: servers of their own, metrics, load, the machine, figures beside their targets."""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BENCH = ROOT / ".cache" / "bench"
RESULTS = BENCH / "results"
BINARY = pathlib.Path(os.environ.get("PUNCTUAL_BINARY", ROOT / "target" / "release" / "punctual"))
# The tools of the engines, `cargo build --release -p engine-lab`.
ENGINE_LAB = pathlib.Path(os.environ.get("ENGINE_LAB_BINARY", ROOT / "target" / "release" / "engine-lab"))
# The kernel counts a process' time in these.
TICK = 1 / os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """A part that can't be measured, with the reason as a sentence."""


# ---- the machine ----------------------------------------------------------------------------------------------------


def output_of(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def machine():
    """What figures depend on and what must stand beside them."""
    processors = pathlib.Path("/proc/cpuinfo").read_text()
    names = re.findall(r"^model name\s*: (.*)$", processors, re.MULTILINE)
    memory = int(re.search(r"MemTotal:\s*(\d+) kB", pathlib.Path("/proc/meminfo").read_text())[1])
    runtimes = sorted((ROOT / ".cache" / "onnxruntime").glob("*/libonnxruntime.so.*"))
    changed = output_of("git", "status", "--porcelain", "--", "crates", "Cargo.toml", "Cargo.lock")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": names[0] if names else "unknown",
        "memory_gib": round(memory / (1 << 20), 1),
        "kernel": os.uname().release,
        "onnxruntime": runtimes[-1].parent.name if runtimes else "unknown",
        "commit": output_of("git", "rev-parse", "--short", "HEAD") + (" with changes" if changed else ""),
        "binary_built": time.strftime("%Y-%m-%d %H:%M", time.localtime(BINARY.stat().st_mtime)),
        "measured": time.strftime("%Y-%m-%d %H:%M"),
    }


def load_average():
    return round(os.getloadavg()[0], 2)


def stolen_and_foreign(before, after, own):
    """Shares of all cores' time that the hypervisor took, and that processes used other than those in `own` seconds."""
    cores = len(os.sched_getaffinity(0))
    wall = after["wall"] - before["wall"]
    busy = after["busy"] - before["busy"]
    return {
        "stolen": round((after["stolen"] - before["stolen"]) / (wall * cores), 3),
        "foreign": round(max(0.0, busy - own) / (wall * cores), 3),
    }


def processor_times():
    fields = [int(field) * TICK for field in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    user, nice, system, _idle, _wait, irq, soft, stolen = fields[:8]
    return {"wall": time.monotonic(), "busy": user + nice + system + irq + soft, "stolen": stolen}


def wait_for_quiet(patience=60):
    """Waits until others leave the machine alone for two seconds; gives up after `patience`, and figures will tell."""
    give_up_at, quiet = time.monotonic() + patience, 0
    while quiet < 2 and time.monotonic() < give_up_at:
        before = processor_times()
        time.sleep(1)
        taken = stolen_and_foreign(before, processor_times(), 0)
        quiet = quiet + 1 if taken["stolen"] + taken["foreign"] < 0.07 else 0
    if quiet < 2:
        print(f"  other processes keep the machine busy (load average {load_average()}): expect noise", flush=True)


def processor_seconds(pid):
    """User and system time of a process so far, all its threads."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK


def resident_mib(pid):
    """Memory of a process: its own, and what it shares with the file cache."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    kib = {name: int(value) for name, value in re.findall(r"^Rss(Anon|File):\s*(\d+) kB", status, re.MULTILINE)}
    return {"own": kib["Anon"] / 1024, "files": kib["File"] / 1024}


# ---- a server -------------------------------------------------------------------------------------------------------


class Server:
    """A server of our own, on free ports, with its own models."""

    def __init__(self, repository, *options, ready_within=900, log="warn", access=None, command=(BINARY,)):
        """`access` is what it asks of its clients, of whom one is called `web`; `command` may run another binary, or run it under a tool."""
        if not command[-1].exists():
            raise Failed(f"{command[-1]} is missing: build it with 'cargo build --release -p cli'")
        self.log = tempfile.NamedTemporaryFile("w+", dir=BENCH, prefix="server-", suffix=".log", delete=False)
        # One core computes, whatever machine this is, unless a part says otherwise.
        devices = [] if "--devices" in options else ["--devices", "cpu:1"]
        command = [*command, "serve", "--model-repository", repository, "--log", log, *devices]
        command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", *options]
        self.access = access
        command += access.options if access else []
        began = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log)
        watchdog = time.monotonic() + ready_within
        try:
            self.addresses = self._addresses(watchdog)
        except BaseException:
            self.stop()
            raise
        self.start_seconds = time.monotonic() - began

    def _addresses(self, give_up_at):
        found = {}
        os.set_blocking(self.process.stdout.fileno(), False)
        text = ""
        while not {"HTTP", "gRPC", "metrics"} <= found.keys():
            if self.process.poll() is not None or time.monotonic() > give_up_at:
                self.log.seek(0)
                raise Failed(f"the server didn't start: {self.log.read()[-2000:] or 'it said nothing'}")
            time.sleep(0.01)
            text += (self.process.stdout.read() or b"").decode()
            found = dict(re.findall(r"^\s+(HTTP|gRPC|metrics)\s+(?:https?://)?([\d.]+:\d+)", text, re.MULTILINE))
        broken = re.findall(r"^\s+not served: (.*)$", text, re.MULTILINE)
        if broken:
            raise Failed(f"models that should be served are not: {'; '.join(broken[:3])}")
        return found

    @property
    def pid(self):
        return self.process.pid

    @property
    def http(self):
        return self.addresses["HTTP"]

    @property
    def grpc(self):
        return self.addresses["gRPC"]

    def metrics(self):
        context = self.access and self.access.context()
        url = f"{'https' if context else 'http'}://{self.addresses['metrics']}/metrics"
        request = urllib.request.Request(url, headers=self.access.headers("web") if self.access else {})
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return Metrics(answer.read().decode())

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdout.close()
        self.log.close()
        if self.process.returncode == 0:
            os.unlink(self.log.name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Metrics:
    """One look at the metrics: sums over the series whose labels agree."""

    LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)

    def __init__(self, text):
        self.series = [
            (name, dict(re.findall(r'(\w+)="([^"]*)"', labels or "")), float(value))
            for name, labels, value in self.LINE.findall(text)
        ]

    def sum(self, name, **labels):
        return sum(
            value
            for found, has, value in self.series
            if found == name and all(has.get(label) == wanted for label, wanted in labels.items())
        )

    def by(self, name, label, **labels):
        sums = {}
        for found, has, value in self.series:
            if found == name and all(has.get(key) == wanted for key, wanted in labels.items()):
                sums[has[label]] = sums.get(has[label], 0) + value
        return {key: value for key, value in sums.items() if value}


def difference(before, after, name, **labels):
    return after.sum(name, **labels) - before.sum(name, **labels)


@contextlib.contextmanager
def watch(server):
    """What the server says of the time in between, and how much of the machine others used; filled in at the end."""
    seen = {}
    children = os.times()
    began, processors, used, before = time.monotonic(), processor_times(), processor_seconds(server.pid), server.metrics()
    yield seen
    after = server.metrics()
    wall, now = time.monotonic() - began, os.times()
    used = processor_seconds(server.pid) - used
    own = used + now.children_user + now.children_system - children.children_user - children.children_system

    def change(name, **labels):
        return difference(before, after, name, **labels)

    earlier = before.by("punctual_requests_total", "reason", outcome="refused")
    refused = after.by("punctual_requests_total", "reason", outcome="refused")
    rows = change("punctual_batch_rows_sum")
    seen.update(
        successes=change("punctual_requests_total", outcome="success"),
        refused={reason: count - earlier.get(reason, 0) for reason, count in refused.items()},
        violations=after.by("punctual_invariant_violations_total", "invariant"),
        executions={
            result: change("punctual_actions_total", action="execution", result=result)
            for result in ("done", "too_late", "failed")
        },
        execution_busy=change("punctual_device_busy_seconds_total", action="execution") / wall,
        load_busy=change("punctual_device_busy_seconds_total", action="load") / wall,
        mean_rows=rows / max(1, change("punctual_batch_rows_count")),
        row_ms=change("punctual_execution_seconds_sum") / max(1, rows) * 1e3,
        server_cores=used / wall,
        **stolen_and_foreign(processors, processor_times(), own),
    )


# ---- load -----------------------------------------------------------------------------------------------------------


def load(server, *arguments, grpc=False):
    """Runs `punctual load` and gives its report."""
    url = server.grpc if grpc else server.http
    command = [BINARY, "load", "--url", url, "--json", *map(str, arguments)]
    if grpc:
        command += ["--protocol", "grpc"]
    command += server.access.load_options("web") if server.access else []
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        raise Failed(f"punctual load {' '.join(map(str, arguments))}: {run.stderr.strip()[-500:]}")
    return json.loads(run.stdout)


def only(report):
    return report["classes"][0]


# ---- models ---------------------------------------------------------------------------------------------------------


def generate(repository, *names):
    """Writes models with seeded random weights; those that are there are kept."""
    command = [sys.executable, ROOT / "scripts" / "generate-models.py", *names, "--out", repository]
    if subprocess.run(command).returncode != 0:
        raise Failed(f"the models {' '.join(names)} could not be written")


def configure(repository, model, text):
    """Writes config.pbtxt, unless it says so already."""
    path = repository / model / "config.pbtxt"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def parameter(key, value):
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def variants(repository, model, count):
    """Models of the same shape with other weights, NAME_1 and on; files of equal content would share their memory."""
    import numpy
    import onnx

    names = [f"{model}_{index}" for index in range(1, count + 1)]
    for index, name in enumerate(names, 1):
        target = repository / name / "1" / "model.onnx"
        if target.exists():
            continue
        graph = onnx.load(repository / model / "1" / "model.onnx")
        for weight in graph.graph.initializer:
            values = onnx.numpy_helper.to_array(weight)
            if values.dtype == numpy.float32 and values.ndim > 1:
                scaled = (values * numpy.float32(1 - index / 1000)).astype(numpy.float32)
                weight.CopyFrom(onnx.numpy_helper.from_array(scaled, weight.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(graph, target)
    return names


# ---- figures --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Figure:
    """A number beside what it should be; `target` as ("<=", 80), or None where nothing is promised."""

    name: str
    value: float
    unit: str = ""
    target: tuple | None = None
    note: str = ""

    @property
    def verdict(self):
        if self.target is None:
            return ""
        sign, bound = self.target
        return "PASS" if (self.value <= bound if sign == "<=" else self.value >= bound) else "SHORT OF IT"

    def shown(self):
        return f"{number(self.value)} {self.unit}".rstrip()

    def wanted(self):
        return f"{self.target[0]} {number(self.target[1])}" if self.target else ""

    def line(self):
        note = f"  {self.note}" if self.note else ""
        return f"  {self.name:<66} {self.shown():>18}  {self.wanted():>10}  {self.verdict}{note}"

    def as_json(self):
        fields = dataclasses.asdict(self)
        return {**fields, "verdict": self.verdict}


def number(value):
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def publish(part, figures, details, load_before, quick):
    """Prints a part's figures and keeps them."""
    result = {
        "part": part,
        "machine": machine(),
        "load_average_before": load_before,
        "quick": quick,
        "figures": [figure.as_json() for figure in figures],
        "details": details,
    }
    # A quick look doesn't replace what was measured properly.
    folder = RESULTS / "quick" if quick else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{part}.json").write_text(json.dumps(result, indent=1) + "\n")
    about = result["machine"]
    print(f"\n{part}{' (quick)' if quick else ''}: {about['cores']} cores of {about['cpu']}, load average before "
          f"{load_before}, ONNX Runtime {about['onnxruntime']}, commit {about['commit']}")
    for figure in figures:
        print(figure.line())
    sys.stdout.flush()


@contextlib.contextmanager
def step(text):
    """Says what is being done, on a terminal and in a log alike."""
    began = time.monotonic()
    print(f"  ... {text}", end="", flush=True)
    yield
    print(f" ({time.monotonic() - began:.1f} s)", flush=True)
