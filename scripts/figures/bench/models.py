"""Models with no configuration: how soon they are ready, and whether deadlines are kept from the first request on."""

import contextlib
import dataclasses
import http.client
import json
import os
import random
import re
import shutil
import statistics
import struct
import subprocess
import sys
import time

import numpy as np
import onnxruntime

from figures.common import BENCH, ROOT, Failed, Figure, Server, generate, processor_seconds, processor_times, stolen_and_foreign
from figures.common import step
from strangers import STRANGERS

SAMPLES = ("magika", "silero-vad", "rapidocr-det", "rapidocr-cls", "all-minilm-l6-v2")
SMALL = 300
# How long a start may take before it is given up.
PATIENCE = 300
# A request may take so many times what its model takes alone, but has at least so much beside that: over loopback the way there
# and back takes up to 1.2 ms in one of a hundred, when a thread has to be woken on a core that sleeps.
TIMES_ALONE = 3
WAY_MS = 2
# Between an answer and the next request the server has the time to learn: as long as the model takes, and at least so long.
PAUSE_MS = 5
# Until so many requests came after the first second, but not for longer than this.
SECONDS, LONGEST, REQUESTS = 6, 20, 40
# What a refusal says that should never be said of a request that could have been answered.
IMPOSSIBLE = "deadline_unreachable"
# Of an output's range. Rows that are computed together may be summed in another order.
CLOSE = 1e-3
MILLISECONDS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1, "s": 1e3}
DATA_TYPES = {"float32": "FP32", "float64": "FP64", "int64": "INT64", "int32": "INT32", "uint8": "UINT8", "bool": "BOOL", "object": "BYTES"}
ARRAY_TYPES = {named: np.dtype(dtype) for dtype, named in DATA_TYPES.items()}


def run(quick):
    missing = [stranger.name for stranger in STRANGERS if not stranger.model.exists()]
    if missing:
        raise Failed(f"{', '.join(missing)} are missing: fetch them with 'scripts/setup strangers'")
    samples = samples_ready()
    small = small_ready(30 if quick else SMALL)
    rows = [measure(stranger, quick) for stranger in (STRANGERS[:3] if quick else STRANGERS)]
    details = {"samples_s": samples, "small": small, "strangers": rows, "markdown": table(rows)}
    return figures(details), details


# ---- time until ready -----------------------------------------------------------------------------------------------


def started(repository, **options):
    """A server that has never seen these models."""
    shutil.rmtree(repository / ".punctual", ignore_errors=True)
    return Server(repository, log="info", ready_within=PATIENCE, **options)


def samples_ready():
    """How long each of the sample models takes, and all of them together."""
    folder, found = BENCH / "samples", {}
    for name in SAMPLES:
        for repository in (folder / name, folder / "all"):
            if not (repository / name).exists():
                shutil.copytree(ROOT / "models" / name, repository / name)
    for title in (*SAMPLES, "all"):
        with step(f"{title} until ready"), started(folder / title) as server:
            found[title] = server.start_seconds
    return found


def small_ready(count):
    """How long many models take that differ in kind, width and weights."""
    repository = BENCH / f"small-{count}"
    generate(repository, f"small:{count}")
    with step(f"{count} small models until ready"):
        try:
            with started(repository) as server:
                return {"count": count, "seconds": server.start_seconds, "given_up": False}
        except Failed:
            return {"count": count, "seconds": PATIENCE, "given_up": True}


# ---- a model's requests ---------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Request:
    """A request as it is sent, what it takes alone, and what should come back."""

    head: int
    body: bytes
    alone_ms: float
    outputs: dict

    @property
    def deadline_ms(self):
        return max(TIMES_ALONE * self.alone_ms, self.alone_ms + WAY_MS)


def requests_of(stranger, quick):
    """One request of each length, with what ONNX Runtime makes of it on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(stranger.model), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    source, found = np.random.default_rng(1), []
    for length in stranger.lengths:
        inputs = stranger.inputs(source, length)
        outputs = dict(zip(names, session.run(names, inputs)))
        times = alone(lambda: session.run(names, inputs), 0.3 if quick else 1)
        found.append(Request(*encoded(inputs), statistics.median(times), outputs))
    shapes = {spec.name: spec.shape for spec in session.get_inputs()}
    return found, shapes


def alone(call, seconds):
    """What single executions take, in milliseconds."""
    times, until = [], time.perf_counter() + seconds
    call()
    while len(times) < 5 or time.perf_counter() < until:
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1e3)
    return times


def encoded(inputs):
    """A request in the protocol's binary form: how long its head is, and its bytes."""
    tensors, data = [], []
    for name, array in inputs.items():
        data.append(strings(array) if array.dtype == object else array.tobytes())
        tensors.append({"name": name, "shape": list(array.shape), "datatype": DATA_TYPES[str(array.dtype)],
                        "parameters": {"binary_data_size": len(data[-1])}})
    head = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
    return len(head), head + b"".join(data)


