"""Streams with the real clients, and requests that nobody waits for any more: executions are counted."""

import asyncio
import queue
import socket
import threading

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
from tritonclient.utils import InferenceServerException

import conftest
from infer import rows

EMULATED = """
platform: "emulated"
max_batch_size: 8
parameters {{ key: "emulated_latency" value {{ string_value: "alpha_ms=0.01,beta_ms={beta},load_ms=1" }} }}
"""
EXECUTIONS = 'punctual_batch_rows_count{model="busy",version="1"}'
CANCELLED = 'punctual_requests_total{model="busy",outcome="cancelled",reason="cancelled",version="1"}'


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """One emulated device, with a model that keeps it for long, and one that doesn't."""
    folder = tmp_path_factory.mktemp("emulated")
    for name, beta in [("busy", 2000), ("quick", 1)]:
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(EMULATED.format(beta=beta))
    server = conftest.start(folder, "--devices", "emulated:1")
    yield server
    conftest.stop(server)


def request(data, module=tritonclient.grpc):
    tensor = module.InferInput("input", list(data.shape), "FP32")
    tensor.set_data_from_numpy(data)
    return [tensor]


class Stream:
    """A stream whose answers are kept."""

    def __init__(self, server, **options):
        self.client = tritonclient.grpc.InferenceServerClient(server.grpc)
        self.answers = queue.Queue()
        self.client.start_stream(lambda result, error: self.answers.put((result, error)), **options)

    def send(self, model, data, **options):
        self.client.async_stream_infer(model, request(data), **options)

    def next(self):
        return self.answers.get(timeout=30)

    def close(self, **options):
        self.client.stop_stream(**options)
        self.client.close()


@pytest.mark.parametrize("algorithm", [None, "gzip", "deflate"])
def test_many_requests(server, algorithm):
    stream = Stream(server, compression_algorithm=algorithm)
    data = {str(number): rows(1 + number % 3, seed=number) for number in range(100)}
    for name, array in data.items():
        stream.send("identity_fp32", array, request_id=name, parameters={"mine": 1}, priority=1)
    while data:
        result, error = stream.next()
        assert error is None
        np.testing.assert_array_equal(result.as_numpy("output"), data.pop(result.get_response().id))
    stream.close()


@pytest.mark.parametrize("asks", [True, False])
def test_every_answer_is_the_last_one_to_its_request(server, asks):
    stream = Stream(server)
    stream.send("mlp", rows(1), enable_empty_final_response=asks)
    result, error = stream.next()
    assert error is None
    assert result.get_response().parameters["triton_final_response"].bool_param is True
    assert result.as_numpy("output").shape == (1, 10)
    stream.close()
    assert stream.answers.empty(), "no empty one follows"


def test_refusals_are_answers_like_any_other(server):
    stream = Stream(server)
    stream.send("nothing", rows(1), request_id="a")
    assert 'there is no model "nothing"' in stream.next()[1].message()
    stream.send("mlp", rows(1, 11), request_id="b")
    assert "has the shape [1, 11]" in stream.next()[1].message()
    stream.send("mlp", rows(1), timeout=1)
    assert "by the deadline" in stream.next()[1].message()
    stream.send("mlp", rows(1), request_id="d")
    result, error = stream.next()
    assert error is None
    assert result.get_response().id == "d"
    stream.close()


def test_answers_come_as_they_are_done(tmp_path):
    """Triton would keep the second answer back until the first is there, which takes an hour here."""
    (tmp_path / "slow" / "1").mkdir(parents=True)
    (tmp_path / "slow" / "config.pbtxt").write_text(EMULATED.format(beta=3_600_000))
    server = conftest.start(tmp_path, "--devices", "emulated:1")
    try:
        stream = Stream(server)
        stream.send("slow", rows(1))
        server.until("it is there", lambda: server.metric("punctual_requests_in_flight") == 1)
        stream.send("nothing", rows(1))
        assert 'there is no model "nothing"' in stream.next()[1].message()
        stream.close(cancel_requests=True)
    finally:
        server.process.kill()
        server.process.wait()


