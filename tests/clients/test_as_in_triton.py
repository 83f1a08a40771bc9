"""Configurations and requests that Triton takes, with Triton's own clients."""

import contextlib
import json
import threading
import uuid

import numpy as np
import onnx
import pytest
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

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
def loaded(client, config, model=None):
    """A model that the client brings, for a while: its name. Without a model's bytes it is `mlp`."""
    name = f"brought_{uuid.uuid4().hex}"
    client.load_model(name, config=json.dumps(config), files={"file:1/model.onnx": model or MLP.read_bytes()})
    try:
        yield name
    finally:
        client.unload_model(name)


def onnx_model(nodes, inputs, outputs, initializers=(), ir_version=8):
    """A file's bytes; inputs and outputs are names with their shapes, all of FP32."""
    values = [[onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in side.items()] for side in (inputs, outputs)]
    tensors = [onnx.numpy_helper.from_array(np.float32(value), name) for name, value in dict(initializers).items()]
    graph = onnx.helper.make_graph(nodes, "graph", *values, tensors)
    opsets = [onnx.helper.make_opsetid("", 8 if ir_version < 4 else 17)]
    return onnx.helper.make_model(graph, ir_version=ir_version, opset_imports=opsets).SerializeToString()


def test_a_preferred_batch_size_does_not_lower_the_largest(client):
    with loaded(client, {"max_batch_size": 12, "dynamic_batching": {"preferred_batch_size": [2]}}) as name:
        data = rows(11)
        answer = client.infer(name, [client.input("input", data)]).as_numpy("output")
        alone = client.infer("mlp", [client.input("input", data[-1:])]).as_numpy("output")
    assert answer.shape == (11, 10)
    np.testing.assert_allclose(answer[-1:], alone, rtol=1e-5, atol=1e-5)


def test_a_load_serves_the_versions_that_are_there_of_those_that_the_policy_names(client):
    with loaded(client, {"version_policy": {"specific": {"versions": [1, 7]}}}) as name:
        assert client.is_model_ready(name) and client.is_model_ready(name, "1") and not client.is_model_ready(name, "7")
        assert client.infer(name, [client.input("input", rows(1))]).as_numpy("output").shape == (1, 10)
    with pytest.raises(InferenceServerException, match="version_policy names version 7, but there is no .*7/model.onnx"):
        with loaded(client, {"version_policy": {"specific": {"versions": [7]}}}):
            pass


def test_sizes_and_levels_are_as_large_as_in_triton(client):
    warmup = {"name": "w", "batch_size": 2, "inputs": {"input": {"data_type": "TYPE_FP32", "dims": [10], "zero_data": False}}}
    batching = {"priority_levels": 70000, "default_priority_level": 70000}
    config = {"max_batch_size": 10000, "dynamic_batching": batching, "model_warmup": [warmup]}
    with loaded(client, config) as name:
        data = rows(9999)
        answer = client.infer(name, [client.input("input", data)], priority=69999).as_numpy("output")
        alone = client.infer("mlp", [client.input("input", data[-1:])]).as_numpy("output")
    np.testing.assert_allclose(answer[-1:], alone, rtol=1e-4, atol=1e-5)


def test_flags_are_taken_by_tritons_names(tmp_path):
    (tmp_path / "mlp").symlink_to(MLP.parents[1])
    server = conftest.start(tmp_path, "--http-max-input-size", "4096", "--allow-client-shm=true")
    try:
        for protocol in PROTOCOLS:
            client = Client(server, protocol)
            assert client.infer("mlp", [client.input("input", rows(1))]).as_numpy("output").shape == (1, 10)
            with pytest.raises(InferenceServerException, match="larger than 4096 bytes"):
                client.infer("mlp", [client.input("input", rows(200))])
            with pytest.raises(InferenceServerException, match="can't be opened"):
                client.register_system_shared_memory("a", "/punctual-test-not-there", 1)
            client.close()
    finally:
        conftest.stop(server)


def test_unregistering_shared_memory_waits_for_the_requests_that_use_it(tmp_path):
    """The device only pretends, and takes a while: its outputs are zeros."""
    (tmp_path / "slow" / "1").mkdir(parents=True)
    latency = 'parameters { key: "emulated_latency" value { string_value: "alpha_ms=1,beta_ms=500" } }'
    (tmp_path / "slow" / "config.pbtxt").write_text(f"max_batch_size: 1 {latency}")
    server = conftest.start(tmp_path, "--devices", "emulated:1", "--allow-client-shm")
    region = shm.create_shared_memory_region("region", f"/punctual-test-{uuid.uuid4().hex}", 40)
    try:
        for protocol in PROTOCOLS:
            shm.set_shared_memory_region(region, [np.full(10, 7, np.float32)])
            lets_go = Client(server, protocol)
            lets_go.register_system_shared_memory("both", region._shm_key, 40)
            answers = []

            def infer(in_memory):
                # A client belongs to its thread.
                client = Client(server, protocol)
                tensor, output = client.input("input", rows(1)), client.output("output")
                if in_memory:
                    tensor.set_shared_memory("both", 40)
                    output.set_shared_memory("both", 40)
                answers.append(client.infer("slow", [tensor], outputs=[output]))
                client.close()

            def waiting():
                pending = server.metric('nv_inference_pending_request_count{model="slow",version="1"}')
                return pending, server.metric("punctual_requests_in_flight")

            def ask(number, in_memory=False):
                asking = threading.Thread(target=infer, args=[in_memory])
                asking.start()
                server.until(f"{number} requests wait", lambda: waiting() == (number, number + 1) or answers)
                return asking

            # One is computed, and two wait.
            asking = [ask(0), ask(1), ask(2, in_memory=True)]
            lets_go.unregister_system_shared_memory("both")
            # Nobody writes there any more: what was to be written is there.
            assert shm.get_contents_as_numpy(region, np.float32, [10]).tolist() == [0] * 10
            [thread.join() for thread in asking]
            assert len(answers) == 3
            status = lets_go.get_system_shared_memory_status()
            assert not (status if protocol == "http" else status.regions)
            lets_go.close()
    finally:
        shm.destroy_shared_memory_region(region)
        conftest.stop(server)


