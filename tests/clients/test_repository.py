"""The model repository, with Triton's own clients: configurations, index, loads and unloads, on both protocols."""

import contextlib
import json
import signal
import subprocess
import threading
import urllib.error
import urllib.request

import numpy
import pytest
import tritonclient.grpc
import tritonclient.http
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import InferenceServerException

import conftest

LATENCY = 'parameters { key: "emulated_latency" value { string_value: "alpha_ms=1,beta_ms=1" } }'

# Configurations as people write them: both brackets, lists with and without a colon, comments, every order, separators,
# escapes, texts in pieces, names and numbers of enums, maps, fields that mean nothing here.
CONFIGS = {
    "plain": f'name: "plain"\nplatform: "emulated"\nmax_batch_size: 8\n{LATENCY}',
    "brackets": f"""
        # A comment, with a {{ in it.
        {LATENCY}
        max_batch_size: 4
        input [ < name: 'input', data_type: TYPE_FP32; dims: [ 10 ] > ]
        output: [ {{ name: "out" "put" data_type: 11 dims: 10 }} ] # another one
        instance_group [ {{ count: 2; kind: KIND_CPU }} , {{ count: 1 kind: KIND_GPU gpus: [ 0, 1 ] }} ]
    """,
    "batching": f"""
        {LATENCY}
        max_batch_size: 16
        dynamic_batching {{
          preferred_batch_size: [ 4, 0x8 ] preferred_batch_size: 020
          max_queue_delay_microseconds: 100
          preserve_ordering: true
          priority_levels: 3, default_priority_level: 2
          default_queue_policy {{ timeout_action: DELAY default_timeout_microseconds: 7 allow_timeout_override: true }}
          priority_queue_policy {{ key: 1 value {{ max_queue_size: 12 }} }}
          priority_queue_policy: [ {{ key: 3 value: {{ timeout_action: REJECT }} }} ]
        }}
    """,
    "versions": f"{LATENCY} version_policy: {{ specific {{ versions: [ 1, ] }} }}".replace(", ]", " ]"),
    "escapes": LATENCY + r"""
        parameters: { key: "\x41\102\n\"\'\\" value: { string_value: 'a' "b\tä" "\u00e9" } }
        metric_tags { key: "k" value: "v" } metric_tags { key: "k2" value: "" }
        parameters { key: "k" } default_model_filename: ""
    """,
    "everything": f"""
        {LATENCY}
        max_batch_size: 2
        backend: "emulated"
        optimization {{
          graph {{ level: -1 }} priority: PRIORITY_MAX eager_batching: true gather_kernel_buffer_threshold: 3
          execution_accelerators {{ gpu_execution_accelerator: [ {{
            name: "tensorrt" parameters {{ key: "precision_mode" value: "FP16" }} }} ] }}
          cuda {{ graphs: true graph_spec [ {{ batch_size: 1 input {{ key: "x" value {{ dim: [ 1, 2 ] }} }} }} ] }}
          input_pinned_memory {{ enable: true }}
        }}
        model_warmup [ {{
          name: "zeros" batch_size: 2 count: 3
          inputs {{ key: "input" value {{ data_type: TYPE_FP32 dims: [ 10 ] zero_data: true }} }}
        }} ]
        response_cache {{ enable: true }}
        model_transaction_policy {{ decoupled: false }}
        model_metrics {{ metric_control: [ {{ metric_identifier: {{ family: "x" }} histogram_options: {{ buckets: [ 1, 2.5e-1, -inf ] }} }} ] }}
        model_repository_agents {{ agents [ {{ name: "checksum" parameters {{ key: "a" value: "b" }} }} ] }}
        cc_model_filenames {{ key: "7.5" value: "m" }}
        runtime: "r" model_operations {{ op_library_filename: [ "a.so", "b.so" ] }}
    """,
}

# Neither Python's parser nor ours takes these.
BAD_CONFIGS = {
    "no_colon": "max_batch_size 8",
    "no_end": "input [ { name: 'x' ",
    "wrong_end": "input { name: 'x' ]",
    "wrong_type": "max_batch_size: 'eight'",
    "too_large": "max_batch_size: 99999999999",
    "no_such_choice": "instance_group { kind: KIND_ABACUS }",
    "given_twice": "max_batch_size: 1 max_batch_size: 2",
    "two_of_one": "dynamic_batching { } sequence_batching { }",
    "open_text": "name: 'x",
    "no_text": "name: x",
    "list_of_one": "max_batch_size: [ 1, 2 ]",
    "no_truth": "response_cache { enable: maybe }",
}


