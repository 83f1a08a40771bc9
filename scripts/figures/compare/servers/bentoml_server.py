"""BentoML: arrays as JSON with and without batching, and bytes as an uploaded file."""

from pathlib import Path
from typing import Annotated

import bentoml
import numpy as np
from bentoml.validators import DType
from network import MAX_BATCH, Network, from_bytes
from starlette.responses import Response

Rows = Annotated[np.ndarray, DType("float32")]


@bentoml.service(
    workers=1,
    traffic={"timeout": 60},
    metrics={"enabled": False},
    logging={"access": {"enabled": False}},
)
class Served:
    def __init__(self):
        self.network = Network()

    @bentoml.api(route="/plain/json")
    async def plain(self, input: Rows) -> Rows:
        return self.network.run(input)

    @bentoml.api(route="/batched/json", batchable=True, max_batch_size=MAX_BATCH)
    async def batched(self, input: Rows) -> Rows:
        return self.network.run(input)

    @bentoml.api(route="/plain/binary")
    async def plain_bytes(self, input: Path) -> bytes:
        output = self.network.run(from_bytes(input.read_bytes())[None])
        return Response(output.tobytes(), media_type="application/octet-stream")
