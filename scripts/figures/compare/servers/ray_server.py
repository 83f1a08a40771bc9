"""Ray Serve: one deployment that takes JSON and bytes over HTTP, and the Open Inference Protocol over gRPC."""

import json
import signal

import ray
from network import CLASSES, GRPC_PORT, HTTP_PORT, MAX_BATCH, SHAPE, WAIT_MS, Network, from_bytes, from_list
from ray import serve
from ray.serve.config import HTTPOptions, gRPCOptions
from ray.serve.schema import LoggingConfig
from starlette.responses import Response
from tritonclient.grpc import service_pb2 as messages

SERVICE = "tritonclient.grpc.service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server"


@serve.deployment(
    num_replicas=1,
    max_ongoing_requests=100,
    ray_actor_options={"num_cpus": 0},
    logging_config=LoggingConfig(enable_access_log=False, log_level="WARNING"),
)
class Served:
    def __init__(self):
        self.network = Network()

    @serve.batch(max_batch_size=MAX_BATCH, batch_wait_timeout_s=WAIT_MS / 1000)
    async def together(self, rows):
        return self.network.run_each(rows)

    async def compute(self, variant, row):
        if variant == "batched":
            return await self.together(row)
        return self.network.run(row[None])[0]

    async def __call__(self, request):
        _, variant, form = request.url.path.split("/")
        body = await request.body()
        if form == "json":
            output = await self.compute(variant, from_list(json.loads(body)["input"]))
            return Response(json.dumps({"output": output.tolist()}), media_type="application/json")
        output = await self.compute(variant, from_bytes(body))
        return Response(output.tobytes(), media_type="application/octet-stream")

    async def ModelInfer(self, request):
        row = from_bytes(request.raw_input_contents[0])
        output = await self.compute(request.model_name.rpartition("_")[2], row)
        answer = messages.ModelInferResponse(model_name=request.model_name, raw_output_contents=[output.tobytes()])
        answer.outputs.add(name="output", datatype="FP32", shape=[1, len(output)])
        return answer

    async def ModelMetadata(self, request):
        answer = messages.ModelMetadataResponse(name=request.name)
        answer.inputs.add(name="input", datatype="FP32", shape=[-1, *SHAPE])
        answer.outputs.add(name="output", datatype="FP32", shape=[-1, CLASSES])
        return answer


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    quiet = LoggingConfig(enable_access_log=False, log_level="WARNING")
    serve.start(
        http_options=HTTPOptions(host="127.0.0.1", port=HTTP_PORT),
        grpc_options=gRPCOptions(port=GRPC_PORT, grpc_servicer_functions=[SERVICE]),
        logging_config=quiet,
    )
    serve.run(Served.bind(), name="comparison", route_prefix="/")
    signal.signal(signal.SIGTERM, lambda *_: exit())
    signal.pause()