def write_model(repository, name, config, version="1"):
    (repository / name / version).mkdir(parents=True, exist_ok=True)
    (repository / name / "config.pbtxt").write_text(config)


@contextlib.contextmanager
def serving(repository, *options, cache=None, devices="emulated:1"):
    """A server with an emulated device, for a while."""
    server = conftest.start(repository, "--devices", devices, *options, cache=cache)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def client(server, protocol):
    """Triton's client for the protocol."""
    if protocol == "http":
        return tritonclient.http.InferenceServerClient(server.http, network_timeout=120, connection_timeout=120)
    return tritonclient.grpc.InferenceServerClient(server.grpc)


def index(server, protocol="http", ready=None):
    """The index as {(name, version): (state, reason)}; `ready` asks for those alone."""
    with client(server, protocol) as asked:
        if protocol == "grpc":
            answer = asked.get_model_repository_index(as_json=True).get("models", [])
        else:
            answer = asked.get_model_repository_index()
    if ready is not None:
        request = urllib.request.Request(
            f"http://{server.http}/v2/repository/index", json.dumps({"ready": ready}).encode()
        )
        answer = json.load(urllib.request.urlopen(request, timeout=30))
    return {(m["name"], m.get("version", "")): (m.get("state"), m.get("reason", "")) for m in answer}


