"""The repository of trained networks: shapes are fixed, and requests are beside it."""

import numpy as np
from figures.gpu import precision
from onnx import TensorProto, helper


def network(dims):
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", [value("x")], [value("y")])
    return helper.make_model(graph).SerializeToString()


def test_a_batch_is_left_out_of_the_shapes_and_others_are_not(tmp_path):
    make = lambda random: {"x": random.random((1, 3, 5)).astype(np.float32)}
    precision.write(tmp_path, "net", network(["batch", 3, "width"]), make)
    text = (tmp_path / "net" / "config.pbtxt").read_text()
    assert "max_batch_size: 8\n" in text and 'input { name: "x" data_type: TYPE_FP32 dims: [3, 5] }' in text
    assert text.count("model_warmup") == precision.REQUESTS
    requests = [(tmp_path / "net" / "warmup" / f"{number}-0").read_bytes() for number in range(precision.REQUESTS)]
    assert all(len(request) == 60 for request in requests) and len(set(requests)) == precision.REQUESTS


def test_what_is_no_batch_has_all_its_dimensions():
    rows = lambda count: {"x": np.zeros((count, 2), np.float32)}
    assert precision.is_batched("net", {"x": [None, 2]}, rows(1))
    assert not precision.is_batched("net", {"x": [None, 2]}, rows(4)), "four rows make one answer"
    assert not precision.is_batched("net", {"x": [1, 2]}, rows(1))
    assert not precision.is_batched("melspectrogram", {"x": [None, 2]}, rows(1))
    assert not precision.is_batched("net", {"x": [None, 2], "rate": []}, rows(1) | {"rate": np.array(16000)})
    text = precision.configuration(["rate"], [{"rate": np.array(16000, np.int64)}], False)
    assert 'max_batch_size: 0\ninput { name: "rate" data_type: TYPE_INT64 dims: [1] }' in text
    text = precision.configuration(["lengths"], [{"lengths": np.array([40])}], True)
    assert 'input { name: "lengths" data_type: TYPE_INT64 dims: [1] reshape { shape: [] } }' in text
