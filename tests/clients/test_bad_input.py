"""What is wrong is said in a sentence, and the server goes on."""

import http.client
import json
import pathlib
import resource
import socket
import struct
import subprocess

import conftest
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

GOOD = {"name": "input", "shape": [1, 10], "datatype": "FP32", "data": [0.5] * 10}


def post(server, body, model="mlp", headers=None):
    """Status and JSON of an answer to a body as it is."""
    connection = http.client.HTTPConnection(server.http, timeout=120)
    body = json.dumps(body) if isinstance(body, dict) else body
    connection.request("POST", f"/v2/models/{model}/infer", body, headers or {})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


@pytest.fixture(autouse=True)
def it_goes_on(server):
    yield
    status, answer = post(server, {"inputs": [GOOD]})
    assert status == 200, answer


WRONG = {
    "model": ({"model": "nothing"}, {}, 404, "model_not_found", 'there is no model "nothing": this server has '),
    "version": ({"model": "mlp/versions/7"}, {}, 404, "model_not_found", 'there is no version "7" of model "mlp": there is 1'),
    "input name": ({}, {"name": "x"}, 400, "bad_input", 'the model has no input "x": it takes "input"'),
    "type": ({}, {"datatype": "INT64", "data": [1] * 10}, 400, "bad_input", 'input "input" is INT64, but the model takes FP32'),
    "unknown type": ({}, {"datatype": "FLOAT"}, 400, "bad_input", 'the datatype "FLOAT", which is none of BOOL, '),
    "shape": ({}, {"shape": [10, 1]}, 400, "bad_input", 'input "input" has the shape [10, 1], but the model takes [1 to '),
    "rank": ({}, {"shape": [10]}, 400, "bad_input", 'input "input" has the shape [10], but the model takes [1 to '),
    "too few elements": ({}, {"data": [1.0] * 9}, 400, "bad_input", "has 9 elements, but its shape [1, 10] takes 10"),
    "no rows": ({}, {"shape": [0, 10], "data": []}, 400, "bad_input", "has 0 rows, but the model takes 1 to "),
    "too many rows": (
        {},
        {"shape": [1000, 10], "data": [1.0] * 10000},
        400,
        "bad_input",
        "has 1000 rows, but the model takes 1 to ",
    ),
    "negative dimension": ({}, {"shape": [-1, 10]}, 400, "bad_input", "none may be negative"),
    "overflowing dimension": ({}, {"shape": [2**62, 10]}, 400, "bad_input", "whose number of elements overflows"),
    "dimension out of range": ({}, {"shape": [2**64, 10]}, 400, "bad_input", "expected i64"),
    "not a number": ({}, {"data": ["a"] * 10}, 400, "bad_input", 'has the element "a", which is not a value of FP32'),
    "no data": ({}, {"data": None}, 400, "bad_input", "has no data"),
}


@pytest.mark.parametrize("what", WRONG)
def test_http(server, what):
    where, change, status, reason, sentence = WRONG[what]
    got, answer = post(server, {"inputs": [GOOD | change]}, **where)
    assert (got, answer["reason"]) == (status, reason), answer
    assert sentence in answer["error"]


def test_an_open_dimension_has_a_bound(tmp_path):
    """`max_elements`: more are refused with a sentence that names it."""
    model = tmp_path / "identity_fp32"
    model.mkdir()
    (model / "1").symlink_to(conftest.ROOT / ".cache" / "test-models" / "identity_fp32" / "1")
    (model / "config.pbtxt").write_text('parameters { key: "max_elements" value { string_value: "6" } }')
    started = conftest.start(tmp_path)
    try:
        sized = lambda length: {"inputs": [{"name": "input", "shape": [2, length], "datatype": "FP32", "data": [0.5] * 2 * length}]}
        assert post(started, sized(3), "identity_fp32")[0] == 200
        status, answer = post(started, sized(4), "identity_fp32")
        assert (status, answer["reason"]) == (400, "bad_input")
        assert "more elements than the 6 that the model takes in one request" in answer["error"]
    finally:
        started.process.kill()
        started.process.wait()


