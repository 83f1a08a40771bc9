"""Starting, stopping, and models that come and go: each with a server of its own."""

import concurrent.futures
import hashlib
import json
import shutil
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request

import numpy
import pytest
import tritonclient.grpc

import conftest

EMULATED = """
platform: "emulated"
max_batch_size: 4
parameters {{ key: "emulated_latency" value {{ string_value: "alpha_ms=1,beta_ms={beta},load_ms=1" }} }}
"""


def write_model(repository, name, beta):
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(EMULATED.format(beta=beta))


def infer(server, model, parameters=None):
    body = {"inputs": [{"name": "input", "shape": [1, 10], "datatype": "FP32", "data": [0.5] * 10}]}
    if parameters:
        body["parameters"] = parameters
    request = urllib.request.Request(f"http://{server.http}/v2/models/{model}/infer", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.fixture
def emulated(tmp_path):
    """Starts servers with an emulated device and stops them in the end."""
    servers = []

    def start(*options):
        servers.append(conftest.start(tmp_path, "--devices", "emulated:1", *options))
        return servers[-1]

    yield tmp_path, start
    for server in servers:
        server.process.kill()
        server.process.wait()


def test_sigterm_under_load_loses_nothing_in_flight(emulated):
    repository, start = emulated
    write_model(repository, "slow", 300)
    server = start()
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = [pool.submit(infer, server, "slow") for _ in range(12)]
        server.until("12 in flight", lambda: server.metric("punctual_requests_in_flight") == 12)
        server.process.send_signal(signal.SIGTERM)
        assert [answer.result()[0] for answer in answers] == [200] * 12
    assert server.process.wait(timeout=30) == 0
    with pytest.raises(OSError):
        socket.create_connection(server.http.split(":"), timeout=5)


def test_a_client_that_goes_away_cancels_its_request(emulated):
    repository, start = emulated
    # Blocks the device for longer than everything below takes, on any machine.
    write_model(repository, "blocker", 100_000)
    write_model(repository, "net", 1)
    server = start()
    threading.Thread(target=lambda: conftest.ignoring_the_end(infer, server, "blocker"), daemon=True).start()
    started = 'punctual_queue_seconds_count{model="blocker",version="1"}'
    server.until("the device is busy", lambda: server.metric(started) == 1)
    cancelled = 'punctual_requests_total{model="net",outcome="cancelled",reason="cancelled",version="1"}'

    body = json.dumps({"inputs": [{"name": "input", "shape": [1, 10], "datatype": "FP32", "data": [0] * 10}]})
    gone = socket.create_connection(server.http.split(":"))
    gone.sendall(f"POST /v2/models/net/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
    server.until("it is in flight", lambda: server.metric("punctual_requests_in_flight") == 2)
    gone.close()
    server.until("it is cancelled", lambda: server.metric(cancelled) == 1)

    tensor = tritonclient.grpc.InferInput("input", [1, 10], "FP32")
    tensor.set_data_from_numpy(numpy.zeros((1, 10), numpy.float32))
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        call = client.async_infer("net", [tensor], callback=lambda result, error: None)
        server.until("it is in flight", lambda: server.metric("punctual_requests_in_flight") == 2)
        call.cancel()
        server.until("it is cancelled", lambda: server.metric(cancelled) == 2)
    server.until("both are out of the plan", lambda: server.metric("punctual_requests_in_flight") == 1)
    assert server.metric('punctual_execution_seconds_count{model="net",version="1"}') == 0


def test_models_come_change_and_go(emulated):
    repository, start = emulated
    write_model(repository, "first", 1)
    server = start()
    assert infer(server, "first")[0] == 200
    assert infer(server, "second")[0] == 404
    write_model(repository, "second", 1)
    server.until("the new model is served", lambda: infer(server, "second")[0] == 200)
    # Slower now: what was possible before no longer is, and the server knows before it tries.
    tight = {"timeout": 100_000}
    assert infer(server, "second", tight)[0] == 200
    (repository / "second" / "config.pbtxt").write_text(EMULATED.format(beta=2000))
    server.until("the change is seen", lambda: infer(server, "second", tight)[0] == 504)
    status, answer = infer(server, "second", tight)
    assert answer["reason"] == "deadline_unreachable" and answer["earliest_deadline_us"] > 2_000_000
    # A change that can't be served leaves the model as it was; a new model that can't is named with the reason.
    (repository / "second" / "config.pbtxt").write_text("max_batch_size: many")
    write_model(repository, "third", 1)
    (repository / "third" / "config.pbtxt").write_text("max_batch_size: many")
    server.until("the broken model is seen", lambda: infer(server, "third")[0] != 404)
    assert "max_batch_size" in infer(server, "third")[1]["error"]
    assert infer(server, "second", tight)[0] == 504
    shutil.rmtree(repository / "second")
    server.until("the model is gone", lambda: infer(server, "second")[0] == 404)
    assert infer(server, "first")[0] == 200


def test_a_full_plan_refuses_with_a_time_to_come_back(emulated):
    repository, start = emulated
    write_model(repository, "slow", 300)
    server = start()
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        answers = [pool.submit(infer, server, "slow", {"timeout": 900_000}) for _ in range(24)]
        results = [answer.result() for answer in answers]
    refused = [answer for status, answer in results if status == 503]
    assert refused and all(answer["reason"] == "overloaded" for answer in refused)
    assert all(answer["earliest_deadline_us"] > 900_000 for answer in refused)
    assert [status for status, _ in results].count(200) >= 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--model-repository"),
        (["--model-repository", "nowhere"], "nowhere"),
        (["--model-repository", ".", "--policy", "fifo"], "clockwork"),
        (["--model-repository", ".", "--devices", "gpu:1"], "cpu:N"),
        (["--model-repository", ".", "--device-memory", "lots"], "2GiB"),
        (["--model-repository", ".", "--devices", "emulated:2", "--cells", "3"], "--cells 3: at most 2 can be made here"),
        (["--model-repository", ".", "--devices", "emulated:2", "--shards", "3"], "--cells 3: at most 2 can be made here"),
        (["--model-repository", ".", "--config", "missing.toml"], "missing.toml"),
        (["--model-repository", ".", "--onnxruntime", "missing.so"], "missing.so"),
    ],
)
def test_bad_options_are_sentences(options, said, tmp_path):
    done = subprocess.run(
        [conftest.binary(), "serve", "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", *options],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )
    assert done.returncode != 0
    assert said in done.stderr and "panicked" not in done.stderr, done.stderr


