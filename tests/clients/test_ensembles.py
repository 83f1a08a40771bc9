"""Triton's ensembles with Triton's own clients, unchanged: real models, both protocols."""

import contextlib
import json
import queue
import subprocess
import urllib.error
import urllib.request

import numpy
import onnx
import pytest
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

import conftest

PROTOCOLS = ["http", "grpc"]

# As in Triton's documentation: a step that prepares pictures, one that classifies them, tensors by name between them.
ENSEMBLE = """
name: "ensemble"
platform: "ensemble"
max_batch_size: 4
input [ { name: "IMAGE" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [
  { name: "CLASSIFICATION" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" },
  { name: "PREPARED" data_type: TYPE_FP32 dims: [ 4 ] }
]
ensemble_scheduling {
  step [
    {
      model_name: "preprocess"
      model_version: -1
      input_map { key: "RAW" value: "IMAGE" }
      output_map { key: "PIXELS" value: "PREPARED" }
    },
    {
      model_name: "classify"
      model_version: -1
      input_map { key: "FORMATTED" value: "PREPARED" }
      output_map { key: "SCORES" value: "CLASSIFICATION" }
    }
  ]
}
"""

WEIGHTS = numpy.arange(12, dtype=numpy.float32).reshape(4, 3)


def write_onnx(folder, name, graph):
    """A model of the repository; the last folder, so that nobody sees half of it."""
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = folder / f".{name}" / "1"
    path.mkdir(parents=True)
    onnx.save(model, path / "model.onnx")
    (folder / f".{name}" / "config.pbtxt").write_text("max_batch_size: 8")
    (folder / f".{name}").rename(folder / name)


def rows(name, width):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])


def write_preprocess(folder):
    """Doubles everything."""
    two = helper.make_tensor("two", TensorProto.FLOAT, [1], [2.0])
    node = helper.make_node("Mul", ["RAW", "two"], ["PIXELS"])
    write_onnx(folder, "preprocess", helper.make_graph([node], "g", [rows("RAW", 4)], [rows("PIXELS", 4)], [two]))


def write_classify(folder):
    weights = helper.make_tensor("weights", TensorProto.FLOAT, [4, 3], WEIGHTS.flatten())
    node = helper.make_node("MatMul", ["FORMATTED", "weights"], ["SCORES"])
    write_onnx(folder, "classify", helper.make_graph([node], "g", [rows("FORMATTED", 4)], [rows("SCORES", 3)], [weights]))


def write_ensemble(folder, text=ENSEMBLE):
    # With the empty folder that Triton asks for.
    (folder / "ensemble" / "1").mkdir(parents=True, exist_ok=True)
    (folder / "ensemble" / "labels.txt").write_text("cat\ndog\nbird\n")
    (folder / "ensemble" / "config.pbtxt").write_text(text)


@contextlib.contextmanager
def serving(folder, *options):
    server = conftest.start(folder, *options)
    try:
        yield server
    finally:
        conftest.stop(server)


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ensemble")
    write_preprocess(folder)
    write_classify(folder)
    write_ensemble(folder)
    with serving(folder) as server:
        yield server


def connect(server, protocol):
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[protocol]
    return module, module.InferenceServerClient(getattr(server, protocol))


def images(module, count=2):
    array = numpy.arange(count * 4, dtype=numpy.float32).reshape(count, 4)
    tensor = module.InferInput("IMAGE", array.shape, "FP32")
    tensor.set_data_from_numpy(array)
    return array, [tensor]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_ensemble_is_asked_like_a_model(ensemble, protocol):
    module, client = connect(ensemble, protocol)
    with client:
        array, inputs = images(module)
        answer = client.infer("ensemble", inputs, request_id="seven")
        numpy.testing.assert_array_equal(answer.as_numpy("PREPARED"), array * 2)
        numpy.testing.assert_allclose(answer.as_numpy("CLASSIFICATION"), array * 2 @ WEIGHTS, rtol=1e-5)
        response = answer.get_response()
        assert (response["id"] if protocol == "http" else response.id) == "seven"
        # One output alone, by version, and classes with their labels.
        wanted = [module.InferRequestedOutput("CLASSIFICATION", class_count=1)]
        answer = client.infer("ensemble", inputs, model_version="1", outputs=wanted)
        assert [text.decode().split(":")[2] for text in answer.as_numpy("CLASSIFICATION").flatten()] == ["bird", "bird"]
        assert answer.as_numpy("PREPARED") is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_ensemble_is_described_like_a_model(ensemble, protocol):
    module, client = connect(ensemble, protocol)
    options = {"as_json": True} if protocol == "grpc" else {}
    with client:
        assert client.is_model_ready("ensemble") and client.is_model_ready("ensemble", "1")
        metadata = client.get_model_metadata("ensemble", **options)
        assert (metadata["platform"], metadata["versions"]) == ("ensemble", ["1"])
        assert [(tensor["name"], [int(dim) for dim in tensor["shape"]]) for tensor in metadata["outputs"]] == [
            ("CLASSIFICATION", [-1, 3]),
            ("PREPARED", [-1, 4]),
        ]
        config = client.get_model_config("ensemble", **options)
        config = config["config"] if protocol == "grpc" else config
        steps = config["ensemble_scheduling"]["step"]
        assert [step["model_name"] for step in steps] == ["preprocess", "classify"]
        assert steps[1]["input_map"] == {"FORMATTED": "PREPARED"} and config["max_batch_size"] == 4
        index = client.get_model_repository_index(**options)
        index = index["models"] if protocol == "grpc" else index
        assert {model["name"]: model["state"] for model in index} == {
            name: "READY" for name in ["ensemble", "preprocess", "classify"]
        }


