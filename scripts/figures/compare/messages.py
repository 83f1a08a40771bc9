"""What is sent to each kind of server and what comes back: bodies for HTTP, and answers compared with ONNX Runtime's."""

import dataclasses
import http.client
import json

import numpy as np

from figures.common import Failed

SHAPES = {"mlp": (10,), "resnet18": (3, 224, 224)}
PROTOCOLS = {"json": "HTTP JSON", "binary": "HTTP binary", "grpc": "gRPC"}
BOUNDARY = "one-row-of-the-comparison"


@dataclasses.dataclass
class Body:
    """An HTTP request's body with what its head must say."""

    data: bytes
    content_type: str
    header_length: int | None = None

    def headers(self):
        headers = {"Content-Type": self.content_type}
        if self.header_length is not None:
            headers["Inference-Header-Content-Length"] = str(self.header_length)
        return headers


def row(model, seed):
    """One seeded row; values of four digits, as a client that cares for the size of its JSON would send them."""
    return np.random.default_rng(seed).random(SHAPES[model]).round(4).astype(np.float32)


def body(form, protocol, values):
    """A request with one row, in a server's form: `oip` is the Open Inference Protocol, `own` the plainest thing that a
    framework without a protocol takes, `rows` the same with a nested array, `upload` the bytes as a file of a form."""
    # The shortest decimals that mean the same number.
    numbers = [float(str(value)) for value in values.reshape(-1)]
    raw = values.tobytes()
    tensor = {"name": "input", "shape": [1, *values.shape], "datatype": "FP32"}
    if protocol == "json":
        fields = {"inputs": [{**tensor, "data": numbers}]} if form == "oip" else {"input": numbers}
        if form == "rows":
            fields = {"input": np.array(numbers).reshape(1, *values.shape).tolist()}
        return Body(json.dumps(fields).encode(), "application/json")
    if form == "oip":
        described = {**tensor, "parameters": {"binary_data_size": len(raw)}}
        wanted = [{"name": "output", "parameters": {"binary_data": True}}]
        head = json.dumps({"inputs": [described], "outputs": wanted}).encode()
        return Body(head + raw, "application/octet-stream", len(head))
    if form == "upload":
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="input"; filename="row"\r\n' \
               "Content-Type: application/octet-stream\r\n\r\n"
        return Body(head.encode() + raw + f"\r\n--{BOUNDARY}--\r\n".encode(),
                    f"multipart/form-data; boundary={BOUNDARY}")
    return Body(raw, "application/octet-stream")


def ask_http(port, path, form, protocol, values):
    """One request over HTTP; the output's values."""
    sent = body(form, protocol, values)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path, sent.data, sent.headers())
        answer = connection.getresponse()
        data = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise Failed(f"HTTP {answer.status}: {data[:300].decode(errors='replace')}")
    if protocol == "json":
        fields = json.loads(data)
        values = fields["outputs"][0]["data"] if form == "oip" else fields if form == "rows" else fields["output"]
        return np.array(values, np.float32).reshape(-1)
    length = answer.headers.get("Inference-Header-Content-Length")
    if form == "oip":
        if length is None:
            raise Failed("the output came back as JSON, not as bytes")
        data = data[int(length):]
    return np.frombuffer(data, np.float32)


def ask_grpc(port, name, values):
    """One request over gRPC; the output's values."""
    import tritonclient.grpc as triton

    client = triton.InferenceServerClient(f"127.0.0.1:{port}")
    try:
        tensor = triton.InferInput("input", [1, *values.shape], "FP32")
        tensor.set_data_from_numpy(values[None])
        return client.infer(name, [tensor], client_timeout=60).as_numpy("output").reshape(-1)
    except triton.InferenceServerException as error:
        raise Failed(f"gRPC: {error}") from None
    finally:
        client.close()


class Reference:
    """What ONNX Runtime itself answers."""

    def __init__(self, path):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(self, values):
        return self.session.run(["output"], {"input": values[None]})[0].reshape(-1)

    def check(self, ask, model, what):
        """Asks for some rows and compares; other batch sizes and versions may round differently."""
        for seed in (1, 2, 3):
            values = row(model, seed)
            wanted, found = self.run(values), ask(values)
            if found.shape != wanted.shape or not np.allclose(found, wanted, rtol=1e-3, atol=1e-4):
                raise Failed(f"{what} answers wrongly: {found[:4]} where ONNX Runtime has {wanted[:4]}")
