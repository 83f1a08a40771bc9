"""With --isolate a runtime that ends, hangs or is killed costs its process: every request has an outcome, others go on, and nothing is left when the server ends."""

import base64
import contextlib
import json
import os
import pathlib
import signal
import threading
import time
import urllib.error
import urllib.request

import onnx
import pytest
from onnx import TensorProto, helper

import conftest
from test_watchdog import ENDLESS, ask, run, write_rounds

MLP = {"inputs": [{"name": "input", "shape": [1, 10], "datatype": "FP32", "data": [0.5] * 10}]}


def processes_of(parent):
    """The numbers of a process's children."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split() if entry.name.isdigit() else []
        except OSError:
            continue
        if fields and int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def is_there(process):
    try:
        return (pathlib.Path("/proc") / str(process) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def isolated(tmp_path):
    """Starts servers whose engines have processes of their own, with their log in a file."""
    servers = []
    repository = tmp_path / "models"
    repository.mkdir()
    # A link: what it leads to is handed over to the processes.
    (repository / "mlp").symlink_to(conftest.ROOT / ".cache" / "test-models" / "mlp")
    write_rounds(repository, "rounds")

    def start(*options):
        with open(tmp_path / "log", "wb") as log:
            servers.append(conftest.start(repository, "--isolate", *options, stderr=log, cache=tmp_path / "cache"))
        servers[-1].log = tmp_path / "log"
        return servers[-1]

    yield repository, start
    for server in servers:
        server.process.kill()
        server.process.wait()


def only_process(server):
    """The device's, once those that prepared models are gone."""
    server.until("one process is left", lambda: len(processes_of(server.process.pid)) == 1)
    return processes_of(server.process.pid)[0]


def test_a_process_that_is_killed_under_load_costs_no_request_its_outcome(isolated):
    _, start = isolated
    server = start()
    outcomes, stop = [], threading.Event()

    def client():
        while not stop.is_set():
            outcomes.append(ask(server, "/v2/models/mlp/infer", MLP))

    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        before = len(outcomes)
        server.until("some are served", lambda: 200 in [status for status, _ in outcomes[before:]])
        for process in processes_of(server.process.pid):
            with contextlib.suppress(ProcessLookupError):  # the last one may just be going
                os.kill(process, signal.SIGKILL)
    before = len(outcomes)
    server.until("some are served after the last", lambda: 200 in [status for status, _ in outcomes[before:]])
    stop.set()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a request has no outcome"
    others = [answer for status, answer in outcomes if status != 200]
    assert all(answer["error"] for answer in others)
    assert any("the device was lost: the engine's process was ended by signal 9 SIGKILL" in answer["error"] for answer in others)
    assert server.metric('punctual_device_losses_total{device="cpu:0"}') >= 1
    conftest.stop(server)


def test_a_process_that_ends_while_nothing_is_computed_is_started_anew(isolated):
    _, start = isolated
    server = start()
    assert ask(server, "/v2/models/mlp/infer", MLP)[0] == 200
    process = only_process(server)
    os.kill(process, signal.SIGKILL)
    server.until("it is gone", lambda: not (pathlib.Path("/proc") / str(process)).exists())
    # A request that is there before the server has heard of the end goes with the process; all others don't notice.
    status, answer = ask(server, "/v2/models/mlp/infer", MLP)
    assert status == 200 or "the device was lost" in answer["error"]
    server.until("it is served", lambda: ask(server, "/v2/models/mlp/infer", MLP)[0] == 200)
    assert processes_of(server.process.pid) not in ([], [process])
    conftest.stop(server)


