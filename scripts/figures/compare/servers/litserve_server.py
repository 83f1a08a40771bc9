"""LitServe: JSON, and raw bytes as an uploaded file, each with and without batching."""

import os

import litserve
import numpy as np
from fastapi import Response
from network import HTTP_PORT, MAX_BATCH, SHAPE, WAIT_MS, Network, from_bytes, from_list


class Json(litserve.LitAPI):
    def setup(self, _device):
        self.network = Network()

    def decode_request(self, request):
        return from_list(request["input"])

    def predict(self, rows):
        # Rows are stacked already when batching is on.
        return self.network.run(rows) if rows.ndim > len(SHAPE) else self.network.run(rows[None])[0]

    def encode_response(self, output):
        return {"output": output.tolist()}


class Binary(Json):
    def decode_request(self, request):
        return from_bytes(request["input"].file.read())

    def encode_response(self, output):
        return Response(np.ascontiguousarray(output).tobytes(), media_type="application/octet-stream")


if __name__ == "__main__":
    batching = {"max_batch_size": MAX_BATCH, "batch_timeout": WAIT_MS / 1000}
    apis = {
        "plain/json": lambda: Json(api_path="/plain/json"),
        "plain/binary": lambda: Binary(api_path="/plain/binary"),
        "batched/json": lambda: Json(api_path="/batched/json", **batching),
        "batched/binary": lambda: Binary(api_path="/batched/binary", **batching),
    }
    apis = [apis[name]() for name in os.environ["COMPARE_PART"].split(",")]
    server = litserve.LitServer(apis, accelerator="cpu", devices=1, workers_per_device=1, timeout=60, fast_queue=True)
    server.run(host="127.0.0.1", port=HTTP_PORT, num_api_servers=1, generate_client_file=False, log_level="warning",
               access_log=False)
