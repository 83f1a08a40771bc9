"""Outputs equal ONNX Runtime's own, for every model, on every way in and out, alone and mixed into batches."""

import asyncio

import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

from cases import check, find, read

CASES = find()


def fits(case, served_max_batch):
    return served_max_batch == 0 or case.batch <= served_max_batch


def load(name, server):
    """A case, unless the model takes smaller batches than it has."""
    case = read(CASES[name])
    limit = {"rapidocr-det": 4}.get(case.model)
    if limit is not None and case.batch > limit:
        pytest.skip(f"{case.model} takes at most {limit} rows")
    return case


def http_request(case, binary):
    inputs = []
    for name, (datatype, array) in case.inputs.items():
        tensor = tritonclient.http.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array, binary_data=binary)
        inputs.append(tensor)
    outputs = [tritonclient.http.InferRequestedOutput(name, binary_data=binary) for name in case.outputs]
    return {"model_name": case.model, "inputs": inputs, "outputs": outputs}


def grpc_request(case):
    inputs = []
    for name, (datatype, array) in case.inputs.items():
        tensor = tritonclient.grpc.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return {"model_name": case.model, "inputs": inputs}


def text_only(case):
    if case.has("FP16"):
        pytest.skip("JSON has no form for FP16 (test_bad_input.py sees the sentence)")


@pytest.mark.parametrize("name", CASES)
def test_http_json(server, name):
    case = load(name, server)
    text_only(case)
    with tritonclient.http.InferenceServerClient(server.http, network_timeout=120) as client:
        check(case, client.infer(**http_request(case, binary=False)).as_numpy)


@pytest.mark.parametrize("name", CASES)
def test_http_binary(server, name):
    case = load(name, server)
    with tritonclient.http.InferenceServerClient(server.http, network_timeout=120) as client:
        check(case, client.infer(**http_request(case, binary=True)).as_numpy)


@pytest.mark.parametrize("name", CASES)
def test_grpc(server, name):
    case = load(name, server)
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        check(case, client.infer(**grpc_request(case)).as_numpy)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compression(server, algorithm):
    case = read(CASES["all-minilm-l6-v2-3"])
    with tritonclient.http.InferenceServerClient(server.http, network_timeout=120) as client:
        for binary in [True, False]:
            request = http_request(case, binary)
            algorithms = {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
            check(case, client.infer(**request, **algorithms).as_numpy)
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        check(case, client.infer(**grpc_request(case), compression_algorithm=algorithm).as_numpy)


MIXED = ["mlp", "magika", "all-minilm-l6-v2", "rapidocr-cls", "identity_bytes", "identity_int64"]


@pytest.mark.parametrize("model", MIXED)
def test_mixed_batches(server, model):
    """Requests of several sizes at once, over both protocols: each gets its own rows back."""
    cases = [read(CASES[f"{model}-{batch}"]) for batch in [1, 3, 16]] * 4

    async def over_http():
        async with tritonclient.http.aio.InferenceServerClient(server.http, conn_timeout=120) as client:
            requests = [http_request(case, binary=number % 2 == 0) for number, case in enumerate(cases)]
            return await asyncio.gather(*[client.infer(**request) for request in requests])

    async def over_grpc():
        async with tritonclient.grpc.aio.InferenceServerClient(server.grpc) as client:
            return await asyncio.gather(*[client.infer(**grpc_request(case)) for case in cases])

    async def both():
        return await asyncio.gather(over_http(), over_grpc())

    for answers in asyncio.run(both()):
        for case, answer in zip(cases, answers, strict=True):
            check(case, answer.as_numpy)


def test_only_the_outputs_that_are_asked_for(server):
    case = read(CASES["magika-1"])
    name = next(iter(case.outputs))
    with tritonclient.http.InferenceServerClient(server.http) as client:
        request = http_request(case, binary=True)
        request["outputs"] = [tritonclient.http.InferRequestedOutput(name)]
        answer = client.infer(**request)
        assert [output["name"] for output in answer.get_response()["outputs"]] == [name]
        # Nothing asked for is everything.
        request["outputs"] = None
        check(case, client.infer(**request).as_numpy)