def test_a_shape_that_the_model_cant_compute_is_the_clients_mistake(tmp_path):
    """400 and counted as that, over gRPC INVALID_ARGUMENT; and 200 of them are one line of the log, not an error."""
    model = tmp_path / "models" / "failing"
    model.mkdir(parents=True)
    (model / "1").symlink_to(conftest.ROOT / ".cache" / "test-models" / "failing" / "1")
    (model / "config.pbtxt").write_text('parameters { key: "profile_inputs" value { string_value: "input=3" } }')
    with open(tmp_path / "log", "wb") as log:
        started = conftest.start(tmp_path / "models", stderr=log)
    try:
        sized = lambda width: {"inputs": [{"name": "input", "shape": [1, width], "datatype": "FP32", "data": [0.5] * width}]}
        assert post(started, sized(3), "failing")[0] == 200
        for _ in range(200):
            status, answer = post(started, sized(4), "failing")
            assert (status, answer["reason"]) == (400, "bad_input"), answer
            assert answer["error"].startswith('model "failing" can\'t compute these inputs: '), answer
            assert "cannot be reshaped" in answer["error"]
        with tritonclient.grpc.InferenceServerClient(started.grpc) as client:
            tensor = tritonclient.grpc.InferInput("input", [1, 4], "FP32")
            tensor.set_data_from_numpy(np.zeros((1, 4), np.float32))
            with pytest.raises(InferenceServerException, match="can't compute these inputs") as refused:
                client.infer("failing", [tensor])
            assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
        assert post(started, sized(3), "failing")[0] == 200
        series = 'punctual_requests_total{model="failing",outcome="refused",reason="bad_input",version="1"}'
        assert started.metric(series) == 201
        conftest.stop(started)
        lines = (tmp_path / "log").read_text().splitlines()
        told = [line for line in lines if "can't compute the inputs" in line]
        # At most one in ten seconds, however long this took.
        assert 1 <= len(told) < 20 and not [line for line in lines if "ERROR" in line], lines
    finally:
        started.process.kill()
        started.process.wait()


def test_a_log_that_nobody_reads_stops_nothing(tmp_path):
    """Standard error is a pipe of 64 KiB that nobody reads, and 300 KB of errors go there."""
    for name in ["failing", "mlp"]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "1").symlink_to(conftest.ROOT / ".cache" / "test-models" / name / "1")
    # Nothing that is made up has that width: what fails may be the model's fault, and is an error each.
    started = conftest.start(tmp_path, stderr=subprocess.PIPE)
    try:
        wrong = {"inputs": [{"name": "input", "shape": [1, 4], "datatype": "FP32", "data": [0.5] * 4}]}
        for _ in range(600):
            assert post(started, wrong, "failing")[0] == 500
        assert post(started, {"inputs": [GOOD]})[0] == 200
        conftest.stop(started)
        assert len(started.process.stderr.read()) > 60_000
    finally:
        started.process.kill()
        started.process.wait()


def test_missing_twice_and_unknown_outputs(server):
    assert 'input "input" is missing' in post(server, {"inputs": []})[1]["error"]
    assert "is given twice" in post(server, {"inputs": [GOOD, GOOD]})[1]["error"]
    assert 'has no output "z"' in post(server, {"inputs": [GOOD], "outputs": [{"name": "z"}]})[1]["error"]


def test_every_truncation_of_json(server):
    body = json.dumps({"inputs": [GOOD]})
    connection = http.client.HTTPConnection(server.http, timeout=120)
    for end in range(len(body)):
        connection.request("POST", "/v2/models/mlp/infer", body[:end])
        answer = connection.getresponse()
        said = json.loads(answer.read())
        assert (answer.status, said["reason"]) == (400, "bad_input"), body[:end]