def test_an_execution_that_nothing_breaks_off_is_ended_and_others_go_on(isolated):
    """Without --isolate its thread is left behind, and after four of them the server isn't live any more."""
    repository, start = isolated
    write_rounds(repository, "stuck", adds=False)
    server = start("--max-execution-ms", "3000")
    process = only_process(server)
    status, answer = run(server, ENDLESS, "stuck")
    assert (status, answer["reason"]) == (500, "broken_off"), answer
    server.until("another model is served", lambda: run(server, 3)[0] == 200)
    assert processes_of(server.process.pid) != [process] and not is_there(process)
    assert urllib.request.urlopen(f"http://{server.http}/livez", timeout=10).status == 200
    conftest.stop(server)


def write_endless_preparation(repository, name):
    """A model of which the runtime computes for hours what doesn't depend on its inputs, before it is ready."""
    size = 2048
    dims = helper.make_tensor("dims", TensorProto.INT64, [2], [size, size])
    value = helper.make_tensor("value", TensorProto.FLOAT, [1], [1e-4])
    nodes = [helper.make_node("ConstantOfShape", ["dims"], ["m0"], value=value)]
    rounds = 5000
    nodes += [helper.make_node("MatMul", [f"m{number}", f"m{number}"], [f"m{number + 1}"]) for number in range(rounds)]
    nodes.append(helper.make_node("ReduceSum", [f"m{rounds}"], ["sum"], keepdims=0))
    nodes.append(helper.make_node("Add", ["x", "sum"], ["y"]))
    port = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [port("x", TensorProto.FLOAT, [1])], [port("y", TensorProto.FLOAT, [1])], [dims])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (repository / name / "1").mkdir(parents=True)
    onnx.save(model, repository / name / "1" / "model.onnx")


def test_a_preparation_that_takes_too_long_is_ended_and_others_go_on(isolated):
    repository, start = isolated
    server = start("--max-preparing-s", "10")
    process = only_process(server)
    write_endless_preparation(repository, "endless")
    # Meanwhile others are answered, by the device's own process.
    outcome = []
    loading = threading.Thread(target=lambda: outcome.append(ask(server, "/v2/repository/models/endless/load", {})))
    loading.start()
    while loading.is_alive():
        assert ask(server, "/v2/models/mlp/infer", MLP)[0] == 200
    ((status, answer),) = outcome
    assert status == 400 and "it takes longer than 10s, the limit of --max-preparing-s, to prepare it: it was ended" in answer["error"]
    server.until("what prepared it is gone", lambda: processes_of(server.process.pid) == [process])
    conftest.stop(server)


def test_a_model_that_a_client_sends_is_served(isolated):
    repository, start = isolated
    server = start()
    file = base64.b64encode((repository / "mlp" / "1" / "model.onnx").read_bytes()).decode()
    body = {"parameters": {"config": json.dumps({"max_batch_size": 4}), "file:1/model.onnx": file}}
    assert ask(server, "/v2/repository/models/sent/load", body)[0] == 200
    assert ask(server, "/v2/models/sent/infer", MLP)[1]["outputs"] == ask(server, "/v2/models/mlp/infer", MLP)[1]["outputs"]
    conftest.stop(server)
    left = [entry.name for entry in (repository.parent / "cache").iterdir() if entry.name.startswith("apart-")]
    assert left == [], "what was handed over to the processes is gone with the server"


@pytest.mark.parametrize("with_signal", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_server(isolated, with_signal):
    _, start = isolated
    server = start("--devices", "cpu:2")
    assert run(server, 3)[0] == 200
    processes = processes_of(server.process.pid)
    assert processes
    server.process.send_signal(with_signal)
    server.process.wait(timeout=60)
    server.until("they are gone", lambda: not any(is_there(process) for process in processes))


def test_no_process_outlives_a_server_that_is_killed_while_it_computes(isolated):
    _, start = isolated
    server = start()
    processes = processes_of(server.process.pid)
    outcome = threading.Thread(target=conftest.ignoring_the_end, args=(run, server, ENDLESS), daemon=True)
    outcome.start()
    time.sleep(0.5)
    server.process.kill()
    server.process.wait(timeout=60)
    server.until("they are gone", lambda: not any(is_there(process) for process in processes))
