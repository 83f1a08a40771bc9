"""Kept answers with Triton's clients and real models: a hit is the miss, on either protocol, wherever tensors lie."""

import json
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as shared_memory

import conftest
from test_statistics import connect, number, statistics

PROTOCOLS = ["http", "grpc"]
KEPT = "response_cache { enable: true }\n"


def models(folder, config=KEPT):
    """A repository with one model, `kept`, which has the files of `mlp`."""
    model = folder / "models" / "kept"
    model.mkdir(parents=True)
    (model / "1").symlink_to(conftest.ROOT / ".cache" / "test-models" / "mlp" / "1")
    (model / "config.pbtxt").write_text(config + "max_batch_size: 4\n")
    return folder / "models"


@pytest.fixture(scope="module")
def keeping(tmp_path_factory):
    """A server that keeps answers, and lets clients have tensors in shared memory."""
    folder = models(tmp_path_factory.mktemp("keeping"))
    server = conftest.start(folder, "--cache-config", "local,size=1048576", "--allow-shared-memory")
    yield server
    conftest.stop(server)


def numbers(seed, rows=1):
    return np.random.default_rng(seed).random((rows, 10), np.float32)


def ask(module, client, values, **options):
    tensor = module.InferInput("input", list(values.shape), "FP32")
    tensor.set_data_from_numpy(values)
    return client.infer("kept", [tensor], **options).as_numpy("output")


def counts(client, protocol):
    entry = statistics(client, protocol, "kept")[("kept", "1")]
    parts = {name: number(entry, "inference_stats", name, "count") for name in ["cache_hit", "cache_miss", "success"]}
    return {**parts, "inferences": number(entry, "inference_count")}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_hit_is_the_miss_and_is_counted_as_in_triton(keeping, protocol):
    module, client = connect(keeping, protocol)
    with client:
        before = counts(client, protocol)
        values = numbers(PROTOCOLS.index(protocol), rows=2)
        miss, hit = ask(module, client, values), ask(module, client, values)
        after = counts(client, protocol)
        assert miss.tobytes() == hit.tobytes()
        assert {name: after[name] - before[name] for name in after} == {
            "cache_hit": 1,
            "cache_miss": 1,
            "success": 2,
            "inferences": 2,
        }
        spans = statistics(client, protocol, "kept")[("kept", "1")]
        assert number(spans, "inference_stats", "cache_hit", "ns") > 0
        assert keeping.metric('nv_cache_num_hits_per_model{model="kept",version="1"}') == after["cache_hit"]
        assert keeping.metric('nv_cache_num_misses_per_model{model="kept",version="1"}') == after["cache_miss"]


def test_json_bytes_and_grpc_share_what_is_kept(keeping):
    values = numbers(10)
    module, client = connect(keeping, "grpc")
    with client:
        first = ask(module, client, values)
        before = counts(client, "grpc")
        body = {"inputs": [{"name": "input", "shape": [1, 10], "datatype": "FP32", "data": values.ravel().tolist()}]}
        url = f"http://{keeping.http}/v2/models/kept/infer"
        texts = [urllib.request.urlopen(url, json.dumps(body).encode()).read() for _ in range(2)]
        assert texts[0] == texts[1]
        shown = np.array(json.loads(texts[0])["outputs"][0]["data"], np.float32)
        assert shown.tobytes() == first.tobytes()
        http_module, http_client = connect(keeping, "http")
        with http_client:
            assert ask(http_module, http_client, values).tobytes() == first.tobytes()
        assert counts(client, "grpc")["cache_hit"] - before["cache_hit"] == 3


def test_classes_are_taken_of_what_is_kept(keeping):
    module, client = connect(keeping, "http")
    values = numbers(11)
    with client:
        plain = ask(module, client, values)
        wanted = [module.InferRequestedOutput("output", class_count=1)]
        (found,) = ask(module, client, values, outputs=wanted).ravel()
        assert found.decode().endswith(f":{int(plain.argmax())}")
        assert ask(module, client, values).tobytes() == plain.tobytes()


def test_what_lies_in_shared_memory_is_found_and_written_there(keeping):
    module, client = connect(keeping, "http")
    values = numbers(12)
    regions = [shared_memory.create_shared_memory_region(name, f"/punctual_{name}", 40) for name in ["kept_in", "kept_out"]]
    try:
        with client:
            expected = ask(module, client, values)
            before = counts(client, "http")
            for name in ["kept_in", "kept_out"]:
                client.register_system_shared_memory(name, f"/punctual_{name}", 40)
            shared_memory.set_shared_memory_region(regions[0], [values])
            tensor = module.InferInput("input", [1, 10], "FP32")
            tensor.set_shared_memory("kept_in", 40)
            wanted = module.InferRequestedOutput("output")
            wanted.set_shared_memory("kept_out", 40)
            client.infer("kept", [tensor], outputs=[wanted])
            written = shared_memory.get_contents_as_numpy(regions[1], np.float32, [1, 10])
            assert written.tobytes() == expected.tobytes()
            assert counts(client, "http")["cache_hit"] - before["cache_hit"] == 1
            # What lies there now counts, not what did.
            shared_memory.set_shared_memory_region(regions[0], [values + 1])
            client.infer("kept", [tensor], outputs=[wanted])
            written = shared_memory.get_contents_as_numpy(regions[1], np.float32, [1, 10])
            assert written.tobytes() == ask(module, client, values + 1).tobytes() != expected.tobytes()
            client.unregister_system_shared_memory()
    finally:
        for region in regions:
            shared_memory.destroy_shared_memory_region(region)


def test_a_model_that_asks_for_it_in_vain_is_told_so(tmp_path):
    with open(tmp_path / "log", "wb") as log:
        server = conftest.start(models(tmp_path), stderr=log)
    try:
        module, client = connect(server, "http")
        with client:
            assert ask(module, client, numbers(1)).tobytes() == ask(module, client, numbers(1)).tobytes()
            assert counts(client, "http") == {"cache_hit": 0, "cache_miss": 0, "success": 2, "inferences": 2}
    finally:
        conftest.stop(server)
    said = (tmp_path / "log").read_text()
    assert said.count("response_cache has no effect: the server keeps no answers") == 1
