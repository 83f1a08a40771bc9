"""The calls beside infer, deadlines and the end of requests, with clients that know nothing of Punctual."""

import asyncio
import http.client
import json

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException


def connect(server, protocol):
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[protocol]
    return module, module.InferenceServerClient(getattr(server, protocol))


def mlp(module, rows=1):
    tensor = module.InferInput("input", [rows, 10], "FP32")
    tensor.set_data_from_numpy(np.zeros((rows, 10), np.float32))
    return [tensor]


def slow(module):
    """About a second of work for one core."""
    tensor = module.InferInput("x", [4, 3, 736, 736], "FP32")
    tensor.set_data_from_numpy(np.zeros((4, 3, 736, 736), np.float32))
    return [tensor]


@pytest.fixture(scope="session")
def mlp_input(server):
    """The name of the MLP's input, from its metadata."""
    _, client = connect(server, "http")
    return client.get_model_metadata("mlp")["inputs"][0]["name"]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_health_and_metadata(server, protocol):
    _, client = connect(server, protocol)
    with client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("magika")
        assert client.is_model_ready("magika", "1")
        assert not client.is_model_ready("magika", "2")
        assert not client.is_model_ready("nothing")
        options = {"as_json": True} if protocol == "grpc" else {}
        about = client.get_server_metadata(**options)
        assert about["name"] == "punctual"
        assert "binary_tensor_data" in about["extensions"]
        model = client.get_model_metadata("magika", **options)
        assert (model["name"], model["versions"], model["platform"]) == ("magika", ["1"], "onnxruntime_onnx")
        assert model["inputs"][0]["datatype"] == "INT32"
        assert [int(dim) for dim in model["inputs"][0]["shape"]] == [-1, 2048]
        with pytest.raises(InferenceServerException, match='there is no model "nothing"'):
            client.get_model_metadata("nothing")


def test_the_same_with_the_asynchronous_clients(server):
    async def ask():
        for module, address in [(tritonclient.http.aio, server.http), (tritonclient.grpc.aio, server.grpc)]:
            async with module.InferenceServerClient(address) as client:
                assert await client.is_server_live()
                assert await client.is_server_ready()
                assert await client.is_model_ready("magika")
                assert not await client.is_model_ready("nothing")

    asyncio.run(ask())


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_id_and_a_version(server, protocol):
    module, client = connect(server, protocol)
    with client:
        answer = client.infer("mlp", mlp(module), model_version="1", request_id="question 7", priority=1)
        response = answer.get_response()
        name, version, identity = (
            (response["model_name"], response["model_version"], response["id"])
            if protocol == "http"
            else (response.model_name, response.model_version, response.id)
        )
        assert (name, version, identity) == ("mlp", "1", "question 7")


def test_sequence_parameters_mean_nothing_to_a_model_without_sequences(server):
    module, client = connect(server, "http")
    client.infer("mlp", mlp(module), sequence_id=5, sequence_start=True, sequence_end=True)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_deadline_that_cannot_be_met(server, protocol):
    module, client = connect(server, protocol)
    with pytest.raises(InferenceServerException) as raised:
        client.infer("rapidocr-det", slow(module), timeout=100)
    # Refused at once, or the engine's time on it was already spent when the large body had been read.
    assert "deadline" in raised.value.message()
    if protocol == "grpc":
        assert raised.value.status() == "StatusCode.DEADLINE_EXCEEDED"


def test_the_deadline_of_grpc_itself(server):
    module, client = connect(server, "grpc")
    tensor = module.InferInput("x", [4, 3, 96, 96], "FP32")
    tensor.set_data_from_numpy(np.zeros((4, 3, 96, 96), np.float32))

    def refused_by_the_server():
        # The client has a timer of its own, and answers the same by itself: only the server's count says that it knew.
        with pytest.raises(InferenceServerException) as raised:
            client.infer("rapidocr-det", [tensor], client_timeout=0.02)
        assert raised.value.status() == "StatusCode.DEADLINE_EXCEEDED"
        return refusals(server, "rapidocr-det") > before

    before = refusals(server, "rapidocr-det")
    server.until("the server refuses it before the client gives up", refused_by_the_server)


def refusals(server, model):
    """How many requests the server refused because of their deadlines; not those that were cancelled."""
    labels = 'model="%s",outcome="refused",reason="%s",version="1"'
    reasons = ("deadline_unreachable", "deadline_missed")
    return sum(server.metric("punctual_requests_total{%s}" % (labels % (model, reason))) for reason in reasons)


def test_a_refusal_says_what_could_have_been_met(server):
    connection = http.client.HTTPConnection(server.http)
    data = [0.0] * (4 * 3 * 96 * 96)
    tensor = {"name": "x", "shape": [4, 3, 96, 96], "datatype": "FP32", "data": data}
    body = json.dumps({"inputs": [tensor]})
    connection.request("POST", "/v2/models/rapidocr-det/infer", body, {"Punctual-Timeout-Us": "1"})
    answer = connection.getresponse()
    said = json.loads(answer.read())
    assert answer.status == 504
    assert said["reason"] in ("deadline_unreachable", "deadline_missed")
    if said["reason"] == "deadline_unreachable":
        assert said["earliest_deadline_us"] > 1