def infer(server, model, parameters=None):
    body = {"inputs": [{"name": "input", "shape": [1, 10], "datatype": "FP32", "data": [0.5] * 10}]}
    body["parameters"] = parameters or {}
    request = urllib.request.Request(f"http://{server.http}/v2/models/{model}/infer", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.fixture(scope="module")
def configured(tmp_path_factory):
    """A server with one model for each of the configurations above."""
    repository = tmp_path_factory.mktemp("configured")
    for name, text in (CONFIGS | BAD_CONFIGS).items():
        write_model(repository, name, text)
    with serving(repository) as server:
        yield server


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_is_read_as_pythons_protobuf_reads_it(configured, name):
    written = text_format.Parse(CONFIGS[name], model_config_pb2.ModelConfig())
    with client(configured, "grpc") as asked:
        shown = asked.get_model_config(name).config
    for field, value in written.ListFields():
        assert getattr(shown, field.name) == value, field.name
    # The same over HTTP, in the form that Triton's JSON has.
    with client(configured, "http") as asked:
        as_json = asked.get_model_config(name)
    assert json_format.ParseDict(as_json, model_config_pb2.ModelConfig()) == shown
    assert as_json["max_batch_size"] == shown.max_batch_size, "numbers are numbers"


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_what_pythons_protobuf_refuses_is_refused_with_its_place(configured, name):
    with pytest.raises(text_format.ParseError):
        text_format.Parse(BAD_CONFIGS[name], model_config_pb2.ModelConfig())
    state, reason = index(configured)[name, ""]
    assert state == "UNAVAILABLE" and f"{name}/config.pbtxt:1:" in reason, reason


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_what_was_left_out_is_filled_in(configured, protocol):
    with client(configured, protocol) as asked:
        config = asked.get_model_config("plain") if protocol == "http" else asked.get_model_config("plain", as_json=True)["config"]
        assert config["name"] == "plain" and config["platform"] == "emulated"
        assert [tensor["name"] for tensor in config["input"]] == ["input"]
        assert [int(dim) for dim in config["input"][0]["dims"]] == [10]
        assert config["output"][0]["data_type"] == "TYPE_FP32"
        assert config["version_policy"]["latest"]["num_versions"] == 1
        assert config["instance_group"][0]["kind"] == "KIND_CPU" and "dynamic_batching" in config
        with pytest.raises(InferenceServerException, match="no model 'nowhere'|no model \"nowhere\""):
            asked.get_model_config("nowhere")
        with pytest.raises(InferenceServerException, match="can't be served"):
            asked.get_model_config("no_colon")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_index_names_every_model_and_its_state(configured, protocol):
    found = index(configured, protocol)
    assert found["plain", "1"] == ("READY", "")
    assert found["no_such_choice", ""][0] == "UNAVAILABLE" and "KIND_ABACUS" in found["no_such_choice", ""][1]
    ready = index(configured, ready=True)
    assert {state for state, _ in ready.values()} == {"READY"} and ("plain", "1") in ready
    models = json.load(urllib.request.urlopen(f"http://{configured.http}/v2/models", timeout=30))["models"]
    assert sorted(models) == sorted(CONFIGS)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_models_are_loaded_and_unloaded(tmp_path, protocol):
    write_model(tmp_path, "net", CONFIGS["plain"].replace('"plain"', '"net"'))
    with serving(tmp_path) as server, client(server, protocol) as asked:
        asked.unload_model("net")
        assert index(server, protocol)["net", "1"] == ("UNAVAILABLE", "unloaded")
        assert not asked.is_model_ready("net")
        status, answer = infer(server, "net")
        assert (status, answer["reason"]) == (404, "model_unavailable") and "load it" in answer["error"]
        asked.unload_model("net", unload_dependents=True)

        # It stays unloaded, whatever happens to its files, until it is loaded again.
        write_model(tmp_path, "net", LATENCY)
        write_model(tmp_path, "other", LATENCY)
        server.until("a new model is served", lambda: infer(server, "other")[0] == 200)
        assert infer(server, "net")[0] == 404
        asked.load_model("net")
        assert infer(server, "net")[0] == 200
        asked.load_model("net")
        # And from then on changes count again.
        write_model(tmp_path, "net", "max_batch_size: 1 " + LATENCY)
        server.until("the change is seen", lambda: asked_config(server, "net")["max_batch_size"] == 1)

        with pytest.raises(InferenceServerException, match="no model"):
            asked.load_model("nowhere")
        with pytest.raises(InferenceServerException, match="there is no"):
            asked.load_model("../net")
        with pytest.raises(InferenceServerException, match="no model"):
            asked.unload_model("nowhere")
        write_model(tmp_path, "broken", "max_batch_size: many")
        with pytest.raises(InferenceServerException, match="max_batch_size"):
            asked.load_model("broken")
        assert asked.is_server_ready() and infer(server, "net")[0] == 200


def asked_config(server, name):
    with client(server, "http") as asked:
        return asked.get_model_config(name)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_load_may_bring_a_configuration(tmp_path, protocol):
    write_model(tmp_path, "net", "max_batch_size: 8 " + LATENCY)
    latency = {"emulated_latency": {"string_value": "alpha_ms=1,beta_ms=1"}}
    with serving(tmp_path) as server, client(server, protocol) as asked:
        given = {"max_batch_size": 2, "parameters": latency, "input": [{"name": "input", "data_type": "TYPE_FP32", "dims": ["10"]}]}
        asked.load_model("net", config=json.dumps(given))
        assert asked_config(server, "net")["max_batch_size"] == 2
        for bad, said in [
            ("{", "isn't JSON"),
            ("[]", "JSON object"),
            ('{"max_batch_size": -1}', "max_batch_size is -1"),
            ('{"input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}], "parameters": ' + json.dumps(latency) + "}", '"x" isn\'t in the model'),
            ('{"backend": "python"}', "python"),
        ]:
            with pytest.raises(InferenceServerException, match=said):
                asked.load_model("net", config=bad)
        assert asked_config(server, "net")["max_batch_size"] == 2, "what is served stays"
        asked.load_model("net")
        assert asked_config(server, "net")["max_batch_size"] == 8


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_load_may_bring_the_model_itself(server, protocol):
    """With ONNX Runtime, and with a shape of the client's own."""
    content = (conftest.ROOT / ".cache" / "test-models" / "identity_fp32" / "1" / "model.onnx").read_bytes()
    name = f"uploaded_{protocol}"
    with client(server, protocol) as asked:
        plain = asked_config(server, "identity_fp32")
        dims = [int(dim) for dim in plain["input"][0]["dims"]]
        config = {
            "max_batch_size": 4,
            "input": [{"name": plain["input"][0]["name"], "data_type": "TYPE_FP32", "dims": [1, 6], "reshape": {"shape": [6]}}],
            "output": [{"name": plain["output"][0]["name"], "data_type": "TYPE_FP32", "dims": [6], "label_filename": "labels.txt"}],
        }
        assert dims == [-1], "the model has one dimension behind the batch"
        asked.load_model(name, config=json.dumps(config), files={"file:1/model.onnx": content, "file:labels.txt": b"a\nb\nc\nd\ne\nf\n"})
        assert index(server, protocol)[name, "1"] == ("READY", "")
        module = tritonclient.http if protocol == "http" else tritonclient.grpc
        tensor = module.InferInput(plain["input"][0]["name"], [2, 1, 6], "FP32")
        data = numpy.arange(12, dtype=numpy.float32).reshape(2, 1, 6)
        tensor.set_data_from_numpy(data)
        output = asked.infer(name, [tensor]).as_numpy(plain["output"][0]["name"])
        assert (output.flatten() == data.flatten()).all()
        wanted = module.InferRequestedOutput(plain["output"][0]["name"], class_count=2)
        classes = asked.infer(name, [tensor], outputs=[wanted]).as_numpy(plain["output"][0]["name"])
        assert [text.decode().split(":")[1:] for text in classes.flatten()] == [["5", "f"], ["4", "e"]] * 2
        with pytest.raises(InferenceServerException, match="shape"):
            wrong = module.InferInput(plain["input"][0]["name"], [2, 6], "FP32")
            wrong.set_data_from_numpy(data.reshape(2, 6))
            asked.infer(name, [wrong])
        for files, said in [
            ({"file:../model.onnx": content}, "isn't in the model's folder"),
            ({"file:1/model.onnx": b"not a model"}, "could not be loaded"),
            ({"file:2/other.onnx": content}, "2/model.onnx is missing"),
        ]:
            with pytest.raises(InferenceServerException, match=said):
                asked.load_model(f"{name}_bad", config="{}", files=files)
        asked.unload_model(name)
        assert (name, "1") not in index(server, protocol), "what a client brought is gone with it"


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_other_modes_take_no_orders(tmp_path, mode):
    write_model(tmp_path, "net", LATENCY)
    with serving(tmp_path, "--model-control-mode", mode) as server:
        for protocol in ["http", "grpc"]:
            with client(server, protocol) as asked:
                for order in [asked.load_model, asked.unload_model]:
                    with pytest.raises(InferenceServerException, match=f"--model-control-mode {mode}"):
                        order("net")
        write_model(tmp_path, "later", LATENCY)
        if mode == "poll":
            server.until("the new model is served", lambda: infer(server, "later")[0] == 200)
        assert infer(server, "net")[0] == 200


def test_explicit_mode_serves_what_it_is_told(tmp_path):
    for name in ["first", "second"]:
        write_model(tmp_path, name, LATENCY)
    options = ["--model-control-mode", "explicit", "--load-model", "first", "--load-model", "nowhere"]
    with serving(tmp_path, *options) as server, client(server, "grpc") as asked:
        found = index(server)
        assert found["first", "1"][0] == "READY" and found["second", "1"] == ("UNAVAILABLE", "not loaded")
        assert "--load-model" in found["nowhere", ""][1]
        write_model(tmp_path, "third", LATENCY)
        server.until("it is listed", lambda: ("third", "1") in index(server))
        assert infer(server, "third")[0] == 404
        asked.load_model("third")
        assert infer(server, "third")[0] == 200
        asked.unload_model("first")
        assert infer(server, "first")[0] == 404


def test_a_version_that_came_up_beside_a_broken_one_is_not_forgotten(tmp_path):
    """It served on, and was listed as not loaded once a file changed: nobody could withdraw it any more."""
    content = (conftest.ROOT / ".cache" / "test-models" / "identity_fp32" / "1" / "model.onnx").read_bytes()
    for version, file in [("1", content), ("2", b"not a model")]:
        (tmp_path / "net" / version).mkdir(parents=True)
        (tmp_path / "net" / version / "model.onnx").write_bytes(file)
    config = tmp_path / "net" / "config.pbtxt"
    config.write_text("version_policy { all {} }")
    with serving(tmp_path, "--model-control-mode", "explicit", devices="cpu:1") as server, client(server, "http") as asked:
        with pytest.raises(InferenceServerException, match="could not be loaded"):
            asked.load_model("net")
        assert index(server)["net", "1"] == ("READY", "")
        config.write_text("version_policy { all {} } # changed")
        write_model(tmp_path, "later", LATENCY)
        server.until("changes are seen", lambda: ("later", "1") in index(server))
        assert index(server)["net", "1"] == ("READY", "")
        asked.unload_model("net")
        assert index(server)["net", "1"] == ("UNAVAILABLE", "unloaded")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model-control-mode", "sometimes"], "auto, both, none, poll or explicit"),
        (["--load-model", "x"], "--model-control-mode explicit"),
        (["--model-repository", "ftp://x/y"], "ftp:// isn't known"),
        (["--model-repository", "s3://"], "s3://bucket/folder"),
    ],
)
def test_bad_options_are_sentences(options, said, tmp_path):
    command = [conftest.binary(), "serve", "--devices", "emulated:1", "--model-repository", str(tmp_path), *options]
    command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and said in done.stderr and "panicked" not in done.stderr, done.stderr


