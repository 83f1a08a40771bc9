"""Requests with each of the four clients, told in one way."""

import asyncio

import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

CLIENTS = {
    "http": tritonclient.http,
    "grpc": tritonclient.grpc,
    "http.aio": tritonclient.http.aio,
    "grpc.aio": tritonclient.grpc.aio,
}


class Client:
    """One of the four; all calls wait."""

    def __init__(self, server, kind):
        self.module = CLIENTS[kind]
        self.protocol = kind.split(".")[0]
        self.loop = asyncio.new_event_loop() if "aio" in kind else None
        address = getattr(server, self.protocol)
        # The asynchronous one over HTTP looks for the loop when it is made.
        self.client = self.wait(self.make(address)) if self.loop else self.module.InferenceServerClient(address)

    async def make(self, address):
        return self.module.InferenceServerClient(address)

    def wait(self, something):
        return self.loop.run_until_complete(something) if self.loop else something

    def __getattr__(self, name):
        call = getattr(self.client, name)
        return lambda *arguments, **options: self.wait(call(*arguments, **options))

    def close(self):
        self.wait(self.client.close())
        if self.loop:
            self.loop.close()

    def input(self, name, array, datatype="FP32"):
        tensor = self.module.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        return tensor

    def output(self, name, **options):
        return self.module.InferRequestedOutput(name, **options)


def rows(count, width=10, seed=7):
    """Some numbers."""
    return np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
