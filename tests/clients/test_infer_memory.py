"""Tensors in shared memory: registered, read, written, and everything that may be wrong with that."""

import json
import os
import urllib.error
import urllib.request
import uuid

import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from infer import CLIENTS, Client, rows


@pytest.fixture(params=CLIENTS)
def client(sharing, request):
    client = Client(sharing, request.param)
    yield client
    client.unregister_system_shared_memory()
    client.close()


@pytest.fixture
def memory():
    """Makes objects of shared memory, and removes them."""
    made = []

    def make(size, name="region"):
        made.append(shm.create_shared_memory_region(name, f"/punctual-test-{uuid.uuid4().hex}", size))
        return made[-1]

    yield make
    for region in made:
        shm.destroy_shared_memory_region(region)


def key(region):
    return region._shm_key


def names(client):
    """The regions that the server knows."""
    status = client.get_system_shared_memory_status()
    entries = status if isinstance(status, list) else status.regions.values()
    return {entry["name"]: entry for entry in entries} if isinstance(status, list) else dict(status.regions)


def test_registered_and_unregistered(client, memory):
    region = memory(100)
    assert names(client) == {}
    client.register_system_shared_memory("a", key(region), 60, offset=40)
    client.register_system_shared_memory("b", key(region), 100)
    assert set(names(client)) == {"a", "b"}
    status = client.get_system_shared_memory_status("a")
    entry = status[0] if isinstance(status, list) else status.regions["a"]
    read = entry.get if isinstance(entry, dict) else lambda field: getattr(entry, field)
    assert (read("name"), read("key"), read("offset"), read("byte_size")) == ("a", key(region), 40, 60)
    with pytest.raises(InferenceServerException, match='region "a" is registered already'):
        client.register_system_shared_memory("a", key(region), 1)
    client.unregister_system_shared_memory("a")
    assert set(names(client)) == {"b"}
    with pytest.raises(InferenceServerException, match='there is no shared memory region "a"'):
        client.get_system_shared_memory_status("a")
    client.unregister_system_shared_memory("a")
    client.unregister_system_shared_memory()
    assert names(client) == {}


def test_both_ways(client, memory):
    a, b = rows(3, 4), rows(3, 4, seed=8)
    region = memory(1000)
    shm.set_shared_memory_region(region, [a, b], offset=100)
    client.register_system_shared_memory("all", key(region), 900, offset=100)
    inputs = []
    for position, name in enumerate(["a", "b"]):
        tensor = client.module.InferInput(name, [3, 4], "FP32")
        tensor.set_shared_memory("all", 48, offset=48 * position)
        inputs.append(tensor)
    outputs = [client.output("difference"), client.output("sum")]
    # More room than it needs.
    outputs[1].set_shared_memory("all", 500, offset=200)
    result = client.infer("add", inputs, outputs=outputs)
    np.testing.assert_allclose(result.as_numpy("difference"), a - b)
    output = result.get_output("sum")
    shape = output["shape"] if isinstance(output, dict) else list(output.shape)
    np.testing.assert_allclose(shm.get_contents_as_numpy(region, np.float32, shape, offset=300), a + b)
    if isinstance(output, dict):
        expected = {"shared_memory_region": "all", "shared_memory_offset": 200, "shared_memory_byte_size": 48}
        assert output["parameters"] == {**expected, "binary_data_size": 0}
    else:
        assert output.parameters["shared_memory_byte_size"].int64_param == 48
        assert output.parameters["shared_memory_region"].string_param == "all"


def test_one_in_memory_and_one_in_the_request(client, memory):
    a, b = rows(2, 4), rows(2, 4, seed=8)
    region = memory(32)
    shm.set_shared_memory_region(region, [b])
    client.register_system_shared_memory("b", key(region), 32)
    shared = client.module.InferInput("b", [2, 4], "FP32")
    shared.set_shared_memory("b", 32)
    for inputs in [[client.input("a", a), shared], [shared, client.input("a", a)]]:
        np.testing.assert_allclose(client.infer("add", inputs).as_numpy("sum"), a + b)


def test_strings(client, memory):
    texts = np.array([[b"one", b"", b"three \xff"]], object)
    packed = serialize_byte_tensor(texts)
    size = len(packed.item())
    region, answer = memory(size), memory(200)
    shm.set_shared_memory_region(region, [packed])
    client.register_system_shared_memory("in", key(region), size)
    client.register_system_shared_memory("out", key(answer), 200)
    tensor = client.module.InferInput("input", [1, 3], "BYTES")
    tensor.set_shared_memory("in", size)
    output = client.output("output")
    output.set_shared_memory("out", 200)
    client.infer("identity_bytes", [tensor], outputs=[output])
    assert shm.get_contents_as_numpy(answer, np.object_, [1, 3]).tolist() == texts.tolist()


def test_megabytes(client, memory):
    data = rows(16, 100_000)
    region, answer = memory(data.nbytes), memory(data.nbytes)
    shm.set_shared_memory_region(region, [data])
    client.register_system_shared_memory("in", key(region), data.nbytes)
    client.register_system_shared_memory("out", key(answer), data.nbytes)
    tensor = client.module.InferInput("input", list(data.shape), "FP32")
    tensor.set_shared_memory("in", data.nbytes)
    output = client.output("output")
    output.set_shared_memory("out", data.nbytes)
    client.infer("identity_fp32", [tensor], outputs=[output])
    np.testing.assert_array_equal(shm.get_contents_as_numpy(answer, np.float32, data.shape), data)


