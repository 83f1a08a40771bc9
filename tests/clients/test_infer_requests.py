"""What a request may carry beside its tensors, in every form: raw bodies, outputs, classes, parameters, time limits."""

import gzip
import http.client
import json
import queue
import zlib

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from infer import CLIENTS, Client, rows


@pytest.fixture(params=CLIENTS)
def client(server, request):
    client = Client(server, request.param)
    yield client
    client.close()


def post(server, model, body, headers):
    """Status, headers and body of an answer to a body as it is."""
    connection = http.client.HTTPConnection(server.http, timeout=60)
    connection.request("POST", f"/v2/models/{model}/infer", body, headers)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def raw(server, model, body, **headers):
    """The answer to a body without a head, read by the client's own parser."""
    status, head, content = post(server, model, body, {"Inference-Header-Content-Length": "0"} | headers)
    assert status == 200, content
    length = int(head["Inference-Header-Content-Length"])
    assert head["Content-Type"] == "application/octet-stream"
    return tritonclient.http.InferenceServerClient.parse_response_body(
        content, header_length=length, content_encoding=head["Content-Encoding"]
    )


def refused(server, model, body, **headers):
    status, _, content = post(server, model, body, {"Inference-Header-Content-Length": "0"} | headers)
    assert status == 400, content
    return json.loads(content)["error"]


@pytest.mark.parametrize("count", [1, 3])
def test_a_body_without_a_head(server, count):
    client = Client(server, "http")
    data = rows(count)
    expected = client.infer("mlp", [client.input("input", data)]).as_numpy("output")
    np.testing.assert_array_equal(raw(server, "mlp", data.tobytes()).as_numpy("output"), expected)
    packed = {"Content-Encoding": "gzip", "Accept-Encoding": "gzip"}
    np.testing.assert_array_equal(raw(server, "mlp", gzip.compress(data.tobytes()), **packed).as_numpy("output"), expected)
    client.close()


def test_a_body_without_a_head_of_other_shapes(server):
    wide = np.arange(7, dtype=np.int64)
    np.testing.assert_array_equal(raw(server, "identity_int64", wide.tobytes()).as_numpy("output"), [wide])
    fixed = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(raw(server, "fixed", fixed.tobytes()).as_numpy("output"), -fixed.reshape(2, 3))
    assert raw(server, "identity_bytes", b"any bytes: \xff\0").as_numpy("output").tolist() == [[b"any bytes: \xff\0"]]
    half = np.array([[1.5, -2]], np.float16)
    np.testing.assert_array_equal(raw(server, "identity_fp16", half.tobytes()).as_numpy("output"), half)


def test_bodies_without_a_head_that_mean_nothing(server):
    assert "the body has 41 bytes, but input \"input\" of FP32 takes a multiple of 40" in refused(server, "mlp", bytes(41))
    assert "0 rows, but the model takes 1 to" in refused(server, "mlp", b"")
    assert "takes 24 bytes" in refused(server, "fixed", bytes(28))
    assert "the model has 2: send the request as JSON, or with a head" in refused(server, "add", bytes(16))
    assert "is not valid gzip" in refused(server, "mlp", bytes(40), **{"Content-Encoding": "gzip"})


def test_outputs_in_the_order_in_which_they_are_asked_for(client):
    a, b = rows(2, 4), rows(2, 4, seed=8)
    inputs = [client.input("a", a), client.input("b", b)]
    result = client.infer("add", inputs, outputs=[client.output("difference"), client.output("sum")])
    response = result.get_response()
    names = [output["name"] if isinstance(output, dict) else output.name for output in
             (response["outputs"] if isinstance(response, dict) else response.outputs)]
    assert names == ["difference", "sum"]
    np.testing.assert_allclose(result.as_numpy("sum"), a + b)
    only = client.infer("add", inputs, outputs=[client.output("difference")])
    np.testing.assert_allclose(only.as_numpy("difference"), a - b)
    assert only.as_numpy("sum") is None
    with pytest.raises(InferenceServerException, match='has no output "product": it gives "sum", "difference"'):
        client.infer("add", inputs, outputs=[client.output("product")])


def test_parameters_of_the_clients_own(client):
    parameters = {"text": "a \"b\"", "number": 3, "fraction": 0.5, "flag": True}
    result = client.infer("mlp", [client.input("input", rows(1))], parameters=parameters)
    assert result.as_numpy("output").shape == (1, 10)


def test_sequences_mean_nothing_to_models_that_know_none(client):
    for identity in [17, "a text"]:
        options = {"sequence_id": identity, "sequence_start": True, "sequence_end": True}
        assert client.infer("mlp", [client.input("input", rows(1))], **options).as_numpy("output").shape == (1, 10)


def test_reserved_parameters(server):
    tensor = {"name": "input", "shape": [1, 10], "datatype": "FP32", "data": [0.5] * 10}
    for parameters, said in [
        ({"triton_anything": 1}, '"triton_anything" begins with "triton_", which is reserved'),
        ({"nested": {"a": 1}}, "expected a text, a number, true or false"),
        ({"timeout": "soon"}, "expected u64"),
        ({"priority": -1}, "expected u64"),
    ]:
        status, _, content = post(server, "mlp", json.dumps({"parameters": parameters, "inputs": [tensor]}), {})
        assert status == 400, parameters
        assert said in json.loads(content)["error"]
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        request = service_pb2.ModelInferRequest(model_name="mlp")
        request.parameters["triton_anything"].bool_param = True
        with pytest.raises(Exception, match="which is reserved: choose another name") as raised:
            service_pb2_grpc.GRPCInferenceServiceStub(client._channel).ModelInfer(request)
        assert raised.value.code().name == "INVALID_ARGUMENT"