def test_models_are_warmed_up_before_they_are_ready(tmp_path):
    def warmup(data, dims="[ 10 ]", name="input"):
        value = f"data_type: TYPE_FP32 dims: {dims} {data}"
        return f'{LATENCY} model_warmup {{ name: "sample" batch_size: 2 inputs {{ key: "{name}" value {{ {value} }} }} }}'

    for name, config in {
        "zero": warmup("zero_data: true"),
        "random": warmup("random_data: true"),
        "file": warmup('input_data_file: "rows"'),
        "short": warmup('input_data_file: "rows"'),
        "missing": warmup('input_data_file: "nowhere"'),
        "shape": warmup("zero_data: true", dims="[ 11 ]"),
        "other": warmup("zero_data: true", name="nothing"),
        "escape": warmup('input_data_file: "../../x"'),
    }.items():
        write_model(tmp_path, name, config)
        (tmp_path / name / "warmup").mkdir()
        (tmp_path / name / "warmup" / "rows").write_bytes(bytes(79 if name == "short" else 80))
    with serving(tmp_path) as server:
        found = {name: (state, reason) for (name, _), (state, reason) in index(server).items()}
        assert [found[name][0] for name in ["zero", "random", "file"]] == ["READY"] * 3, found
        for name, said in {
            "short": "has 79 bytes, but the tensor takes 80",
            "missing": "nowhere can't be read",
            "shape": "[2, 11]",
            "other": 'no input "nothing"',
            "escape": "in the model's folder",
        }.items():
            assert found[name][0] == "UNAVAILABLE" and said in found[name][1], found[name]


