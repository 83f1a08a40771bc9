"""Executions that never end, and loads, and clients that don't read: the others are served, and a stop has an end."""

import json
import os
import pathlib
import signal
import socket
import threading
import urllib.error
import urllib.request

import onnx
import pytest
from onnx import TensorProto, helper

import conftest

# More rounds than there is time.
ENDLESS = 2**62
# So that a model whose rounds the input gives is measured with none.
NO_ROUNDS = """
max_batch_size: 0
model_warmup { name: "none" inputs { key: "rounds" value { data_type: TYPE_INT64 dims: 1 zero_data: true } } }
"""


def write_rounds(repository, name, fixed=None, adds=True, extent=1):
    """A model that runs as many rounds of a loop as it is told, or as are fixed; each adds 1, or does nothing at all. What its input is long may be left open, by a name."""
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Identity", ["go"], ["goes"]), helper.make_node("Add", ["sum_in", "one"], ["sum_out"])]
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    goes, total = ("goes", "sum_out") if adds else ("go", "sum_in")
    body = helper.make_graph(
        nodes if adds else [],
        "round",
        [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("sum_in", TensorProto.FLOAT, [1])],
        [value(goes, TensorProto.BOOL, []), value(total, TensorProto.FLOAT, [1])],
        [one] if adds else [],
    )
    start = helper.make_tensor("start", TensorProto.FLOAT, [1], [0.0])
    rounds = helper.make_tensor("rounds", TensorProto.INT64, [1], [fixed or 0])
    graph = helper.make_graph(
        [helper.make_node("Loop", ["rounds", "", "start"], ["sum"], body=body)],
        "rounds",
        [value("start", TensorProto.FLOAT, [1])] if fixed else [value("rounds", TensorProto.INT64, [extent])],
        [value("sum", TensorProto.FLOAT, [1])],
        [rounds] if fixed else [start],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (repository / name / "1").mkdir(parents=True)
    onnx.save(model, repository / name / "1" / "model.onnx")
    if not fixed:
        (repository / name / "config.pbtxt").write_text(NO_ROUNDS)


def ask(server, path, body):
    request = urllib.request.Request(f"http://{server.http}{path}", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, json.loads(response.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def run(server, rounds, model="rounds"):
    body = {"inputs": [{"name": "rounds", "shape": [1], "datatype": "INT64", "data": [rounds]}]}
    return ask(server, f"/v2/models/{model}/infer", body)


def beside(call, *arguments):
    threading.Thread(target=conftest.ignoring_the_end, args=(call, *arguments), daemon=True).start()


@pytest.fixture
def hanging(tmp_path):
    """Starts servers whose models may hang, with their log in a file."""
    servers = []
    repository = tmp_path / "models"
    repository.mkdir()
    write_rounds(repository, "rounds")

    def start(*options):
        with open(tmp_path / "log", "wb") as log:
            servers.append(conftest.start(repository, *options, stderr=log, cache=tmp_path / "cache"))
        servers[-1].log = tmp_path / "log"
        return servers[-1]

    yield repository, start
    for server in servers:
        server.process.kill()
        server.process.wait()


def executes(server, model):
    return server.metric(f'punctual_queue_seconds_count{{model="{model}",version="1"}}') > 0


def test_an_execution_that_hangs_stops_nobody_else(hanging):
    repository, start = hanging
    server = start("--max-execution-ms", "3000")
    status, answer = run(server, ENDLESS)
    assert (status, answer["reason"]) == (500, "broken_off")
    assert answer["error"] == 'model "rounds" was broken off: it took longer than 3000ms, which is more than it may'
    write_rounds(repository, "endless", ENDLESS)
    status, answer = ask(server, "/v2/repository/models/endless/load", {})
    assert (status, answer["reason"]) == (400, "load_failed")
    assert "--max-execution-ms" in answer["error"]
    server.until("the model's rest is over", lambda: run(server, 3)[0] == 200)
    assert urllib.request.urlopen(f"http://{server.http}/livez", timeout=10).status == 200
    conftest.stop(server)


def test_a_request_that_goes_with_a_thread_that_hangs_is_answered(hanging):
    """ONNX Runtime looks before each node whether it should stop, and a loop's empty body has none."""
    repository, start = hanging
    write_rounds(repository, "stuck", adds=False)
    server = start("--max-execution-ms", "3000")
    status, answer = run(server, ENDLESS, "stuck")
    assert (status, answer["reason"]) == (500, "execution_failed")
    assert "an execution hangs on cpu:0" in answer["error"]
    server.until("the device is back", lambda: run(server, 3)[0] == 200)
    assert server.metric('punctual_device_losses_total{device="cpu:0"}') == 1


def computed(server):
    """Seconds that the server has computed: what hangs goes on computing."""
    fields = (pathlib.Path("/proc") / str(server.process.pid) / "stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


def ends_without(server, what):
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=60) == 75
    log = server.log.read_text()
    assert "the process ends without what is under way" in log and what in log, log


def test_a_stop_has_an_end_while_an_execution_hangs(hanging):
    repository, start = hanging
    # Where inputs differ in length, nothing is more than the model may take but the limit that is named.
    write_rounds(repository, "open", extent="n")
    server = start("--max-execution-ms", "1000000", "--exit-timeout-secs", "1")
    beside(run, server, ENDLESS, "open")
    server.until("it executes", lambda: executes(server, "open"))
    ends_without(server, "an execution on cpu:0")


def test_a_stop_has_an_end_while_a_load_hangs(hanging):
    repository, start = hanging
    server = start("--max-execution-ms", "1000000", "--exit-timeout-secs", "1", "--model-control-mode", "explicit")
    write_rounds(repository, "endless", ENDLESS)
    beside(ask, server, "/v2/repository/models/endless/load", {})
    server.until("it is being prepared", lambda: server.metric('punctual_models{state="loading"}') == 1)
    # Whoever is stopped before the first run begins nothing that could hang.
    before = computed(server)
    server.until("a run doesn't end", lambda: computed(server) > before + 1)
    ends_without(server, "thread models")


def test_a_stop_has_an_end_while_a_client_does_not_read(hanging):
    repository, start = hanging
    (repository / "identity_fp32").symlink_to(conftest.ROOT / ".cache" / "test-models" / "identity_fp32")
    server = start("--exit-timeout-secs", "1")
    host, port = server.http.split(":")
    body = b"[" + b"0," * 8_000_000 + b"0]"
    client = socket.create_connection((host, int(port)), timeout=60)
    head = f"POST /v2/models/identity_fp32/infer HTTP/1.1\r\nHost: {server.http}\r\n"
    data = b'{"inputs":[{"name":"input","shape":[1,8000001],"datatype":"FP32","data":' + body + b"}]}"
    client.sendall(head.encode() + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
    assert client.recv(15) == b"HTTP/1.1 200 OK", "the answer begins, and nobody reads the rest"
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=60) == 0
    client.close()
