"""Configurations and requests that Triton takes, with Triton's own clients."""

import contextlib
import json
import uuid

import numpy as np
import pytest

import conftest
from infer import Client, rows

PROTOCOLS = ["http", "grpc"]
MLP = conftest.ROOT / ".cache" / "test-models" / "mlp" / "1" / "model.onnx"


@pytest.fixture(params=PROTOCOLS)
def client(server, request):
    client = Client(server, request.param)
    yield client
    client.close()


@contextlib.contextmanager
def loaded(client, config, **files):
    """A model that the client brings, for a while: its name. Without files it is `mlp`."""
    name = f"brought_{uuid.uuid4().hex}"
    files = files or {"1/model.onnx": MLP.read_bytes()}
    client.load_model(name, config=json.dumps(config), files={f"file:{path}": data for path, data in files.items()})
    try:
        yield name
    finally:
        client.unload_model(name)


def test_a_preferred_batch_size_does_not_lower_the_largest(client):
    with loaded(client, {"max_batch_size": 12, "dynamic_batching": {"preferred_batch_size": [2]}}) as name:
        data = rows(11)
        answer = client.infer(name, [client.input("input", data)]).as_numpy("output")
        alone = client.infer("mlp", [client.input("input", data[-1:])]).as_numpy("output")
    assert answer.shape == (11, 10)
    np.testing.assert_allclose(answer[-1:], alone, rtol=1e-5, atol=1e-5)