@pytest.mark.parametrize(
    ("dims", "shape", "answered"),
    [
        (None, [], []),
        (None, [1], []),
        ({"dims": [1]}, [1], [1]),
        ({"dims": [1, 1]}, [1, 1], [1, 1]),
        ({"dims": [1], "reshape": {"shape": []}}, [1], [1]),
    ],
)
def test_scalars_come_as_one_element(client, dims, shape, answered):
    twice = onnx_model([onnx.helper.make_node("Add", ["x", "x"], ["y"])], {"x": []}, {"y": []})
    config = {"max_batch_size": 0}
    if dims:
        config |= {side: [{"name": name, "data_type": "TYPE_FP32", **dims}] for side, name in [("input", "x"), ("output", "y")]}
    with loaded(client, config, twice) as name:
        answer = client.infer(name, [client.input("x", np.full(shape, 21, np.float32))]).as_numpy("y")
        assert (list(answer.shape), answer.item()) == (answered, 42)
        with pytest.raises(InferenceServerException, match="but the model takes"):
            client.infer(name, [client.input("x", np.zeros([2], np.float32))])


@pytest.mark.parametrize(("ir_version", "width"), [(3, 2), (3, 1000), (8, 2), (8, 1000)])
def test_initializers_that_are_inputs_may_be_left_out(client, ir_version, width):
    """Those that the configuration lists may also be given."""
    nodes = [onnx.helper.make_node("Mul", ["x", "scale"], ["scaled"]), onnx.helper.make_node("Add", ["scaled", "bias"], ["y"])]
    shapes, values = dict.fromkeys(["x", "scale", "bias"], [width]), {"scale": [2] * width, "bias": [10] * width}
    model = onnx_model(nodes, shapes, {"y": [width]}, values, ir_version)
    x, scale = client.input("x", np.ones(width, np.float32)), client.input("scale", np.full(width, 5, np.float32))
    with loaded(client, {"max_batch_size": 0}, model) as name:
        assert client.infer(name, [x]).as_numpy("y").tolist() == [12] * width
        with pytest.raises(InferenceServerException, match='the model has no input "scale": it takes "x"'):
            client.infer(name, [x, scale])
    inputs = [{"name": name, "data_type": "TYPE_FP32", "dims": [width], "optional": name == "scale"} for name in ["x", "scale"]]
    with loaded(client, {"max_batch_size": 0, "input": inputs}, model) as name:
        assert client.infer(name, [x]).as_numpy("y").tolist() == [12] * width
        assert client.infer(name, [scale, x]).as_numpy("y").tolist() == [15] * width
        assert client.infer(name, [x]).as_numpy("y").tolist() == [12] * width, "the next one has the file's"
        with pytest.raises(InferenceServerException, match='input "x" is missing'):
            client.infer(name, [scale])


def test_strings_that_are_parsed_as_numbers(client):
    """As in Triton's quick start, whose `simple_string` adds and subtracts texts."""
    info, cast = onnx.helper.make_tensor_value_info, onnx.helper.make_node
    names = {side: [f"{side}{number}" for number in (0, 1)] for side in ["INPUT", "OUTPUT"]}
    nodes = [cast("Cast", [name], [f"number {name}"], to=onnx.TensorProto.INT32) for name in names["INPUT"]]
    for operator, name in zip(["Add", "Sub"], names["OUTPUT"]):
        nodes.append(onnx.helper.make_node(operator, ["number INPUT0", "number INPUT1"], [f"number {name}"]))
        nodes.append(cast("Cast", [f"number {name}"], [name], to=onnx.TensorProto.STRING))
    sides = [[info(name, onnx.TensorProto.STRING, ["batch", 16]) for name in names[side]] for side in names]
    graph = onnx.helper.make_graph(nodes, "graph", *sides)
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)])
    config = {"max_batch_size": 8}
    for side in names:
        config[side.lower()] = [{"name": name, "data_type": "TYPE_STRING", "dims": [16]} for name in names[side]]

    def texts(numbers):
        return np.array([str(number).encode() for number in numbers.flatten()], object).reshape(numbers.shape)

    a, b = np.arange(-5, 27).reshape(2, 16), np.full((2, 16), 3)
    with loaded(client, config, model.SerializeToString()) as name:

        def ask(first):
            return client.infer(name, [client.input("INPUT0", first, "BYTES"), client.input("INPUT1", texts(b), "BYTES")])

        wrong = texts(a)
        wrong[1, 3] = b"three"
        with pytest.raises(InferenceServerException, match="can't compute these inputs|could not be computed"):
            ask(wrong)
        answer = ask(texts(a))
        assert answer.as_numpy("OUTPUT0").tolist() == texts(a + b).tolist()
        assert answer.as_numpy("OUTPUT1").tolist() == texts(a - b).tolist()
