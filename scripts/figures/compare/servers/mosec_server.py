"""mosec: JSON and raw bytes, each with and without batching, as four routes of one server."""

import sys

from mosec import Runtime, Server, Worker
from network import HTTP_PORT, MAX_BATCH, WAIT_MS, Network, from_bytes, from_list


class Json(Worker):
    def __init__(self):
        super().__init__()
        self.network = Network()

    def forward(self, data):
        return {"output": self.network.run(from_list(data["input"])[None])[0].tolist()}


class JsonBatched(Json):
    def forward(self, data):
        outputs = self.network.run_each([from_list(one["input"]) for one in data])
        return [{"output": output.tolist()} for output in outputs]


class Binary(Worker):
    req_mime_type = "application/octet-stream"
    resp_mime_type = "application/octet-stream"

    def __init__(self):
        super().__init__()
        self.network = Network()

    def deserialize(self, data):
        return from_bytes(data)

    def serialize(self, data):
        return data.tobytes()

    def forward(self, data):
        return self.network.run(data[None])[0]


class BinaryBatched(Binary):
    def forward(self, data):
        return self.network.run_each(data)


if __name__ == "__main__":
    sys.argv += ["--address", "127.0.0.1", "--port", str(HTTP_PORT), "--timeout", "60000", "--log-level", "warning"]
    server = Server()
    batching = {"max_batch_size": MAX_BATCH, "max_wait_time": WAIT_MS}
    server.register_runtime({
        "/plain/json": [Runtime(Json)],
        "/plain/binary": [Runtime(Binary)],
        "/batched/json": [Runtime(JsonBatched, **batching)],
        "/batched/binary": [Runtime(BinaryBatched, **batching)],
    })
    server.run()