def strings(array):
    texts = [text.encode() for text in array.ravel()]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


class Client:
    """One connection, one request at a time."""

    def __init__(self, server, model):
        self.connection = http.client.HTTPConnection(server.http, timeout=60)
        self.path = f"/v2/models/{model}"

    def config(self):
        self.connection.request("GET", f"{self.path}/config")
        return json.loads(self.connection.getresponse().read())

    def ask(self, request):
        """How long the answer took, its status, the length of its head, its bytes."""
        headers = {"Inference-Header-Content-Length": str(request.head), "Content-Type": "application/octet-stream",
                   "Punctual-Timeout-Us": str(round(request.deadline_ms * 1e3))}
        began = time.perf_counter()
        self.connection.request("POST", f"{self.path}/infer", request.body, headers)
        answer = self.connection.getresponse()
        body = answer.read()
        took_ms = (time.perf_counter() - began) * 1e3
        return took_ms, answer.status, int(answer.headers.get("Inference-Header-Content-Length") or len(body)), body


def is_right(request, head, body):
    """Whether an answer is what ONNX Runtime computes."""
    at, found = head, {}
    for tensor in json.loads(body[:head])["outputs"]:
        size = tensor["parameters"]["binary_data_size"]
        array = np.frombuffer(body[at : at + size], ARRAY_TYPES[tensor["datatype"]]).reshape(tensor["shape"])
        found[tensor["name"]] = array
        at += size
    return found.keys() == request.outputs.keys() and all(alike(found[name], wanted) for name, wanted in request.outputs.items())


def alike(found, wanted):
    wanted = np.asarray(wanted)
    # A scalar has no dimension in the file, and one in the protocol.
    if found.size != wanted.size:
        return False
    if wanted.dtype.kind != "f":
        return bool((found.ravel() == wanted.ravel()).all())
    span = float(np.ptp(wanted)) or float(np.abs(wanted).max(initial=0)) or 1.0
    return bool(np.abs(found.ravel() - wanted.ravel()).max(initial=0) <= CLOSE * span)


# ---- deadlines ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Tally:
    """What became of requests: met, late as the client saw it, refused for a reason."""

    met: int = 0
    late: int = 0
    wrong: int = 0
    refused: dict = dataclasses.field(default_factory=dict)
    # Of the last one that was refused: its deadline, and which one would have been met, by the server.
    last_refused_ms: tuple | None = None

    @property
    def asked(self):
        return self.met + self.late + sum(self.refused.values())

    def add(self, request, took_ms, status, head, body):
        if status != 200:
            said = json.loads(body)
            reason = said.get("reason", str(status))
            self.refused[reason] = self.refused.get(reason, 0) + 1
            self.last_refused_ms = (request.deadline_ms, said.get("earliest_deadline_us", 0) / 1e3)
            return
        self.wrong += not is_right(request, head, body)
        if took_ms <= request.deadline_ms:
            self.met += 1
        else:
            self.late += 1

    def shown(self):
        refused = [f"{count} {reason}" for reason, count in sorted(self.refused.items())]
        return ", ".join([f"{self.met} of {self.asked}", *refused, *([f"{self.late} late"] if self.late else [])])


def measure(stranger, quick):
    """A model's row: a first start by itself, and one beside processes that keep all cores busy until it is ready."""
    with step(f"{stranger.name} alone"):
        requests, shapes = requests_of(stranger, quick)
    row = {
        "name": stranger.name, "kind": stranger.kind, "wheel": stranger.wheel, "lengths": stranger.lengths,
        "open": [f"{name}: {' x '.join(map(str, shape)) or 'a scalar'}" for name, shape in shapes.items()],
        "alone_ms": [request.alone_ms for request in requests],
    }
    with step(f"{stranger.name}, started by itself"):
        row["quiet"] = served(stranger, requests, contextlib.nullcontext(), quick)
    with step(f"{stranger.name}, started beside busy processes"):
        row["busy"] = served(stranger, requests, busy_cores(), quick)
    print(f"    {lines([row])[-1]}")
    return row