def counts(client, protocol, model):
    options = {"as_json": True} if protocol == "grpc" else {}
    (entry,) = client.get_inference_statistics(model, **options)["model_stats"]
    stats = entry["inference_stats"]
    return {name: int(stats.get(name, {}).get("count", 0)) for name in ["success", "fail", "queue", "compute_infer"]}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_ensemble_and_its_models_are_counted(ensemble, protocol):
    module, client = connect(ensemble, protocol)
    with client:
        names = ["ensemble", "preprocess", "classify"]
        before = {name: counts(client, protocol, name) for name in names}
        client.infer("ensemble", images(module)[1])
        with pytest.raises(InferenceServerException):
            client.infer("ensemble", images(module, 5)[1])
        after = {name: counts(client, protocol, name) for name in names}
        grown = {name: {key: after[name][key] - before[name][key] for key in after[name]} for name in names}
        (entry,) = client.get_inference_statistics("ensemble", **({"as_json": True} if protocol == "grpc" else {}))["model_stats"]
        assert int(entry["inference_count"]) >= 2 and int(entry["last_inference"]) > 0
        assert grown["ensemble"] == {"success": 1, "fail": 1, "queue": 0, "compute_infer": 0}
        for name in ["preprocess", "classify"]:
            assert grown[name] == {"success": 1, "fail": 0, "queue": 1, "compute_infer": 1}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_does_not_fit_is_told(ensemble, protocol):
    module, client = connect(ensemble, protocol)
    with client:
        with pytest.raises(InferenceServerException, match="has 5 rows, but the model takes 1 to 4"):
            client.infer("ensemble", images(module, 5)[1])
        wrong = module.InferInput("RAW", [1, 4], "FP32")
        wrong.set_data_from_numpy(numpy.zeros((1, 4), numpy.float32))
        with pytest.raises(InferenceServerException, match="no input .*RAW.* it takes .*IMAGE"):
            client.infer("ensemble", [wrong])
        with pytest.raises(InferenceServerException, match="no output .*SCORES"):
            client.infer("ensemble", images(module)[1], outputs=[module.InferRequestedOutput("SCORES")])
        # A microsecond is not enough for anything.
        with pytest.raises(InferenceServerException, match="deadline"):
            client.infer("ensemble", images(module)[1], timeout=1)
        client.infer("ensemble", images(module)[1], timeout=20_000_000)