def binary_body(size, data, length=None):
    tensor = {"name": "input", "shape": [1, 10], "datatype": "FP32", "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [tensor]}).encode()
    return head + data, {"Inference-Header-Content-Length": str(len(head) if length is None else length)}


@pytest.mark.parametrize(
    ("size", "data", "length", "sentence"),
    [
        (40, bytes(39), None, "the body is shorter than declared"),
        (40, bytes(41), None, "the body is longer than declared"),
        (36, bytes(36), None, "has 36 bytes, but its shape [1, 10] of FP32 takes 40 bytes"),
        (44, bytes(44), None, "has 44 bytes, but its shape [1, 10] of FP32 takes 40 bytes"),
        (2**63, bytes(40), None, "the body is shorter than declared"),
        (40, bytes(40), 10**9, "but Inference-Header-Content-Length says that 1000000000 of them are JSON"),
        (40, bytes(40), 3, "the request is not what the protocol asks for"),
        (40, bytes(40), -1, "it must be a whole number"),
    ],
)
def test_binary_lengths(server, size, data, length, sentence):
    body, headers = binary_body(size, data, length)
    status, answer = post(server, body, headers=headers)
    assert (status, answer["reason"]) == (400, "bad_input")
    assert sentence in answer["error"]


def test_a_body_that_ends_early_or_never(server):
    host, port = server.http.split(":")
    for sent in [b"", b'{"inputs":', json.dumps({"inputs": [GOOD]}).encode()]:
        cut = socket.create_connection((host, int(port)))
        cut.sendall(b"POST /v2/models/mlp/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n" + sent)
        cut.close()


def test_strings_that_lie_about_their_length(server):
    data = struct.pack("<I", 2**32 - 1) + b"abc"
    tensor = {"name": "input", "shape": [1, 1], "datatype": "BYTES", "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [tensor]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    status, answer = post(server, head + data, model="identity_bytes", headers=headers)
    assert status == 400
    assert "ends inside element 0" in answer["error"]


def test_half_precision_as_json(server):
    tensor = {"name": "input", "shape": [1, 5], "datatype": "FP16", "data": [1] * 5}
    status, answer = post(server, {"inputs": [tensor]}, model="identity_fp16")
    assert status == 400
    assert "which JSON has no form for" in answer["error"]


def test_json_of_100_megabytes(server):
    if server.process:
        # Forgets earlier peaks, which would hide this one.
        pathlib.Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")
        before = server.peak_memory()
    tensor = '{"name":"input","shape":[1,10],"datatype":"FP32","data":['
    body = f'{{"inputs":[{tensor}{"0.5," * 25_000_000}0.5]}}]}}'
    assert len(body) > 100_000_000
    status, answer = post(server, body)
    assert (status, answer["reason"]) == (413, "body_too_large")
    assert "send less in one request" in answer["error"]
    if server.process:
        assert server.peak_memory() - before < 50_000_000, "it was not to be kept"


def test_grpc_messages_of_100_megabytes(server):
    client = tritonclient.grpc.InferenceServerClient(server.grpc)
    tensor = tritonclient.grpc.InferInput("input", [2_500_000, 10], "FP32")
    tensor.set_data_from_numpy(np.zeros((2_500_000, 10), np.float32))
    with pytest.raises(InferenceServerException) as raised:
        client.infer("mlp", [tensor])
    assert raised.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    assert "send less in one request" in raised.value.message()


def test_large_bodies_to_a_model_that_is_not_there(server):
    status, answer = post(server, b" " * 8_000_000, model="nothing")
    assert (status, answer["reason"]) == (404, "model_not_found")


def test_grpc_names_of_40_kilobytes(server):
    client = tritonclient.grpc.InferenceServerClient(server.grpc)
    with pytest.raises(InferenceServerException) as raised:
        client.get_model_metadata("no" * 20_000)
    assert raised.value.status() == "StatusCode.NOT_FOUND"
    assert raised.value.message().startswith('there is no model "nono')


def test_grpc(server):
    client = tritonclient.grpc.InferenceServerClient(server.grpc)

    def refused(model="mlp", name="input", shape=(1, 10), version=""):
        tensor = tritonclient.grpc.InferInput(name, list(shape), "FP32")
        tensor.set_data_from_numpy(np.zeros(shape, np.float32))
        with pytest.raises(InferenceServerException) as raised:
            client.infer(model, [tensor], model_version=version)
        return raised.value.status(), raised.value.message()

    status, sentence = refused(model="nothing")
    assert status == "StatusCode.NOT_FOUND" and 'there is no model "nothing"' in sentence
    status, sentence = refused(version="7")
    assert status == "StatusCode.NOT_FOUND" and 'there is no version "7" of model "mlp"' in sentence
    status, sentence = refused(name="x")
    assert status == "StatusCode.INVALID_ARGUMENT" and 'has no input "x"' in sentence
    status, sentence = refused(shape=(10, 1))
    assert status == "StatusCode.INVALID_ARGUMENT" and "but the model takes [1 to " in sentence


def test_thousands_of_idle_connections(server):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    host, port = server.http.split(":")
    idle = []
    try:
        for _ in range(3000):
            idle.append(socket.create_connection((host, int(port))))
        status, _ = post(server, {"inputs": [GOOD]})
        assert status == 200
    finally:
        for connection in idle:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_paths_and_methods(server):
    connection = http.client.HTTPConnection(server.http, timeout=30)

    def ask(method, path):
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())["error"]

    assert ask("GET", "/v2/health/live/") == (404, 'there is no "/v2/health/live/" here: leave out the slash at its end')
    assert ask("GET", "/")[0] == 404
    assert ask("DELETE", "/v2/models/mlp") == (405, "/v2/models/mlp is asked with GET, not DELETE")
    assert ask("GET", "/v2/models/mlp/infer") == (405, "/v2/models/mlp/infer is asked with POST, not GET")
