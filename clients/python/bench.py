"""What a call costs a client, beside Triton's: `python clients/python/bench.py HOST:HTTP_PORT HOST:GRPC_PORT [CALLS]`.

Needs a server with the model `mlp` (scripts/generate-models.py), this package, and tritonclient[all]. Prints a table of
microseconds per call, one after another: CPU time of this process, and time that passes, each the best of five rounds.
"""

import asyncio
import sys
import time

import numpy
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

import punctual

ROW = numpy.zeros((1, 10), numpy.float32)
ROUNDS = 5


async def rounds(call, calls):
    """The best CPU time and the best time of a call, in microseconds."""
    cpu, wall = [], []
    for _ in range(ROUNDS + 1):
        before, started = time.process_time(), time.perf_counter()
        for _ in range(calls // ROUNDS):
            answer = call()
            if hasattr(answer, "__await__"):
                await answer
        cpu.append(time.process_time() - before)
        wall.append(time.perf_counter() - started)
    return [min(times[1:]) / (calls // ROUNDS) * 1e6 for times in (cpu, wall)]


def triton_call(module, client):
    def call():
        tensor = module.InferInput("input", [1, 10], "FP32")
        tensor.set_data_from_numpy(ROW)
        return client.infer("mlp", [tensor], timeout=10_000_000)

    return call


def synchronous(call):
    def with_output():
        answer = call()
        return answer.as_numpy("output") if hasattr(answer, "as_numpy") else answer["output"]

    return with_output


async def main(http, grpc, calls=5000):
    triton = tritonclient
    table = []

    async def measure(name, call):
        table.append((name, *await rounds(call, calls)))

    ours = punctual.Client(f"http://{http}", deadline_ms=10_000)
    await measure("`punctual`, http", synchronous(lambda: ours.infer("mlp", ROW)))
    theirs = triton.http.InferenceServerClient(http)
    await measure("`tritonclient.http`", synchronous(triton_call(triton.http, theirs)))
    async with punctual.AsyncClient(f"http://{http}", deadline_ms=10_000) as client:
        await measure("`punctual`, http, asyncio", lambda: client.infer("mlp", ROW))
    async with triton.http.aio.InferenceServerClient(http) as client:
        await measure("`tritonclient.http.aio`", triton_call(triton.http.aio, client))
    ours = punctual.Client(f"grpc://{grpc}", deadline_ms=10_000)
    await measure("`punctual`, grpc", synchronous(lambda: ours.infer("mlp", ROW)))
    theirs = triton.grpc.InferenceServerClient(grpc)
    await measure("`tritonclient.grpc`", synchronous(triton_call(triton.grpc, theirs)))
    async with punctual.AsyncClient(f"grpc://{grpc}", deadline_ms=10_000) as client:
        await measure("`punctual`, grpc, asyncio", lambda: client.infer("mlp", ROW))
    async with triton.grpc.aio.InferenceServerClient(grpc) as client:
        await measure("`tritonclient.grpc.aio`", triton_call(triton.grpc.aio, client))
    print("| client | CPU | passes |\n|---|---:|---:|")
    for name, cpu, wall in table:
        print(f"| {name} | {cpu:.0f} | {wall:.0f} |")


asyncio.run(main(*sys.argv[1:3], *map(int, sys.argv[3:])))
