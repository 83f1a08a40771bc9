"""MLServer: a runtime of our own around the network."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from network import Network


class Runtime(MLModel):
    async def load(self) -> bool:
        self.network = Network()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        rows = NumpyCodec.decode_input(payload.inputs[0])
        output = NumpyCodec.encode_output("output", self.network.run(rows))
        return InferenceResponse(model_name=self.name, outputs=[output])