@contextlib.contextmanager
def busy_cores():
    """As many processes as there are cores, which do nothing and never rest; they end with this one, however it ends."""
    program = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    others = [subprocess.Popen([sys.executable, "-c", program]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def served(stranger, requests, beside, quick):
    """What a fresh server says of a model and of its requests, one after another."""
    try:
        with beside:
            server = started(stranger.repository)
    except Failed as reason:
        return {"failed": str(reason)}
    with server:
        before, used = processor_times(), server_and_own(server)
        client = Client(server, stranger.name)
        first, later = ask(client, requests, quick)
        others = stolen_and_foreign(before, processor_times(), server_and_own(server) - used)
        return {
            "ready_s": server.start_seconds, "batches": client.config().get("max_batch_size", 0), "planned_ms": planned(server),
            "first": dataclasses.asdict(first), "later": dataclasses.asdict(later), **others,
        }


def server_and_own(server):
    return processor_seconds(server.pid) + time.process_time()


def planned(server):
    """What the server measured for the smallest batch, from its log's line on the model."""
    with open(server.log.name) as log:
        found = re.search(r'batches="?\d+: ([\d.]+)(ns|us|µs|ms|s)\b', log.read())
    return float(found[1]) * MILLISECONDS[found[2]] if found else None


def ask(client, requests, quick):
    """The requests of the first second, and those after it."""
    first, later = Tally(), Tally()
    source, began = random.Random(1), time.perf_counter()
    while True:
        passed = time.perf_counter() - began
        enough = passed >= SECONDS and (later.asked >= REQUESTS or passed >= LONGEST)
        if enough or (quick and passed >= 3):
            return first, later
        request = source.choice(requests)
        (first if passed < 1 else later).add(request, *client.ask(request))
        time.sleep(max(PAUSE_MS, request.alone_ms) / 1e3)


# ---- what is shown --------------------------------------------------------------------------------------------------


def table(rows):
    return "\n".join(lines(rows)) + "\n"


def lines(rows):
    """A model each: what it is, how it was measured, and what became of its requests in the first second and after it."""
    shown = ["| model | inputs | batches | ready | planned | alone | met, first second | met, after it | "
             "busy: ready | busy: planned | busy: first second | busy: after it |", "|---|---|---:|---:|---:|---:|---|---|---:|---:|---|---|"]
    for row in rows:
        quiet, busy = row["quiet"], row["busy"]
        about = [row["name"], f"{row['kind']}: {'; '.join(row['open'])}"]
        _, ready, planned_ms, _, *met = cells(busy, row)
        shown.append("| " + " | ".join([*about, *cells(quiet, row), ready, planned_ms, *met]) + " |")
    return shown


def cells(run, row):
    if "failed" in run:
        return ["", "", "", "", f"not served: {run['failed'][-300:]}".replace("\n", " "), ""]
    first, later = (Tally(**run[when]) for when in ("first", "later"))
    alone_ms = " to ".join(dict.fromkeys(f"{value:.3g}" for value in (min(row["alone_ms"]), max(row["alone_ms"]))))
    planned_ms = "unknown" if run["planned_ms"] is None else f"{run['planned_ms']:.3g}"
    ready = f"{run['ready_s']:.1f} s"
    return [f"{run['batches'] or 'no'}", ready, f"{planned_ms} ms", f"{alone_ms} ms", first.shown(), later.shown()]


def figures(details):
    samples, small = details["samples_s"], details["small"]
    found = [Figure(f"{name} until ready", samples[name], "s", ("<=", 2)) for name in SAMPLES]
    found.append(Figure("the five together", samples["all"], "s", ("<=", 6)))
    found.append(Figure(f"{small['count']} small models", small["seconds"], "s", ("<=", 60),
                        "not ready by then, given up" if small["given_up"] else ""))
    for machine, title in {"quiet": "started by itself", "busy": "started beside busy processes"}.items():
        found += honesty([row[machine] for row in details["strangers"]], title)
    return found


def honesty(runs, title):
    """Of all models that were measured in one way."""
    served_runs = [run for run in runs if "failed" not in run]
    halves = [[Tally(**run[when]) for run in served_runs] for when in ("first", "later")]
    asked = sum(tally.asked for half in halves for tally in half)
    # Each model counts alike: one that refuses is asked more often. One that isn't served meets nothing.
    shares = [(first.met + later.met) / max(1, first.asked + later.asked) for first, later in zip(*halves)]
    met = sum(shares) / max(1, len(runs))
    impossible = [sum(tally.refused.get(IMPOSSIBLE, 0) for tally in half) for half in halves]
    return [
        Figure(f"{title}: models that aren't served", len(runs) - len(served_runs), "", ("<=", 0), f"of {len(runs)}"),
        Figure(f"{title}: slowest until ready", max((run["ready_s"] for run in served_runs), default=0), "s"),
        Figure(f"{title}: requests met, mean of the models", met, "", (">=", 0.99), f"{asked} requests"),
        Figure(f"{title}: models that met fewer", sum(share < 0.99 for share in shares), "", ("<=", 0)),
        Figure(f"{title}: refused as impossible after the first second", impossible[1], "", ("<=", 0), f"in it {impossible[0]}"),
        Figure(f"{title}: late", sum(tally.late for half in halves for tally in half)),
        Figure(f"{title}: wrong answers", sum(tally.wrong for half in halves for tally in half), "", ("<=", 0)),
        Figure(f"{title}: cores taken by others", max((run["foreign"] + run["stolen"] for run in served_runs), default=0), "", None, "at most"),
    ]
