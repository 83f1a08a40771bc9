"""Statistics with Triton's clients, and the metrics under Triton's names: both show the same counters."""

import time

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

PROTOCOLS = ["http", "grpc"]


def connect(server, protocol):
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[protocol]
    return module, module.InferenceServerClient(getattr(server, protocol))


def statistics(client, protocol, model="", version=""):
    """The entries of one call, by name and version, with all numbers as numbers."""
    if protocol == "http":
        entries = client.get_inference_statistics(model, version)["model_stats"]
    else:
        entries = client.get_inference_statistics(model, version, as_json=True).get("model_stats", [])
    return {(entry["name"], entry["version"]): entry for entry in entries}


def number(entry, *path):
    """A number of an entry; gRPC's JSON leaves out zeros and writes large numbers as text."""
    for key in path:
        entry = entry.get(key, {})
    return int(entry or 0)


def parts(entry):
    return {
        name: (number(entry, "inference_stats", name, "count"), number(entry, "inference_stats", name, "ns"))
        for name in ["success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit"]
    }


def ask(module, client, rows, **options):
    tensor = module.InferInput("input", [rows, 10], "FP32")
    tensor.set_data_from_numpy(np.zeros((rows, 10), np.float32))
    return client.infer("mlp", [tensor], **options)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_requests_are_counted_by_the_time_of_their_answer(server, protocol):
    module, client = connect(server, protocol)
    with client:
        before = statistics(client, protocol, "mlp")[("mlp", "1")]
        began_ms = time.time() * 1000
        for rows in [1, 3, 1]:
            ask(module, client, rows)
        after = statistics(client, protocol, "mlp", "1")[("mlp", "1")]
    grown = {name: tuple(np.subtract(parts(after)[name], parts(before)[name])) for name in parts(after)}
    assert number(after, "inference_count") - number(before, "inference_count") == 5
    assert number(after, "execution_count") - number(before, "execution_count") == 3
    assert {name: count for name, (count, _) in grown.items()} == {
        "success": 3,
        "fail": 0,
        "queue": 3,
        "compute_input": 3,
        "compute_infer": 3,
        "compute_output": 3,
        "cache_hit": 0,
    }
    steps = sum(grown[name][1] for name in ["queue", "compute_input", "compute_infer", "compute_output"])
    assert grown["compute_infer"][1] > 0 and grown["queue"][1] > 0
    assert steps <= grown["success"][1], "what a request waits for is part of its whole time"
    # Milliseconds are cut off, and two clocks are read.
    assert began_ms - 5 <= number(after, "last_inference") <= time.time() * 1000 + 5

    def batches(entry):
        entries = entry.get("batch_stats", [])
        return {number(batch, "batch_size"): number(batch, "compute_infer", "count") for batch in entries}

    sizes = {size: count - batches(before).get(size, 0) for size, count in batches(after).items()}
    assert {size: count for size, count in sizes.items() if count} == {1: 2, 3: 1}
    assert [usage["type"] for usage in after["memory_usage"]] == ["CPU"]
    assert number(after["memory_usage"][0], "byte_size") > 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_failures_are_counted_with_their_time(server, protocol):
    module, client = connect(server, protocol)
    with client:
        before = parts(statistics(client, protocol, "mlp")[("mlp", "1")])
        tensor = module.InferInput("wrong", [1, 10], "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 10), np.float32))
        with pytest.raises(InferenceServerException):
            client.infer("mlp", [tensor])
        with pytest.raises(InferenceServerException):
            ask(module, client, 1, timeout=1)
        after = parts(statistics(client, protocol, "mlp")[("mlp", "1")])
    assert after["fail"][0] - before["fail"][0] == 2
    assert after["fail"][1] > before["fail"][1]
    assert after["success"] == before["success"] and after["queue"] == before["queue"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_all_models_one_and_unknown_ones(server, protocol):
    _, client = connect(server, protocol)
    with client:
        everything = statistics(client, protocol)
        assert ("mlp", "1") in everything and ("add", "1") in everything
        assert ("missing_operator", "1") not in everything, "it can't be served"
        assert set(statistics(client, protocol, "mlp")) == {("mlp", "1")}
        with pytest.raises(InferenceServerException, match='there is no model "nothing"'):
            statistics(client, protocol, "nothing")
        with pytest.raises(InferenceServerException, match='there is no version "7" of model "mlp"'):
            statistics(client, protocol, "mlp", "7")
        with pytest.raises(InferenceServerException, match="can't be served"):
            statistics(client, protocol, "missing_operator", "1")


def test_metrics_under_tritons_names_show_the_same(server):
    module, client = connect(server, "http")
    with client:
        ask(module, client, 2)
        entry = statistics(client, "http", "mlp")[("mlp", "1")]

    def metric(name):
        return server.metric(f'nv_inference_{name}{{model="mlp",version="1"}}')

    counted = parts(entry)
    assert metric("request_success") == counted["success"][0]
    assert metric("count") == entry["inference_count"]
    assert metric("exec_count") == entry["execution_count"]
    for name, part in [
        ("request_duration_us", "success"),
        ("queue_duration_us", "queue"),
        ("compute_input_duration_us", "compute_input"),
        ("compute_infer_duration_us", "compute_infer"),
        ("compute_output_duration_us", "compute_output"),
    ]:
        assert metric(name) == counted[part][1] // 1000, name
    assert metric("pending_request_count") == 0
    failures = [
        server.metric(f'nv_inference_request_failure{{model="mlp",reason="{reason}",version="1"}}')
        for reason in ["REJECTED", "CANCELED", "BACKEND", "OTHER"]
    ]
    assert sum(failures) == counted["fail"][0]
    assert 0 <= server.metric("nv_cpu_utilization") <= 1
    assert 0 < server.metric("nv_cpu_memory_used_bytes") < server.metric("nv_cpu_memory_total_bytes")
