"""PyTorch behind a simple batching server: what somebody would write in an afternoon, as a rival for measurements.

    scripts/measure.py gpu.torch_server NETWORK COUNT PRECISION [--batch 16] [--wait-ms 1]

Serves COUNT copies of a torchvision network, named NETWORK-00 and on, over the binary form of the v2 protocol. One thread takes the model whose first request has waited
longest, up to a batch of its requests after waiting a little for company, and replays a CUDA graph of the next larger batch size (channels last). No deadlines: a
request is answered when it is its turn. Prints its port when it is ready.
"""

import argparse
import asyncio
import collections
import json
import threading
import time

import torch

from figures.gpu.networks import OfPixels, make

PIXELS = (3, 224, 224)


class Model:
    """One network, a CUDA graph for each batch size, the requests that wait for it."""

    def __init__(self, network, precision, sizes):
        self.waiting = collections.deque()
        self.graphs = {}
        network = OfPixels(network.to(memory_format=torch.channels_last)).eval()
        network = network.half() if precision == "fp16" else network
        for size in sizes:
            pixels = torch.zeros((size, *PIXELS), dtype=torch.uint8, device="cuda")
            stream = torch.cuda.Stream()
            with torch.no_grad(), torch.cuda.stream(stream):
                for _ in range(2):
                    network(pixels)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.no_grad(), torch.cuda.graph(graph):
                out = network(pixels)
            self.graphs[size] = (graph, pixels, out)

    def run(self, requests, staging):
        rows = len(requests)
        graph, pixels, out = self.graphs[min(size for size in self.graphs if size >= rows)]
        for row, (data, _, _) in enumerate(requests):
            staging[row] = torch.frombuffer(data, dtype=torch.uint8).view(PIXELS)
        pixels[:rows].copy_(staging[:rows], non_blocking=True)
        graph.replay()
        return out[:rows].float().cpu().numpy()


class Batcher(threading.Thread):
    def __init__(self, models, batch, wait):
        super().__init__(daemon=True)
        self.models, self.batch, self.wait = models, batch, wait
        self.news = threading.Condition()

    def add(self, model, request):
        with self.news:
            model.waiting.append(request)
            self.news.notify()

    def take(self):
        with self.news:
            while True:
                ready = [model for model in self.models.values() if model.waiting]
                if ready:
                    model = min(ready, key=lambda model: model.waiting[0][1])
                    left = model.waiting[0][1] + self.wait - time.monotonic()
                    if left <= 0 or len(model.waiting) >= self.batch:
                        return model, [model.waiting.popleft() for _ in range(min(self.batch, len(model.waiting)))]
                    self.news.wait(left)
                else:
                    self.news.wait()

    def run(self):
        staging = torch.empty((self.batch, *PIXELS), dtype=torch.uint8, pin_memory=True)
        while True:
            model, requests = self.take()
            outputs = model.run(requests, staging)
            for row, (_, _, answer) in enumerate(requests):
                answer(outputs[row].tobytes())


async def serve(reader, writer, batcher):
    loop = asyncio.get_running_loop()
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ")
            fields = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in head[1:])}
            body = await reader.readexactly(int(fields.get("content-length", 0)))
            name = path.split("/")[3] if path.startswith("/v2/models/") else ""
            model = batcher.models.get(name)
            if model is None:
                reply(writer, "404 Not Found", b'{"error":"no such model"}')
            elif method == "GET":
                tensor = {"datatype": "UINT8", "name": "input", "shape": [-1, *PIXELS]}
                reply(writer, "200 OK", json.dumps({"name": name, "inputs": [tensor], "outputs": []}).encode())
            else:
                future = loop.create_future()
                answer = lambda data: loop.call_soon_threadsafe(lambda: future.done() or future.set_result(data))
                data = bytearray(memoryview(body)[int(fields["inference-header-content-length"]):])
                batcher.add(model, (data, time.monotonic(), answer))
                data = await future
                shape = [1, len(data) // 4]
                text = json.dumps({"model_name": name, "outputs": [
                    {"name": "output", "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": len(data)}}
                ]}).encode()
                reply(writer, "200 OK", text + data, f"Inference-Header-Content-Length: {len(text)}\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def reply(writer, status, body, more=""):
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body)


async def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("network")
    parser.add_argument("count", type=int)
    parser.add_argument("precision", choices=["tf32", "fp16"])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--wait-ms", type=float, default=1)
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    sizes = [size for size in (1, 2, 4, 8, 16, 32) if size <= arguments.batch]
    network, _ = make(arguments.network, 4)
    # The weights are the same; each copy has its own graphs, as separate models would.
    models = {f"{arguments.network}-{index:02}": Model(network, arguments.precision, sizes) for index in range(arguments.count)}
    batcher = Batcher(models, arguments.batch, arguments.wait_ms / 1e3)
    batcher.start()
    server = await asyncio.start_server(lambda reader, writer: serve(reader, writer, batcher), "127.0.0.1", 0, limit=1 << 20)
    print(f"port {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
