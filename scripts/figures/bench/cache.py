"""What a kept answer saves: a hit beside a miss and beside a model whose answers aren't kept, and how much is found by Zipf's law."""

import bisect
import itertools
import json
import pathlib
import random
import socket
import statistics
import struct
import time

from figures.common import BENCH, Failed, Figure, Server, configure, difference, generate, step

KEEP = "response_cache { enable: true }\n"
# Beside each model its twin whose answers are kept; with what its inputs have, and how often each is asked.
MODELS = {"mlp": ("a network of 10x10", [1, 10], 2000), "mobilenetv2": ("MobileNetV2", [1, 3, 224, 224], 40)}
# Zipf: so many different requests, of which the cache has room for a tenth.
KEYS = 20_000
EXPONENTS = (0.7, 0.9, 1.1)
# The server looks four times a second how full its cache is.
UNTIL_SHOWN_S = 0.6


def run(quick):
    repository = BENCH / "cache"
    generate(repository, *MODELS)
    for model in MODELS:
        twin = repository / f"{model}_kept" / "1" / "model.onnx"
        if not twin.exists():
            twin.parent.mkdir(parents=True)
            twin.write_bytes((repository / model / "1" / "model.onnx").read_bytes())
        configure(repository, f"{model}_kept", KEEP)
    figures, details = [], {}
    with Server(repository, "--cache-config", "local,size=64MiB") as server:
        for model, (title, shape, times) in MODELS.items():
            with step(f"{title}: not kept, missed, found"):
                found = compared(server, model, shape, times // (10 if quick else 1))
            details[model] = found
            figures += figures_of(title, found)
    details["entry_bytes"] = entry_bytes(repository)
    details["zipf"] = {}
    for exponent in EXPONENTS[1:2] if quick else EXPONENTS:
        with step(f"Zipf's law with exponent {exponent}"):
            found = zipf(repository, details["entry_bytes"], exponent, 6_000 if quick else 60_000)
        details["zipf"][exponent] = found
        figures.append(Figure(f"exponent {exponent}: found in a cache for a tenth of the keys", found["hits"], "",
                              note=f"the tenth that is asked for most has {found['best']:.3f} of the requests; {found['entries']:.0f} are kept"))
    return figures, details


def figures_of(title, found):
    off, miss, hit = found["off"], found["miss"], found["hit"]

    def note(case):
        return f"p99 {case['p99_us']:.0f}; at the client, one connection"

    return [
        Figure(f"{title}, not kept: time", off["p50_us"], "us", note=note(off)),
        Figure(f"{title}, missed: time", miss["p50_us"], "us", note=note(miss)),
        Figure(f"{title}, found: time", hit["p50_us"], "us", note=note(hit)),
        Figure(f"{title}, not kept: server CPU for each request", off["cpu_us"], "us"),
        Figure(f"{title}, missed: server CPU for each request", miss["cpu_us"], "us"),
        Figure(f"{title}, found: server CPU for each request", hit["cpu_us"], "us"),
        Figure(f"{title}: to look and to keep, for a miss", miss["server_us"], "us", note="the server's own clock"),
        Figure(f"{title}: to look, for a hit", hit["server_us"], "us", note="the server's own clock"),
    ]


def compared(server, model, shape, times):
    """The same requests to a model whose answers aren't kept, and twice to its twin; in rounds, so that noise meets all of them."""
    runs = {"off": [], "miss": [], "hit": []}
    connection = Connection(server.http)
    chance = random.Random(1)
    ask = [request(model, shape, chance.random()) for _ in range(3)]
    [connection.ask(each) for each in ask * 10]  # warm
    for _ in range(5):
        seeds = [chance.random() for _ in range(max(2, times // 5))]
        runs["off"].append(timed(server, connection, [request(model, shape, seed) for seed in seeds], f"{model}_kept"))
        kept = [request(f"{model}_kept", shape, seed) for seed in seeds]
        runs["miss"].append(timed(server, connection, kept, f"{model}_kept"))
        runs["hit"].append(timed(server, connection, kept, f"{model}_kept"))
    for name, wanted in [("miss", (0, 1)), ("hit", (1, 0))]:
        if any(run["found"] != wanted[0] * run["asked"] for run in runs[name]):
            raise Failed(f"{model}: not every request was a {name}: {runs[name]}")
    joined = {}
    for name, of in runs.items():
        times_us = sorted(itertools.chain.from_iterable(run["times_us"] for run in of))
        asked = sum(run["asked"] for run in of)
        joined[name] = {
            "p50_us": statistics.median(times_us),
            "p99_us": times_us[int(len(times_us) * 0.99)],
            "cpu_us": sum(run["cpu_s"] for run in of) / asked * 1e6,
            "server_us": sum(run["cache_us"] for run in of) / asked,
        }
    return joined


def cpu_seconds(pid):
    """Processor time of a process, of all its threads: a hit takes far less than the ticks in which `processor_seconds` counts."""
    threads = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def timed(server, connection, requests, twin):
    before, cpu, times_us = server.metrics(), cpu_seconds(server.pid), []
    for each in requests:
        began = time.perf_counter()
        connection.ask(each)
        times_us.append((time.perf_counter() - began) * 1e6)
    cpu, after = cpu_seconds(server.pid) - cpu, server.metrics()
    kinds = ("hit", "miss")
    spent = sum(difference(before, after, f"nv_cache_{kind}_duration_per_model", model=twin) for kind in kinds)
    found = difference(before, after, "nv_cache_num_hits_per_model", model=twin)
    return {"asked": len(requests), "times_us": times_us, "cpu_s": cpu, "found": found, "cache_us": spent}


def entry_bytes(repository):
    """What one answer of the smallest model takes in the cache, as the server counts it."""
    with Server(repository, "--cache-config", "local,size=1MiB") as server:
        Connection(server.http).ask(request("mlp_kept", [1, 10], 0.0))
        time.sleep(UNTIL_SHOWN_S)
        return server.metrics().sum("punctual_cache_bytes")


def zipf(repository, each_bytes, exponent, count):
    """What is found of `count` requests after as many that fill the cache."""
    weights = list(itertools.accumulate((rank + 1) ** -exponent for rank in range(KEYS)))
    chance = random.Random(2)
    size = round(KEYS // 10 * each_bytes)
    with Server(repository, "--cache-config", f"local,size={size}") as server:
        connection = Connection(server.http)
        seen = []
        for _ in range(2):
            before = server.metrics()
            for _ in range(count):
                key = bisect.bisect_left(weights, chance.random() * weights[-1])
                connection.ask(request("mlp_kept", [1, 10], float(key)))
            after = server.metrics()
            hits, misses = (difference(before, after, f"nv_cache_num_{kind}_per_model") for kind in ("hits", "misses"))
            seen.append(hits / (hits + misses))
        time.sleep(UNTIL_SHOWN_S)
        entries = server.metrics().sum("punctual_cache_entries")
    return {"hits": seen[1], "filling": seen[0], "best": weights[KEYS // 10 - 1] / weights[-1], "entries": entries, "count": count}


def request(model, shape, seed):
    """A request with bytes, whole: the first number of its input is the seed."""
    elements = 1
    for dim in shape:
        elements *= dim
    data = struct.pack("<d", seed)[:8] + bytes(4 * elements - 8)
    head = json.dumps({"inputs": [{"name": "input", "shape": shape, "datatype": "FP32", "parameters": {"binary_data_size": len(data)}}],
                       "parameters": {"binary_data_output": True}}).encode()
    lines = (f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: bench\r\nInference-Header-Content-Length: {len(head)}\r\n"
             f"Content-Length: {len(head) + len(data)}\r\n\r\n")
    return lines.encode() + head + data


class Connection:
    """One connection on which a request follows the answer to the one before."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request):
        self.socket.sendall(request)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self.socket.recv(65536)
        head, _, body = answer.partition(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise Failed(f"a request was refused: {answer[:300]!r}")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        while len(body) < length:
            body += self.socket.recv(65536)