def highest(values, count):
    """What Triton would write."""
    order = np.argsort(-values, kind="stable")[:count]
    return [f"{values[place]:.6f}:{place}".encode() for place in order]


@pytest.mark.parametrize("count", [1, 4])
def test_classes(client, count):
    data = rows(count)
    tensor = client.input("input", data)
    scores = client.infer("mlp", [tensor]).as_numpy("output")
    for classes in [1, 3]:
        result = client.infer("mlp", [tensor], outputs=[client.output("output", class_count=classes)])
        got = result.as_numpy("output")
        assert got.tolist() == [highest(row, classes) for row in scores]
    all_of_them = client.infer("mlp", [tensor], outputs=[client.output("output", class_count=1000)])
    assert all_of_them.as_numpy("output").shape == (count, 10)


@pytest.mark.parametrize("kind", CLIENTS)
def test_classes_with_labels(sharing, kind):
    client = Client(sharing, kind)
    tensor = client.input("input", rows(1))
    (scores,) = client.infer("labelled", [tensor]).as_numpy("output")
    (got,) = client.infer("labelled", [tensor], outputs=[client.output("output", class_count=10)]).as_numpy("output")
    places = [int(text.split(b":")[1]) for text in got]
    assert places == list(np.argsort(-scores, kind="stable"))
    # There are two labels fewer than classes.
    labels = [b"label %d" % place if place < 8 else None for place in places]
    assert [text.split(b":")[2] if text.count(b":") == 2 else None for text in got] == labels
    client.close()


def test_classes_without_a_batch_and_as_json(server):
    tensor = {"name": "input", "shape": [2, 3], "datatype": "FP32", "data": [1, 2, 3, -4, 5, 6]}
    body = {"inputs": [tensor], "outputs": [{"name": "output", "parameters": {"classification": 2}}]}
    status, _, content = post(server, "fixed", json.dumps(body), {})
    assert status == 200
    (output,) = json.loads(content)["outputs"]
    assert output == {"name": "output", "datatype": "BYTES", "shape": [2], "data": ["4.000000:3", "-1.000000:0"]}


def test_classes_of_what_has_none(client):
    tensor = client.input("input", np.array([[b"a", b"b"]], object), "BYTES")
    with pytest.raises(InferenceServerException, match='output "output" is BYTES, which can\'t be classified'):
        client.infer("identity_bytes", [tensor], outputs=[client.output("output", class_count=1)])


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compression_both_ways(client, algorithm):
    # Compressible, and more than fits a packet.
    data = np.zeros((16, 1000), np.float32)
    inputs = [client.input("input", data)]
    if client.protocol == "http":
        options = {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
    else:
        options = {"compression_algorithm": algorithm}
    result = client.infer("identity_fp32", inputs, **options)
    np.testing.assert_array_equal(result.as_numpy("output"), data)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_bodies_of_other_calls(server, algorithm):
    pack = {"gzip": gzip.compress, "deflate": zlib.compress}[algorithm]
    connection = http.client.HTTPConnection(server.http, timeout=60)
    body = pack(json.dumps({"key": "/nothing", "byte_size": 1}).encode())
    path = "/v2/systemsharedmemory/region/a/register"
    connection.request("POST", path, body, {"Content-Encoding": algorithm})
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["reason"]) == (400, "unsupported")


def test_asynchronous_requests_of_the_waiting_clients(server):
    with tritonclient.http.InferenceServerClient(server.http, concurrency=8) as client:
        data = [rows(1, seed=number) for number in range(40)]
        waiting = []
        for row in data:
            tensor = tritonclient.http.InferInput("input", [1, 10], "FP32")
            tensor.set_data_from_numpy(row)
            waiting.append(client.async_infer("mlp", [tensor], request_id=str(len(waiting))))
        results = [request.get_result(timeout=30) for request in waiting]
        assert [result.get_response()["id"] for result in results] == [str(number) for number in range(40)]
        wrong = tritonclient.http.InferInput("input", [1, 11], "FP32")
        wrong.set_data_from_numpy(np.zeros((1, 11), np.float32))
        with pytest.raises(InferenceServerException, match="has the shape"):
            client.async_infer("mlp", [wrong]).get_result(timeout=30)


def test_asynchronous_requests_over_grpc(server):
    answers = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        for number in range(40):
            tensor = tritonclient.grpc.InferInput("input", [1, 10 if number % 2 else 11], "FP32")
            tensor.set_data_from_numpy(np.zeros(tensor.shape(), np.float32))
            client.async_infer("mlp", [tensor], lambda result, error: answers.put((result, error)), request_id=str(number))
        got = [answers.get(timeout=30) for _ in range(40)]
    good = {result.get_response().id for result, error in got if error is None}
    assert good == {str(number) for number in range(1, 40, 2)}
    errors = [error for _, error in got if error is not None]
    assert len(errors) == 20
    assert all("has the shape" in error.message() for error in errors)


def test_time_limits_that_are_too_short(client):
    with pytest.raises(InferenceServerException, match="by the deadline"):
        client.infer("mlp", [client.input("input", rows(1))], timeout=1)
    assert client.infer("mlp", [client.input("input", rows(1))], timeout=20_000_000, priority=1) is not None


def test_the_extensions_are_those_that_are_there(server, sharing):
    plain = Client(server, "http").get_server_metadata()["extensions"]
    over_grpc = list(Client(server, "grpc").get_server_metadata().extensions)
    assert plain == over_grpc
    assert {"binary_tensor_data", "classification", "parameters", "schedule_policy", "sequence"} <= set(plain)
    assert not {"cuda_shared_memory", "system_shared_memory"} & set(plain)
    assert "system_shared_memory" in Client(sharing, "http").get_server_metadata()["extensions"]
