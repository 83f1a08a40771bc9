"""KServe: a model in its server, as its guide to custom models has it."""

import logging

from kserve import InferOutput, InferResponse, Model, ModelServer
from network import CLASSES, GRPC_PORT, HTTP_PORT, MODEL, SHAPE, Network


class Served(Model):
    def __init__(self, name):
        super().__init__(name)
        self.network = Network()
        self.ready = True

    def get_input_types(self):
        return [{"name": "input", "datatype": "FP32", "shape": [-1, *SHAPE]}]

    def get_output_types(self):
        return [{"name": "output", "datatype": "FP32", "shape": [-1, CLASSES]}]

    def predict(self, request, headers=None, response_headers=None):
        rows = self.network.run(request.inputs[0].as_numpy())
        output = InferOutput("output", list(rows.shape), "FP32")
        output.set_data_from_numpy(rows, binary_data=wants_bytes(request))
        return InferResponse(request.id or "", self.name, [output], use_binary_outputs=request.use_binary_outputs,
                             requested_outputs=request.request_outputs)


def wants_bytes(request):
    return request.use_binary_outputs or any(output.binary_data for output in request.request_outputs or [])


if __name__ == "__main__":
    server = ModelServer(HTTP_PORT, GRPC_PORT, workers=1, enable_grpc=True, enable_latency_logging=False)
    # It writes a line for each request.
    logging.getLogger("kserve").setLevel(logging.WARNING)
    access = logging.getLogger("uvicorn.access")
    access.handlers, access.propagate = [], False
    server.start([Served(f"{MODEL}_plain")])
