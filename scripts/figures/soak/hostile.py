"""Clients that are slow, wrong and hostile, each for as long as it is told. They run in a process of their own: what they cost isn't the server's."""

import base64
import contextlib
import functools
import gzip
import http.client
import json
import os
import pathlib
import random
import socket
import ssl
import struct
import sys
import threading
import time

import grpc
import onnx
from onnx import TensorProto, helper

# More rounds than there is time.
ENDLESS = 2**62
# A server that says nothing for so long is broken; what a client waits for at most.
PATIENCE = 60
# Measured with no rounds, so that it is ready at once.
CONFIG = json.dumps({
    "max_batch_size": 0,
    "model_warmup": [{"name": "none", "inputs": {"rounds": {"data_type": "TYPE_INT64", "dims": [1], "zero_data": True}}}],
})  # fmt: skip


def endless_model():
    """A model that runs as many rounds of a loop as it is told, as bytes."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["goes"]), helper.make_node("Add", ["sum_in", "one"], ["sum_out"])],
        "round",
        [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("sum_in", TensorProto.FLOAT, [1])],
        [value("goes", TensorProto.BOOL, []), value("sum_out", TensorProto.FLOAT, [1])],
        [helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["rounds", "", "start"], ["sum"], body=body)],
        "rounds",
        [value("rounds", TensorProto.INT64, [1])],
        [value("sum", TensorProto.FLOAT, [1])],
        [helper.make_tensor("start", TensorProto.FLOAT, [1], [0.0])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return made.SerializeToString()


class Attacker:
    """What hostile clients know of the server. `wide` is a model that gives back what it is given, `spare` one that may be loaded again and again."""

    def __init__(self, http_address, grpc_address, headers, control, context, wide, spare):
        self.http, self.grpc = http_address, grpc_address
        self.headers, self.control, self.context = headers, control, context
        self.wide, self.spare = wide, spare
        self.random = random.Random(1)
        self.reloads = 0
        self.endless = endless_model()

    # ---- ways to connect ----

    def raw(self, address=None):
        """A connection on which nothing is agreed."""
        host, port = (address or self.http).rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=PATIENCE)

    def connect(self):
        """A connection as any client has it."""
        plain = self.raw()
        return self.context.wrap_socket(plain, server_hostname="127.0.0.1") if self.context else plain

    def head(self, path, length, *more):
        lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}", *more]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def ask(self, path, body, headers=None, method="POST"):
        """The status of one call."""
        if self.context:
            connection = http.client.HTTPSConnection(self.http, timeout=PATIENCE, context=self.context)
        else:
            connection = http.client.HTTPConnection(self.http, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or self.headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status

    def tensor(self, elements):
        return {"inputs": [{"name": "input", "shape": [1, elements], "datatype": "FP32", "data": [0.5] * elements}]}

    # ---- what they do ----

    def slow_reader(self, seconds=10):
        """Asks for megabytes and takes them by the kilobyte, then is gone."""
        body = json.dumps(self.tensor(300_000)).encode()
        with self.connect() as connection:
            connection.sendall(self.head(f"/v2/models/{self.wide}/infer", len(body)) + body)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                connection.recv(1024)
                time.sleep(0.2)

    def reset(self):
        """Is gone in the middle of a body."""
        connection = self.connect()
        connection.sendall(self.head(f"/v2/models/{self.wide}/infer", 1 << 20) + b" " * self.random.randrange(200_000))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    def bomb(self):
        """Sends what is a thousand times as large when it is inflated: below the limit of a body, and beyond it."""
        body = bombs(self.random.choice(BOMB_BYTES))
        headers = {**self.headers, "Content-Encoding": "gzip"}
        expect(self.ask(f"/v2/models/{self.wide}/infer", body, headers), 400, 413, 429, 503)

    def bad_shape(self):
        wrong = [
            {"inputs": [{"name": "input", "shape": [1, 3], "datatype": "FP32", "data": [1, 2]}]},
            {"inputs": [{"name": "input", "shape": [-1, 1 << 60], "datatype": "FP32", "data": []}]},
            {"inputs": [{"name": "nothing", "shape": [1], "datatype": "FP32", "data": [1]}]},
            {"inputs": [{"name": "input", "shape": [1, 1], "datatype": "FP77", "data": [1]}]},
            {"inputs": []},
            [],
        ]
        for body in wrong:
            expect(self.ask(f"/v2/models/{self.wide}/infer", json.dumps(body)), 400)
        expect(self.ask("/v2/models/none/infer", json.dumps(self.tensor(1))), 403, 404)
        expect(self.ask(f"/v2/models/{self.wide}/infer", b'{"inputs": [{"name": '), 400)
        expect(self.ask(f"/v2/models/{self.wide}/infer", json.dumps(self.tensor(1)), {"Authorization": "Bearer wrong"}), 200, 401)

    def garbage(self):
        """Says what is no HTTP and no TLS, on both ports."""
        junk = self.random.randbytes(self.random.randrange(1, 4000))
        for connection in (self.raw(), self.raw(self.grpc), self.connect()):
            with connection, contextlib.suppress(OSError):
                connection.sendall(junk)
                connection.settimeout(2)
                connection.recv(1000)

    def idle(self, seconds=20, count=20):
        """Connects, and has nothing to say."""
        with contextlib.ExitStack() as stack:
            for number in range(count):
                stack.enter_context(self.connect() if number % 2 else self.raw())
            time.sleep(seconds)

    def half_head(self, seconds=5):
        with self.connect() as connection:
            connection.sendall(self.head("/v2/models/none/infer", 10)[: self.random.randrange(1, 60)])
            time.sleep(seconds)

    def hang(self, name=None):
        """Uploads a model that never ends, asks it, and takes it away."""
        name = name or f"hangs-{self.random.randrange(1 << 30)}"
        control = {**self.control, "Content-Type": "application/json"}
        parameters = {"config": CONFIG, "file:1/model.onnx": base64.b64encode(self.endless).decode()}
        try:
            expect(self.ask(f"/v2/repository/models/{name}/load", json.dumps({"parameters": parameters}), control), 200)
            body = {"inputs": [{"name": "rounds", "shape": [1], "datatype": "INT64", "data": [ENDLESS]}]}
            # Broken off, or refused because it rests.
            expect(self.ask(f"/v2/models/{name}/infer", json.dumps(body), self.control), 500, 503)
        finally:
            self.ask(f"/v2/repository/models/{name}/unload", "{}", control)

    def reload(self):
        """Loads a model with another configuration than it has: with the same one, nothing would be done."""
        self.reloads += 1
        control = {**self.control, "Content-Type": "application/json"}
        parameters = {"config": json.dumps({"max_batch_size": 4 + self.reloads % 2})}
        expect(self.ask(f"/v2/repository/models/{self.spare}/load", json.dumps({"parameters": parameters}), control), 200)

    def cancelled(self):
        """Asks for streams over gRPC and goes away while they are answered."""
        if self.context is None:
            channel = grpc.insecure_channel(self.grpc)
        else:
            roots = "".join(ssl.DER_cert_to_PEM_cert(one) for one in self.context.get_ca_certs(binary_form=True))
            channel = grpc.secure_channel(self.grpc, grpc.ssl_channel_credentials(roots.encode()))
        with channel:
            stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
            metadata = [(name.lower(), value) for name, value in self.headers.items()]
            # A field of a name of this model, without inputs: a refusal each.
            name = self.wide.encode()
            message = bytes([0x0A, len(name)]) + name
            answers = stream(iter([message] * 50), metadata=metadata, timeout=PATIENCE)
            with contextlib.suppress(grpc.RpcError):
                next(answers)
            answers.cancel()


# Below the limit of a body, and beyond it.
BOMB_BYTES = [20 << 20, 200 << 20]


@functools.cache
def bombs(size):
    return gzip.compress(b" " * size)


class Unexpected(Exception):
    """The server answered what it may not."""


def expect(status, *statuses):
    if status not in statuses:
        raise Unexpected(f"the status is {status}: expected {' or '.join(map(str, statuses))}")


# Who does what, how many at a time, and how many seconds apart. What a hang takes is the watchdog's; how often is told.
KINDS = {
    "slow_reader": (4, 2),
    "reset": (1, 0.5),
    "bomb": (1, 2),
    "bad_shape": (1, 1),
    "garbage": (1, 1),
    "idle": (2, 1),
    "half_head": (4, 1),
    "reload": (1, 1),
    "cancelled": (1, 3),
    "hang": (1, 60),
}


def attack(attacker, stopping, counts, hang_every):
    """Everybody at once, until told to stop. Returns when all are gone."""
    lock = threading.Lock()

    def again_and_again(kind, pause):
        # Not all at the same instant, but all of them at the start: what they make the server keep for good, it has early.
        stopping.wait(min(2, pause) * attacker.random.random())
        while not stopping.is_set():
            try:
                getattr(attacker, kind)()
                outcome = "done"
            except Unexpected as reason:
                outcome = f"{kind}: {reason}"
            except (OSError, http.client.HTTPException) as error:
                # The server closes the connections of such clients; that is an answer, too.
                outcome = type(error).__name__
            with lock:
                of_kind = counts.setdefault(kind, {})
                of_kind[outcome] = of_kind.get(outcome, 0) + 1
            stopping.wait(pause)

    threads = []
    for kind, (count, pause) in KINDS.items():
        pause = hang_every if kind == "hang" else pause
        threads += [threading.Thread(target=again_and_again, args=(kind, pause), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(settings):
    """The process of the hostile clients: says when they begin, ends when its standard input does, and says what they did."""
    given = json.loads(settings)
    context = ssl.create_default_context(cafile=given["ca"]) if given["ca"] else None
    names = ("http", "grpc", "headers", "control")
    attacker = Attacker(*(given[name] for name in names), context, given["wide"], given["spare"])
    stopping, counts = threading.Event(), {}
    threading.Thread(target=lambda: (sys.stdin.read(), stopping.set()), daemon=True).start()
    for size in BOMB_BYTES:
        bombs(size)
    print("begun", flush=True)
    attack(attacker, stopping, counts, given["hang_every"])
    print(json.dumps(counts), flush=True)
    # Nothing is left of them, whatever a library keeps.
    os._exit(0)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).read_text())
