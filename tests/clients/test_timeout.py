"""`timeout` as clients of Triton send it, at each point where Triton does something else (docs/coming-from-triton.md).

The device is emulated: a model takes as long as its configuration says, and `blocker` keeps the device busy for longer than any
of these tests. What happened is read from counters, never from a clock.
"""

import asyncio
import contextlib
import threading

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

import conftest

MODEL = """
platform: "emulated"
max_batch_size: 4
parameters {{ key: "emulated_latency" value {{ string_value: "alpha_ms=0,beta_ms={beta},load_ms=1" }} }}
{more}
"""
# Triton honours a request's timeout only with both of these, and only if the default is the larger one.
POLICIES = {
    "plain": "",
    "batching": "dynamic_batching { }",
    "no_override": "dynamic_batching { default_queue_policy { default_timeout_microseconds: 90000000 } }",
    "no_default": "dynamic_batching { default_queue_policy { allow_timeout_override: true } }",
    "both": "dynamic_batching { default_queue_policy { default_timeout_microseconds: 90000000 allow_timeout_override: true } }",
    "delay": "dynamic_batching { default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 90000000 } }",
}
OBJECTIVE = 'parameters { key: "latency_objective_ms" value { string_value: "500" } }'
CLIENTS = {
    "http": tritonclient.http,
    "grpc": tritonclient.grpc,
    "http.aio": tritonclient.http.aio,
    "grpc.aio": tritonclient.grpc.aio,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("timeouts")

    def add(name, beta, more=""):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(MODEL.format(beta=beta, more=more))

    for name, policy in POLICIES.items():
        add(name, 1000, policy)
    add("objective", 1000, OBJECTIVE)
    add("quick", 1)
    add("blocker", 100_000)
    server = conftest.start(repository, "--devices", "emulated:1")
    yield server
    server.process.kill()
    server.process.wait()


def ask(server, client, model, **options):
    """The rows of an answer, or the error."""
    module = CLIENTS[client]
    address = getattr(server, client.split(".")[0])
    patience = {"network_timeout": 30} if client == "http" else {}
    tensor = module.InferInput("input", [1, 10], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 10), np.float32))
    try:
        if not client.endswith("aio"):
            with module.InferenceServerClient(address, **patience) as connection:
                return connection.infer(model, [tensor], **options).as_numpy("output").shape

        async def call():
            async with module.InferenceServerClient(address) as connection:
                return (await connection.infer(model, [tensor], **options)).as_numpy("output").shape

        return asyncio.run(call())
    except InferenceServerException as error:
        return error


def executions(server, model):
    return server.metric('punctual_execution_seconds_count{model="%s",version="1"}' % model)


def refusals(server, model, *reasons):
    series = 'punctual_requests_total{model="%s",outcome="refused",reason="%s",version="1"}'
    return sum(server.metric(series % (model, reason)) for reason in reasons)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("model", POLICIES)
def test_it_counts_without_any_configuration_and_for_the_execution_too(server, model, client):
    """Triton computes for a second on an idle server, whatever the timeout, and answers late. Here the answer is no, at once."""
    before = refusals(server, model, "deadline_unreachable")
    error = ask(server, client, model, timeout=500_000)
    assert isinstance(error, InferenceServerException), f"answered: {error}"
    assert "even with nothing else to do" in error.message()
    server.until("it is counted", lambda: refusals(server, model, "deadline_unreachable") == before + 1)
    assert executions(server, model) == 0, "what is refused isn't computed"
    if client.startswith("grpc"):
        assert error.status() == "StatusCode.DEADLINE_EXCEEDED"


def test_the_refusal_says_what_could_have_been_met(server):
    """Triton says `Request timeout expired`."""
    assert ask(server, "http", "plain", timeout=500_000).status() == "504"
    request = tritonclient.grpc.service_pb2.ModelInferRequest(model_name="plain")
    request.inputs.add(name="input", datatype="FP32", shape=[1, 10])
    request.raw_input_contents.append(bytes(40))
    request.parameters["timeout"].int64_param = 500_000
    with grpc.insecure_channel(server.grpc) as channel, pytest.raises(grpc.RpcError) as raised:
        tritonclient.grpc.service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    said = dict(raised.value.trailing_metadata())
    assert said["punctual-reason"] == "deadline_unreachable"
    assert int(said["punctual-earliest-deadline-us"]) >= 1_000_000


def test_zero_is_none_and_a_long_one_is_met(server):
    for timeout in [None, 0, 60_000_000]:
        assert ask(server, "http", "quick", timeout=timeout) == (1, 10)
        assert ask(server, "grpc", "quick", timeout=timeout) == (1, 10)
    server.until("all are counted", lambda: executions(server, "quick") == 6)


@pytest.mark.parametrize("client", ["http", "grpc"])
def test_the_smaller_of_it_and_the_models_objective_counts(server, client):
    before = refusals(server, "objective", "deadline_unreachable")
    assert "even with nothing else to do" in ask(server, client, "objective", timeout=60_000_000).message()
    assert "even with nothing else to do" in ask(server, client, "objective").message()
    server.until("it is counted", lambda: refusals(server, "objective", "deadline_unreachable") == before + 2)
    assert executions(server, "objective") == 0


AHEAD = "because other requests are ahead"


class TestBusy:
    """While all instances are busy Triton looks at timeouts twice a second, and before March 2024 not at all."""

    @pytest.fixture(scope="class", autouse=True)
    def busy(self, server):
        def block():
            with contextlib.suppress(Exception):
                ask(server, "grpc", "blocker")

        threading.Thread(target=block, daemon=True).start()
        started = 'punctual_queue_seconds_count{model="blocker",version="1"}'
        server.until("the device is busy", lambda: server.metric(started) == 1)

    def refused(self, server, client, **options):
        """Asks for what can't start before the device is free, and is told so while it isn't."""
        before, computed = refusals(server, "quick", "overloaded"), executions(server, "quick")
        error = ask(server, client, "quick", **options)
        assert AHEAD in error.message(), error.message()
        server.until("it is counted", lambda: refusals(server, "quick", "overloaded") == before + 1)
        assert executions(server, "blocker") == 0, "the device was to be busy all the while"
        assert executions(server, "quick") == computed

    @pytest.mark.parametrize("client", CLIENTS)
    def test_it_is_kept_while_the_device_is_busy(self, server, client):
        self.refused(server, client, timeout=100_000)

    def test_the_deadline_of_grpc_is_one_for_the_server_too(self, server):
        """Triton notices when the client is gone; here the server says no first, with its own sentence."""
        self.refused(server, "grpc", client_timeout=20)

    def test_when_requests_go_bad_it_is_refused_on_arrival(self, server):
        """Told a minute and a half ahead, where Triton lets it wait: a client that listens for half a minute hears it."""
        self.refused(server, "http", timeout=100_000)
        self.refused(server, "http", timeout=90_000_000)
        self.refused(server, "grpc", timeout=90_000_000)

    def test_refused_requests_leave_nothing_behind(self, server):
        for _ in range(10):
            self.refused(server, "http", timeout=100_000)
        server.until("the blocker is alone", lambda: server.metric("punctual_requests_in_flight") == 1)
