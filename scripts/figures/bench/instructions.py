"""What a request costs in instructions, which no other process disturbs: the server under callgrind, a network of 10x10.

What a server does whether it is asked or not (it looks at its memory four times a second) is counted for as long as the requests took, and taken off: under callgrind a second
is a few requests. What requests take alone isn't measured meanwhile: learning from that takes more the more these times differ, which is up to the machine, up to a tenth of all.

BASELINE_BINARY names another build of the server, to compare with. With keys, each request brings one.
"""

import http.client
import os
import pathlib
import re
import subprocess
import time

import numpy
import tritonclient.grpc as triton

from figures.access import Access
from figures.bench.overhead import OBJECTIVE_MS, VALUES, write_bodies
from figures.common import BENCH, BINARY, Failed, Figure, Server, configure, generate, parameter, step

# What is measured: HTTP with and without a deadline, and gRPC.
CASES = ("binary mlp", "binary mlp_timed", "json mlp", "grpc mlp")
# Where each request brings a key, beside one where nobody asks for keys.
KEYED = ("binary mlp", "grpc mlp")
# As before: a change of less is noise of the runtime's own threads.
SAME = 1.01
MOST_FOR_KEYS = 1.03


def run(quick):
    if subprocess.run(["which", "valgrind"], capture_output=True).returncode != 0:
        raise Failed("valgrind is missing: install it with 'apt-get install valgrind'")
    repository = BENCH / "overhead"
    generate(repository, "mlp")
    timed = repository / "mlp_timed" / "1" / "model.onnx"
    if not timed.exists():
        timed.parent.mkdir(parents=True)
        timed.write_bytes((repository / "mlp" / "1" / "model.onnx").read_bytes())
    # Long enough for a server that runs fifty times slower.
    configure(repository, "mlp_timed", parameter("latency_objective_ms", 100 * OBJECTIVE_MS))
    count = 300 if quick else 2000
    binaries = {"": BINARY}
    if baseline := os.environ.get("BASELINE_BINARY"):
        binaries[", baseline"] = pathlib.Path(baseline)
    found = {}
    for name, binary in binaries.items():
        with step(f"{count} requests of each kind{name}"):
            found[name] = counted(binary, repository, count)
    access = Access(BENCH / "access" / "instructions", tls=False)
    access.key("web", "infer", "read")
    with step(f"{count} requests of each kind, with keys"):
        found[", keys"] = counted(BINARY, repository, count, KEYED, access)
    figures = [Figure(f"{case}{name}", per_request, "instructions") for name, cases in found.items() for case, per_request in cases.items()]
    figures += [Figure(f"{case}, keys / nothing", found[", keys"][case] / found[""][case], "", ("<=", MOST_FOR_KEYS)) for case in KEYED]
    if baseline:
        figures += [Figure(f"{case} / baseline", found[""][case] / found[", baseline"][case], "", ("<=", SAME)) for case in CASES]
    return figures, {"requests": count, "found": found}


def counted(binary, repository, count, cases=CASES, access=None):
    """Instructions of one request of each kind."""
    output = BENCH / "callgrind.out"
    under = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={output}", binary]
    with Server(repository, "--online-profile-share", "0", access=access, command=under) as server:
        found = {}
        for case in cases:
            kind, model = case.split()
            ask = asking(server, kind, model)
            ask(count // 4)
            began = time.monotonic()
            asked = during(server, lambda: ask(count))
            took = time.monotonic() - began
            found[case] = (asked - during(server, lambda: time.sleep(took))) / count
        return found


def during(server, what):
    """Instructions that the server executes meanwhile."""
    control(server, "-z")
    control(server, "-i", "on")
    what()
    control(server, "-i", "off")
    for old in BENCH.glob("callgrind.out*"):
        old.unlink()
    control(server, "-d", "here")
    return total()


def control(server, *words):
    done = subprocess.run(["callgrind_control", *words, str(server.pid)], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"callgrind_control {' '.join(words)}: {(done.stderr or done.stdout).strip()[-300:]}")


def total():
    """What was counted since the last time."""
    totals = [int(found) for path in BENCH.glob("callgrind.out*") for found in re.findall(r"^(?:summary|totals): (\d+)", path.read_text(), re.MULTILINE)]
    if not totals or not max(totals):
        raise Failed("callgrind counted nothing")
    return max(totals)


def asking(server, kind, model):
    """What asks for the model so many times, on one connection, one after another."""
    key = server.access.headers("web") if server.access else {}
    if kind == "grpc":
        metadata = {name.lower(): value for name, value in key.items()}
        client = triton.InferenceServerClient(server.grpc)
        tensor = triton.InferInput("input", [1, 10], "FP32")
        tensor.set_data_from_numpy(numpy.array([VALUES], numpy.float32))
        return lambda count: [client.infer(model, [tensor], headers=metadata) for _ in range(count)]
    body = write_bodies()[kind]
    headers = {"Content-Type": body["BENCH_TYPE"], **key, **({"Inference-Header-Content-Length": body["BENCH_HEADER_LENGTH"]} if body["BENCH_HEADER_LENGTH"] else {})}
    content = pathlib.Path(body["BENCH_BODY"]).read_bytes()
    connection = http.client.HTTPConnection(server.http, timeout=60)

    def ask(count):
        for _ in range(count):
            connection.request("POST", f"/v2/models/{model}/infer", content, headers)
            answer = connection.getresponse()
            said = answer.read()
            if answer.status != 200:
                raise Failed(f"{model}: {answer.status} {said[:200]}")

    return ask