def test_outputs_and_classes(server):
    stream = Stream(server)
    data = rows(2)
    stream.send("mlp", data)
    scores = stream.next()[0].as_numpy("output")
    stream.send("mlp", data, outputs=[tritonclient.grpc.InferRequestedOutput("output", class_count=1)])
    best = stream.next()[0].as_numpy("output")
    assert [int(text.split(b":")[1]) for text in best.flatten()] == list(scores.argmax(axis=1))
    stream.close()


def test_a_stream_that_is_closed_is_answered_to_the_end(emulated):
    stream = Stream(emulated)
    for number in range(50):
        stream.send("quick", rows(1), request_id=str(number))
    stream.close()
    assert {stream.answers.get_nowait()[0].get_response().id for _ in range(50)} == {str(n) for n in range(50)}


def test_the_asynchronous_client(server):
    async def ask():
        async with tritonclient.grpc.aio.InferenceServerClient(server.grpc) as client:
            async def requests():
                for number in range(20):
                    data = rows(1, 10 if number % 2 else 11)
                    yield {"model_name": "mlp", "inputs": request(data), "request_id": str(number)}

            good, bad = [], []
            async for result, error in client.stream_infer(requests()):
                good.append(result.get_response().id) if error is None else bad.append(error.message())
            assert sorted(good, key=int) == [str(number) for number in range(1, 20, 2)]
            assert len(bad) == 10
            assert all("has the shape [1, 11]" in message for message in bad)

    asyncio.run(ask())


def test_time_limits_of_clients(emulated):
    with tritonclient.grpc.InferenceServerClient(emulated.grpc) as client:
        with pytest.raises(InferenceServerException) as raised:
            client.infer("busy", request(rows(1)), client_timeout=0.2)
        assert raised.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    stream = Stream(emulated, stream_timeout=0.3)
    stream.send("busy", rows(1))
    _, error = stream.next()
    assert "deadline" in error.message().lower()
    stream.close(cancel_requests=True)
    with tritonclient.http.InferenceServerClient(emulated.http, network_timeout=0.2) as client:
        with pytest.raises(Exception, match="timed out"):
            client.infer("busy", request(rows(8), tritonclient.http))


def test_what_nobody_waits_for_is_not_executed(emulated):
    with tritonclient.grpc.InferenceServerClient(emulated.grpc) as client:
        # Answered when the device is done with what other tests left on it.
        client.infer("quick", request(rows(1)))
    executions, cancelled = emulated.metric(EXECUTIONS), emulated.metric(CANCELLED)
    done = threading.Event()
    first = tritonclient.grpc.InferenceServerClient(emulated.grpc)
    # A whole batch: nothing can join it.
    first.async_infer("busy", request(rows(8)), lambda result, error: done.set())
    emulated.until("it is there", lambda: emulated.metric("punctual_requests_in_flight") == 1)

    host, port = emulated.http.split(":")
    plain = socket.create_connection((host, int(port)))
    body = rows(1).tobytes()
    head = f"POST /v2/models/busy/infer HTTP/1.1\r\nhost: x\r\nInference-Header-Content-Length: 0\r\ncontent-length: {len(body)}"
    plain.sendall(head.encode() + b"\r\n\r\n" + body)
    errors = queue.Queue()
    second = tritonclient.grpc.InferenceServerClient(emulated.grpc)
    call = second.async_infer("busy", request(rows(1)), lambda result, error: errors.put(error))
    stream = Stream(emulated)
    stream.send("busy", rows(1))
    stream.send("busy", rows(1))
    emulated.until("all of them wait", lambda: emulated.metric("punctual_requests_in_flight") == 5)

    plain.close()
    call.cancel()
    stream.close(cancel_requests=True)
    assert errors.get(timeout=30).status() == "StatusCode.CANCELLED"
    emulated.until("all of them are cancelled", lambda: emulated.metric(CANCELLED) - cancelled == 4)
    assert not done.is_set(), "they went while the first one was on the device"
    assert done.wait(30)
    with tritonclient.grpc.InferenceServerClient(emulated.grpc) as client:
        # Whatever the device had to do before this is done and counted.
        client.infer("quick", request(rows(1)))
    assert emulated.metric(EXECUTIONS) - executions == 1, "the first one, and none of the others"
    first.close()
    second.close()