def ask(client, in_size=40, in_offset=0, out_size=40, out_offset=0, region="in", out_region="out", **options):
    tensor = client.module.InferInput("input", [1, 10], "FP32")
    tensor.set_shared_memory(region, in_size, offset=in_offset)
    output = client.output("output", **options)
    if out_region:
        output.set_shared_memory(out_region, out_size, offset=out_offset)
    return client.infer("mlp", [tensor], outputs=[output])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"in_size": 41}, '40 bytes'),
        ({"in_size": 39}, "has 39 bytes, but its shape \\[1, 10\\] of FP32 takes 40 bytes"),
        ({"in_offset": 1}, "has 40 bytes from byte 1 on, but the shared memory region \"in\" has 40 bytes"),
        ({"in_offset": 2**62}, "from byte 4611686018427387904 on"),
        ({"out_size": 39}, "output \"output\" has 40 bytes, but its shared_memory_byte_size is 39: give it more"),
        ({"out_offset": 1}, "output \"output\" has 40 bytes from byte 1 on"),
        ({"region": "no"}, 'input "input" is in the shared memory region "no", which isn\'t registered'),
        ({"out_region": "no"}, 'output "output" is in the shared memory region "no", which isn\'t registered'),
    ],
)
def test_parts_that_are_not_there(client, memory, wrong, said):
    region, answer = memory(40), memory(40)
    client.register_system_shared_memory("in", key(region), 40)
    client.register_system_shared_memory("out", key(answer), 40)
    ask(client)
    with pytest.raises(InferenceServerException, match=said):
        ask(client, **wrong)
    ask(client)


def test_memory_that_is_cut_meanwhile(client, memory):
    region, answer = memory(8192), memory(8192)
    client.register_system_shared_memory("in", key(region), 8192)
    client.register_system_shared_memory("out", key(answer), 8192)
    os.truncate(f"/dev/shm{key(region)}", 10)
    with pytest.raises(InferenceServerException, match="could not be read from the shared memory region"):
        ask(client, in_offset=8000)
    os.truncate(f"/dev/shm{key(region)}", 8192)
    os.truncate(f"/dev/shm{key(answer)}", 10)
    with pytest.raises(InferenceServerException, match="could not be written to the shared memory region .* it was cut"):
        ask(client, out_offset=8000)
    assert os.path.getsize(f"/dev/shm{key(answer)}") == 10, "it isn't made longer"


@pytest.mark.parametrize(
    ("object_key", "said"),
    [
        ("/../etc/passwd", "names no shared memory object"),
        ("../../etc/passwd", "names no shared memory object"),
        ("/a/b", "names no shared memory object"),
        ("/..", "names no shared memory object"),
        ("/", "names no shared memory object"),
        ("/punctual-test-not-there", "can't be opened: No such file"),
    ],
)
def test_keys_that_lead_elsewhere(client, object_key, said):
    with pytest.raises(InferenceServerException, match=said):
        client.register_system_shared_memory("a", object_key, 1)
    assert names(client) == {}


def test_regions_beyond_their_object(client, memory):
    region = memory(64)
    for size, offset in [(65, 0), (64, 1), (1, 2**63), (2**63, 2**63 + 5)]:
        with pytest.raises(InferenceServerException, match="but .* has 64 bytes"):
            client.register_system_shared_memory("a", key(region), size, offset=offset)
    with pytest.raises(InferenceServerException, match="a region has at least one byte"):
        client.register_system_shared_memory("a", key(region), 0)


def test_regions_that_are_forgotten_meanwhile(client, memory):
    region, answer = memory(40), memory(40)
    client.register_system_shared_memory("in", key(region), 40)
    client.register_system_shared_memory("out", key(answer), 40)
    ask(client)
    client.unregister_system_shared_memory("in")
    with pytest.raises(InferenceServerException, match="isn't registered"):
        ask(client)


def test_device_memory_is_unsupported(client):
    with pytest.raises(InferenceServerException, match="CUDA shared memory is unsupported"):
        client.register_cuda_shared_memory("a", b"aGFuZGxl", 0, 64)
    # Clients begin with these to be sure that nothing is left over.
    client.unregister_cuda_shared_memory()
    client.unregister_cuda_shared_memory("a")
    status = client.get_cuda_shared_memory_status()
    assert status == [] or dict(status.regions) == {}
    with pytest.raises(InferenceServerException, match='there is no shared memory region "a"'):
        client.get_cuda_shared_memory_status("a")


@pytest.mark.parametrize("kind", CLIENTS)
def test_without_permission(server, memory, kind):
    client = Client(server, kind)
    with pytest.raises(InferenceServerException, match="start the server with --allow-shared-memory"):
        client.register_system_shared_memory("a", key(memory(40)), 40)
    with pytest.raises(InferenceServerException, match="start the server with --allow-shared-memory"):
        ask(client)
    assert names(client) == {}
    client.unregister_system_shared_memory()
    client.close()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "missing field `key`"),
        ({"key": "/a"}, "missing field `byte_size`"),
        ({"key": "/a", "byte_size": -1}, "invalid value"),
        ({"key": 7, "byte_size": 1}, "invalid type"),
        ([], "an object is expected"),
    ],
)
def test_bodies_that_register_nothing(sharing, body, said):
    request = urllib.request.Request(
        f"http://{sharing.http}/v2/systemsharedmemory/region/a/register", json.dumps(body).encode(), method="POST"
    )
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(request, timeout=10)
    assert raised.value.code == 400
    assert said in json.load(raised.value)["error"]