def test_what_means_nothing_is_named_once_with_the_reason(tmp_path):
    config = LATENCY + "\ndynamic_batching { max_queue_delay_microseconds: 100 }\nfrobnicate: 1"
    write_model(tmp_path, "net", config)
    write_model(tmp_path, "net", config, version="2")
    log = (tmp_path / "log").open("w+b")
    server = conftest.start(tmp_path, "--devices", "emulated:1", "--log-format", "json", stderr=log)
    with client(server, "http") as asked:
        asked.unload_model("net")
        asked.load_model("net")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=60) == 0
    log.seek(0)
    lines = log.read().decode()
    assert lines.count("max_queue_delay_microseconds is ignored: not needed, batches are planned from deadlines") == 1
    assert lines.count("field `frobnicate` isn't known") == 1


def test_a_models_own_bounds_on_waiting(tmp_path):
    slow = 'parameters { key: "emulated_latency" value { string_value: "alpha_ms=1,beta_ms=100000" } }'
    bound = "max_batch_size: 1 dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
    patience = "dynamic_batching { default_queue_policy { default_timeout_microseconds: 1000000 } }"
    write_model(tmp_path, "bounded", f"{slow} {bound}")
    write_model(tmp_path, "hurried", f"{LATENCY} {patience}")
    with serving(tmp_path) as server:
        assert infer(server, "hurried")[0] == 200
        flight = "punctual_requests_in_flight"
        patient = {"timeout": 600_000_000}
        for expected in [1, 2]:
            arguments = [infer, server, "bounded", patient]
            threading.Thread(target=conftest.ignoring_the_end, args=arguments, daemon=True).start()
            server.until(f"{expected} in flight", lambda: server.metric(flight) == expected)
        started = 'punctual_queue_seconds_count{model="bounded",version="1"}'
        server.until("the device is busy", lambda: server.metric(started) == 1)
        status, answer = infer(server, "bounded", patient)
        assert (status, answer["reason"]) == (503, "queue_full") and "max_queue_size" in answer["error"]
        # The device is taken for a hundred seconds: who may only wait for one is told so at once.
        status, answer = infer(server, "hurried")
        assert (status, answer["reason"]) == (503, "overloaded")