def test_an_ensemble_is_asked_in_a_stream(ensemble):
    client = tritonclient.grpc.InferenceServerClient(ensemble.grpc)
    answers = queue.Queue()
    with client:
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        array, inputs = images(tritonclient.grpc)
        for number in range(3):
            client.async_stream_infer("ensemble", inputs, request_id=str(number))
        ids = set()
        for _ in range(3):
            result, error = answers.get(timeout=30)
            assert error is None
            ids.add(result.get_response().id)
            numpy.testing.assert_array_equal(result.as_numpy("PREPARED"), array * 2)
        assert ids == {"0", "1", "2"}
        client.stop_stream()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_trace_of_an_ensemble_has_what_was_asked_of_its_models(tmp_path, protocol):
    models = tmp_path / "models"
    models.mkdir()
    write_preprocess(models)
    write_classify(models)
    write_ensemble(models)
    file = tmp_path / "trace"
    with serving(models, "--trace-file", str(file)) as server:
        module, client = connect(server, protocol)
        with client:
            client.update_trace_settings("ensemble", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "1"})
            for name in ["traced", "one too many"]:
                client.infer("ensemble", images(module)[1], request_id=name)
    entries = json.loads(file.read_text())
    about = [entry for entry in entries if "model_name" in entry]
    (whole,) = [entry for entry in about if entry["model_name"] == "ensemble"]
    assert whole["request_id"] == "traced" and "parent_id" not in whole
    parts = [entry for entry in about if entry is not whole]
    assert [(part["model_name"], part["model_version"], part["parent_id"]) for part in parts] == [
        ("preprocess", 1, whole["id"]),
        ("classify", 1, whole["id"]),
    ]

    def instants(entry):
        (found,) = [other["timestamps"] for other in entries if other["id"] == entry["id"] and "timestamps" in other]
        return {step["name"]: step["ns"] for step in found}

    first, second = map(instants, parts)
    assert instants(whole)["REQUEST_START"] <= first["REQUEST_START"] <= first["COMPUTE_END"] <= first["REQUEST_END"]
    assert first["REQUEST_END"] <= second["REQUEST_START"] <= second["COMPUTE_START"] <= second["REQUEST_END"]
    assert second["REQUEST_END"] <= instants(whole)["REQUEST_END"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_ensemble_keeps_its_answers_where_it_says_so(tmp_path, protocol):
    write_preprocess(tmp_path)
    write_classify(tmp_path)
    write_ensemble(tmp_path, ENSEMBLE + "response_cache { enable: true }")
    with serving(tmp_path, "--cache-config", "local,size=1048576") as server:
        module, client = connect(server, protocol)
        with client:
            array, inputs = images(module)
            for _ in range(3):
                answer = client.infer("ensemble", inputs)
                numpy.testing.assert_array_equal(answer.as_numpy("PREPARED"), array * 2)
            assert server.metric('nv_cache_num_hits_per_model{model="ensemble",version="1"}') == 2
            assert counts(client, protocol, "classify")["success"] == 1
            assert counts(client, protocol, "ensemble")["success"] == 3


def state(server, name):
    with tritonclient.http.InferenceServerClient(server.http) as client:
        (found,) = [model for model in client.get_model_repository_index() if model["name"] == name]
        return found["state"], found.get("reason", "")


def test_an_ensemble_follows_its_models_and_its_file(tmp_path):
    write_preprocess(tmp_path)
    write_ensemble(tmp_path)
    with serving(tmp_path) as server, tritonclient.http.InferenceServerClient(server.http) as client:
        assert state(server, "ensemble")[0] == "UNAVAILABLE"
        assert 'it asks the model "classify", which isn\'t there' in state(server, "ensemble")[1]
        with pytest.raises(InferenceServerException, match="classify"):
            client.infer("ensemble", images(tritonclient.http)[1])
        write_classify(tmp_path)
        server.until("it is ready", lambda: client.is_model_ready("ensemble"))
        client.infer("ensemble", images(tritonclient.http)[1])
        # A type that doesn't fit is told, and what was there stays.
        write_ensemble(tmp_path, ENSEMBLE.replace('"PREPARED" data_type: TYPE_FP32', '"PREPARED" data_type: TYPE_INT64'))
        with pytest.raises(InferenceServerException, match="configured as INT64, but its stage makes FP32"):
            client.load_model("ensemble")
        client.infer("ensemble", images(tritonclient.http)[1])
        # A change counts: classes of what was doubled once more.
        twice = ENSEMBLE.replace('value: "IMAGE"', 'value: "TWICE"').replace(
            "step [",
            'step [ { model_name: "preprocess" model_version: 1 input_map { key: "RAW" value: "IMAGE" } '
            'output_map { key: "PIXELS" value: "TWICE" } },',
        )
        write_ensemble(tmp_path, twice)

        def prepared():
            array, inputs = images(tritonclient.http)
            return (client.infer("ensemble", inputs).as_numpy("PREPARED") == array * 4).all()

        server.until("it is doubled twice", prepared)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_models_are_loaded_and_unloaded_with_their_ensemble(tmp_path, protocol):
    write_preprocess(tmp_path)
    write_classify(tmp_path)
    write_ensemble(tmp_path)
    options = ["--model-control-mode", "explicit"]
    with serving(tmp_path, *options) as server:
        module, client = connect(server, protocol)
        with client:
            assert not client.is_model_ready("preprocess")
            client.load_model("ensemble")
            assert client.is_model_ready("preprocess") and client.is_model_ready("ensemble")
            client.infer("ensemble", images(module)[1])
            client.unload_model("classify")
            assert not client.is_model_ready("ensemble")
            client.load_model("ensemble")
            client.unload_model("ensemble", unload_dependents=True)
            assert not client.is_model_ready("preprocess") and not client.is_model_ready("classify")
    with serving(tmp_path, *options, "--load-model", "ensemble") as server:
        module, client = connect(server, protocol)
        with client:
            client.infer("ensemble", images(module)[1])


def test_a_key_for_the_ensemble_is_none_for_its_models(tmp_path):
    models = tmp_path / "models"
    models.mkdir()
    write_preprocess(models)
    write_classify(models)
    write_ensemble(models)
    made = subprocess.run(
        [conftest.binary(), "key", "web", "infer=ensemble"], capture_output=True, text=True, check=True
    )
    (tmp_path / "keys").write_text(made.stdout)
    key = made.stderr.split()[-1]
    with serving(models, "--api-keys", str(tmp_path / "keys")) as server:
        with tritonclient.http.InferenceServerClient(server.http) as client:
            headers = {"authorization": f"Bearer {key}"}
            client.infer("ensemble", images(tritonclient.http)[1], headers=headers)
            tensor = tritonclient.http.InferInput("RAW", [1, 4], "FP32")
            tensor.set_data_from_numpy(numpy.zeros((1, 4), numpy.float32))
            with pytest.raises(InferenceServerException, match="preprocess"):
                client.infer("preprocess", [tensor], headers=headers)


def test_generate_is_not_there(ensemble):
    request = urllib.request.Request(f"http://{ensemble.http}/v2/models/ensemble/generate", json.dumps({}).encode())
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=30)
    assert refused.value.code == 404