def test_each_of_two_cells_answers_for_its_model_and_records_what_it_was_told(tmp_path):
    models = ["first", "second"]
    for model in models:
        write_model(tmp_path / "models", model, 1)
    options = ["--devices", "emulated:2", "--cells", "2", "--record", str(tmp_path / "events")]
    server = conftest.start(tmp_path / "models", *options)
    try:
        for model in models * 5:
            assert infer(server, model)[0] == 200
        done = 'punctual_actions_total{{action="execution",device="emulated:{}",result="done"}}'
        for device in range(2):
            server.until("its reports", lambda: server.metric(done.format(device)) == 5)
    finally:
        conftest.stop(server)
    for cell in range(2):
        command = [conftest.binary(), "replay", "--json", f"{tmp_path / 'events'}.cell{cell}"]
        replayed = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert replayed.returncode == 0, replayed.stderr


def test_a_port_in_use_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [conftest.binary(), "serve", "--model-repository", ".", "--devices", "emulated:1", "--http-port", port],
            cwd=tmp_path, capture_output=True, text=True, timeout=60,
        )
    assert done.returncode != 0
    assert port in done.stderr and "in use" in done.stderr, done.stderr


def test_settings_come_from_a_file_too(emulated):
    repository, start = emulated
    write_model(repository, "net", 1)
    (repository / "settings.toml").write_text('max-body = "1KiB"\n')
    server = start("--config", str(repository / "settings.toml"))
    request = urllib.request.Request(f"http://{server.http}/v2/models/net/infer", b" " * 2000)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=30)
    assert refused.value.code == 413


def test_a_profile_that_is_much_too_high_puts_itself_right(tmp_path):
    """What is refused as impossible isn't run, and what isn't run isn't measured: it would be refused for ever."""
    shutil.copytree(conftest.ROOT / ".cache" / "test-models" / "mlp", tmp_path / "models" / "mlp")
    cache = tmp_path / "cache"
    conftest.stop(conftest.start(tmp_path / "models", cache=cache))
    profiles = [path for path in cache.rglob("*.json") if "batches" in json.loads(path.read_text())]
    assert profiles, "the first start has kept what it measured"
    for path in profiles:
        profile = json.loads(path.read_text())
        for batch in profile["batches"]:
            # It takes well below a millisecond.
            batch["median_ns"] = batch["p99_ns"] = 100_000_000_000
        path.write_text(json.dumps(profile))
    server = conftest.start(tmp_path / "models", cache=cache)
    ask = lambda: infer(server, "mlp", {"timeout": 20_000_000})
    try:
        # Nothing is tried before its weights are there.
        server.until("a request is tried", lambda: ask()[0] == 200)
        answers = [ask() for _ in range(20)]
    finally:
        conftest.stop(server)
    assert [status for status, _ in answers].count(200) >= 18, answers


def test_a_model_that_is_not_in_the_manifest_is_not_served(emulated):
    repository, start = emulated
    for name in ("listed", "changed", "unlisted"):
        write_model(repository, name, 1)
    digest = lambda name: hashlib.sha256((repository / name / "config.pbtxt").read_bytes()).hexdigest()
    manifest = repository.parent / f"{repository.name}.sha256"
    manifest.write_text("".join(f"{digest(name)}  {name}/config.pbtxt\n" for name in ("listed", "changed")))
    with (repository / "changed" / "config.pbtxt").open("a") as file:
        file.write("# more\n")
    server = start("--model-manifest", str(manifest))
    assert infer(server, "listed")[0] == 200
    for name, reason in (("changed", "SHA-256 differs"), ("unlisted", "not in the manifest")):
        status, said = infer(server, name)
        assert status in (400, 404, 503) and reason in json.dumps(index(server, name)), said


def index(server, name):
    request = urllib.request.Request(f"http://{server.http}/v2/repository/index", b"{}")
    with urllib.request.urlopen(request, timeout=60) as response:
        return next(entry for entry in json.load(response) if entry["name"] == name)
