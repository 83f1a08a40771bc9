"""What a call costs a client, beside Triton's: `scripts/measure.py clients HOST:HTTP_PORT HOST:GRPC_PORT [ROUNDS]`.

Needs a server with the model `mlp` (scripts/generate-models.py), this package, and tritonclient[all]. Prints a table of the
microseconds of CPU time that this process spends on a call, one call after another. The clients take turns, 200 calls each, so
that whatever else the machine does meets all of them; the least and the median of the rounds are shown.
"""

import asyncio
import contextlib
import statistics
import sys
import time

import numpy
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

import punctual

ROW = numpy.zeros((1, 10), numpy.float32)
CALLS = 200


def ours(client):
    """A call with one array in and one out."""
    if isinstance(client, punctual.Client):
        return lambda: client.infer("mlp", ROW, deadline_ms=10_000).array

    async def call():
        return (await client.infer("mlp", ROW, deadline_ms=10_000)).array

    return call


def tritons(module, client):
    """The same with Triton's client."""

    def arguments():
        tensor = module.InferInput("input", [1, 10], "FP32")
        tensor.set_data_from_numpy(ROW)
        return {"model_name": "mlp", "inputs": [tensor], "timeout": 10_000_000}

    if not module.__name__.endswith("aio"):
        return lambda: client.infer(**arguments()).as_numpy("output")

    async def call():
        return (await client.infer(**arguments())).as_numpy("output")

    return call


async def microseconds(call):
    before = time.process_time()
    for _ in range(CALLS):
        answer = call()
        if hasattr(answer, "__await__"):
            answer = await answer
        assert answer.shape == (1, 10)
    return (time.process_time() - before) / CALLS * 1e6


async def main(http, grpc, rounds=30):
    triton = tritonclient
    async with contextlib.AsyncExitStack() as stack:
        enter, enter_async = stack.enter_context, stack.enter_async_context
        calls = {
            "`punctual`, http": ours(enter(punctual.Client(f"http://{http}"))),
            "`tritonclient.http`": tritons(triton.http, enter(triton.http.InferenceServerClient(http))),
            "`punctual`, http, asyncio": ours(await enter_async(punctual.AsyncClient(f"http://{http}"))),
            "`tritonclient.http.aio`": tritons(triton.http.aio, await enter_async(triton.http.aio.InferenceServerClient(http))),
            "`punctual`, grpc": ours(enter(punctual.Client(f"grpc://{grpc}"))),
            "`tritonclient.grpc`": tritons(triton.grpc, enter(triton.grpc.InferenceServerClient(grpc))),
            "`punctual`, grpc, asyncio": ours(await enter_async(punctual.AsyncClient(f"grpc://{grpc}"))),
            "`tritonclient.grpc.aio`": tritons(triton.grpc.aio, await enter_async(triton.grpc.aio.InferenceServerClient(grpc))),
        }
        times = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                times[name].append(await microseconds(call))
    print("| client | least | median |\n|---|---:|---:|")
    for name, measured in times.items():
        print(f"| {name} | {min(measured):.0f} | {statistics.median(measured):.0f} |")


asyncio.run(main(*sys.argv[1:3], *map(int, sys.argv[3:])))
