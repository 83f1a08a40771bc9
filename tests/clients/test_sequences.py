"""Sequences with Triton's clients: order, states that the server keeps, signals to the model, bounds, and silero-vad as a stream."""

import json
import queue
import sys
import threading
import time

import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

import conftest

sys.path.insert(0, str(conftest.ROOT / "scripts"))
from onnx_writer import INT64, Graph, TensorProto  # noqa: E402

MODULES = {"http": tritonclient.http, "grpc": tritonclient.grpc}
PROTOCOLS = list(MODULES)
# As the configuration of Triton's simple_sequence.
SIMPLE = """
max_batch_size: 8
input { name: "INPUT" data_type: TYPE_INT32 dims: 1 }
output { name: "OUTPUT" data_type: TYPE_INT32 dims: 1 }
instance_group { kind: KIND_CPU count: 4 }
sequence_batching {
  max_sequence_idle_microseconds: 30000000
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
}
"""
# As that of dyna_sequence, which adds the sequence's name at its end.
NAMED = """
max_batch_size: 8
sequence_batching {
  max_sequence_idle_microseconds: 30000000
  oldest { max_candidate_sequences: 1024 }
  control_input { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } }
  control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT32 } }
}
"""
STATE = """
max_batch_size: 8
input {{ name: "INPUT" data_type: TYPE_INT64 dims: 1 }}
output {{ name: "OUTPUT" data_type: TYPE_INT64 dims: 1 }}
sequence_batching {{
  max_sequence_idle_microseconds: {idle}
  oldest {{ max_candidate_sequences: {most} }}
  state {{ input_name: "STATE" output_name: "STATE_OUT" data_type: TYPE_INT64 dims: 1 {initial} }}
}}
"""
FROM_FILE = 'initial_state { data_type: TYPE_INT64 dims: 1 data_file: "hundred" name: "hundred" }'
VAD = """
max_batch_size: 0
sequence_batching {
  max_sequence_idle_microseconds: 30000000
  state { input_name: "state" output_name: "stateN" data_type: TYPE_FP32 dims: [ 2, -1, 128 ]
          initial_state { data_type: TYPE_FP32 dims: [ 2, 1, 128 ] zero_data: true name: "silence" } }
  oldest { max_candidate_sequences: 4 }
}
"""


def simple(repository):
    graph = Graph("simple_sequence")
    value, start, ready = (graph.input(name, TensorProto.INT32, ["rows", 1]) for name in ("INPUT", "START", "READY"))
    graph.node("Mul", graph.node("Add", value, start), ready, named="OUTPUT")
    graph.output("OUTPUT", TensorProto.INT32, ["rows", 1])
    graph.write(repository, SIMPLE)


def named(repository):
    graph = Graph("named_sequence")
    value, end, name = (graph.input(name, TensorProto.INT32, ["rows", 1]) for name in ("INPUT", "END", "CORRID"))
    graph.node("Add", value, graph.node("Mul", end, name), named="OUTPUT")
    graph.output("OUTPUT", TensorProto.INT32, ["rows", 1])
    graph.write(repository, NAMED)


def sums(repository, name, idle=30_000_000, most=1024, initial=""):
    """Each answer is the sum of what the sequence had so far."""
    graph = Graph(name)
    value, state = graph.input("INPUT", INT64, ["rows", 1]), graph.input("STATE", INT64, ["rows", 1])
    graph.node("Add", value, state, named="OUTPUT")
    graph.node("Identity", "OUTPUT", named="STATE_OUT")
    graph.output("OUTPUT", INT64, ["rows", 1])
    graph.output("STATE_OUT", INT64, ["rows", 1])
    graph.write(repository, STATE.format(idle=idle, most=most, initial=initial))


@pytest.fixture(scope="module")
def sequences(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sequences")
    simple(folder)
    named(folder)
    sums(folder, "sums")
    sums(folder, "forgetful", idle=200_000)
    sums(folder, "narrow", most=2)
    sums(folder, "replaced")
    sums(folder, "from_file", initial=FROM_FILE)
    (folder / "from_file" / "initial_state").mkdir()
    (folder / "from_file" / "initial_state" / "hundred").write_bytes((100).to_bytes(8, "little"))
    vad = folder / "vad"
    vad.mkdir()
    (vad / "1").symlink_to(conftest.ROOT / "models" / "silero-vad" / "1")
    (vad / "config.pbtxt").write_text(VAD)
    server = conftest.start(folder, "--model-control-mode", "both")
    yield server
    conftest.stop(server)


class Asker:
    """One connection."""

    def __init__(self, server, protocol):
        self.module = MODULES[protocol]
        self.client = self.module.InferenceServerClient(getattr(server, protocol))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.close()

    def ask(self, model, value, datatype="INT64", **options):
        return int(self.result(model, value, datatype, **options).as_numpy("OUTPUT")[0, 0])

    def result(self, model, value, datatype="INT64", **options):
        return self.client.infer(model, [tensor(self.module, value, datatype)], **options)

    def refused(self, model, value, **options):
        with pytest.raises(InferenceServerException) as raised:
            self.ask(model, value, **options)
        return raised.value.message()


def tensor(module, value, datatype="INT64"):
    made = module.InferInput("INPUT", [1, 1], datatype)
    made.set_data_from_numpy(np.array([[value]], {"INT64": np.int64, "INT32": np.int32}[datatype]))
    return made


@pytest.mark.parametrize("ids", [(1007, 1008), ("left", "right")])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_simple_sequence_example(sequences, protocol, ids):
    """Two sequences in turns, as Triton's examples ask them: the first answer of each is one more."""
    values = [0, 11, 7, 5, 3, 2, 0, 1]
    with Asker(sequences, protocol) as asker:
        for at, value in enumerate(values):
            place = {"sequence_start": at == 0, "sequence_end": at == len(values) - 1}
            for id, sign in zip(ids, (1, -1)):
                answer = asker.ask("simple_sequence", sign * value, "INT32", sequence_id=id, **place)
                assert answer == (1 if at == 0 else sign * value)


def test_the_example_over_a_stream(sequences):
    """All requests at once, the answers as they come: each sequence's are in their order."""
    values, answers = [11, 7, 5, 3, 2, 0, 1], queue.Queue()
    with tritonclient.grpc.InferenceServerClient(sequences.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for id in (1001, 1002):
            for at, value in enumerate([0, *values]):
                client.async_stream_infer(
                    "simple_sequence", [tensor(tritonclient.grpc, value, "INT32")], request_id=f"{id}_{at}",
                    sequence_id=id, sequence_start=at == 0, sequence_end=at == len(values),
                )  # fmt: skip
        found = {1001: [], 1002: []}
        for _ in range(2 * (1 + len(values))):
            result, error = answers.get(timeout=60)
            assert error is None, error
            id, at = map(int, result.get_response().id.split("_"))
            assert at == len(found[id]), "answers of a sequence come in its order"
            found[id].append(int(result.as_numpy("OUTPUT")[0, 0]))
        client.stop_stream()
    assert found == {1001: [1, *values], 1002: [1, *values]}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_model_hears_of_the_end_and_the_name(sequences, protocol):
    with Asker(sequences, protocol) as asker:
        assert asker.ask("named_sequence", 5, "INT32", sequence_id=70, sequence_start=True) == 5
        assert asker.ask("named_sequence", 5, "INT32", sequence_id=70, sequence_end=True) == 75
        assert "takes names of INT32" in asker.refused("named_sequence", 5, datatype="INT32", sequence_id="text", sequence_start=True)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_kept_stays_with_its_sequence(sequences, protocol):
    with Asker(sequences, protocol) as asker:
        for round, (start, end) in enumerate([(True, False), (False, False), (False, True)], 1):
            for id in (21, 22, "21"):
                added = 1 if id == 21 else 10
                assert asker.ask("sums", added, sequence_id=id, sequence_start=start, sequence_end=end) == round * added
        # A number and a text are two names, and all three are over.
        assert "START flag" in asker.refused("sums", 1, sequence_id=21)
        assert asker.ask("sums", 4, sequence_id=21, sequence_start=True) == 4
        assert asker.ask("sums", 4, sequence_id=21, sequence_start=True) == 4, "a second start forgets the first"
        assert asker.ask("sums", 4, sequence_id=21, sequence_end=True) == 8


def test_many_sequences_at_once_keep_their_order(sequences):
    """Requests of 40 sequences, all sent before the first answer: each sum is that of the numbers before it."""
    rounds, answers, random = 12, queue.Queue(), np.random.default_rng(3)
    numbers = random.integers(1, 1000, (40, rounds))
    with tritonclient.grpc.InferenceServerClient(sequences.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for at in range(rounds):
            for id in random.permutation(len(numbers)):
                client.async_stream_infer(
                    "sums", [tensor(tritonclient.grpc, numbers[id, at])], request_id=f"{id}_{at}",
                    sequence_id=500 + int(id), sequence_start=at == 0, sequence_end=at == rounds - 1,
                )  # fmt: skip
        for _ in range(numbers.size):
            result, error = answers.get(timeout=120)
            assert error is None, error
            id, at = map(int, result.get_response().id.split("_"))
            assert result.as_numpy("OUTPUT")[0, 0] == numbers[id, : at + 1].sum()
            assert result.as_numpy("STATE_OUT") is None, "what the server keeps isn't an output"
        client.stop_stream()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_has_not_begun_is_refused(sequences, protocol):
    with Asker(sequences, protocol) as asker:
        assert "has not begun" in asker.refused("sums", 1, sequence_id=31)
        assert "sequence_id" in asker.refused("sums", 1)
        # A request that fails leaves the sequence as it was.
        assert asker.ask("sums", 1, sequence_id=31, sequence_start=True) == 1
        with pytest.raises(InferenceServerException):
            asker.result("sums", 1, "INT32", sequence_id=31)
        assert asker.ask("sums", 1, sequence_id=31, sequence_end=True) == 2


def test_what_idles_too_long_is_over(sequences):
    with Asker(sequences, "http") as asker:
        assert asker.ask("forgetful", 1, sequence_id=41, sequence_start=True) == 1
        time.sleep(0.4)
        assert "had no request for" in asker.refused("forgetful", 1, sequence_id=41)


def test_another_begins_when_one_ends(sequences):
    """Two sequences at a time: the third waits, its deadline running, and so do those behind it."""
    with Asker(sequences, "http") as asker:
        for id in (51, 52):
            assert asker.ask("narrow", 1, sequence_id=id, sequence_start=True) == 1
        assert "deadline" in asker.refused("narrow", 1, sequence_id=53, sequence_start=True, timeout=200_000)
        done = queue.Queue()

        def third():
            with Asker(sequences, "http") as other:
                done.put(other.ask("narrow", 7, sequence_id=53, sequence_start=True))
                done.put(other.ask("narrow", 7, sequence_id=53, sequence_end=True))

        thread = threading.Thread(target=third)
        thread.start()
        assert asker.ask("narrow", 1, sequence_id=51, sequence_end=True) == 2
        assert [done.get(timeout=60), done.get(timeout=60)] == [7, 14]
        thread.join()
        assert asker.ask("narrow", 1, sequence_id=52, sequence_end=True) == 2


def test_a_sequence_begins_with_what_a_file_says(sequences):
    with Asker(sequences, "grpc") as asker:
        assert asker.ask("from_file", 1, sequence_id=61, sequence_start=True) == 101
        assert asker.ask("from_file", 1, sequence_id=61, sequence_end=True) == 102


def test_a_replaced_model_says_that_its_sequences_are_lost(sequences):
    with Asker(sequences, "http") as asker:
        assert asker.ask("replaced", 5, sequence_id=71, sequence_start=True) == 5
        config = asker.client.get_model_config("replaced")
        config["sequence_batching"]["max_sequence_idle_microseconds"] = "60000000"
        asker.client.load_model("replaced", config=json.dumps(config))
        assert "lost when the model was replaced" in asker.refused("replaced", 5, sequence_id=71)
        assert asker.ask("replaced", 5, sequence_id=71, sequence_start=True) == 5
        assert asker.ask("replaced", 5, sequence_id=71, sequence_end=True) == 10


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_clients_see_what_they_give_and_get(sequences, protocol):
    with Asker(sequences, protocol) as asker:
        options = {"as_json": True} if protocol == "grpc" else {}
        shown = asker.client.get_model_metadata("sums", **options)
        assert [tensor["name"] for tensor in shown["inputs"]] == ["INPUT"]
        assert [tensor["name"] for tensor in shown["outputs"]] == ["OUTPUT"]
        config = asker.client.get_model_config("sums", **options)
        config = config.get("config", config)
        assert [tensor["name"] for tensor in config["input"]] == ["INPUT"]
        assert "sequence" in asker.client.get_server_metadata(**options)["extensions"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_silero_vad_as_a_stream(sequences, protocol):
    """Two streams of sound in turns, in pieces of 512 samples behind 64 of the piece before, as the package feeds its own model: equal to a session that is handed its state."""
    sounds = [np.random.default_rng(seed).standard_normal(512 * 12).astype(np.float32) * loud for seed, loud in ((1, 0.02), (2, 0.3))]
    for sound in sounds:
        at = np.arange(len(sound)) / 16000
        sound[2048:4608] += (0.5 * np.sin(2 * np.pi * 140 * at) * np.sin(2 * np.pi * 4 * at))[2048:4608].astype(np.float32)
    session = onnxruntime.InferenceSession(str(conftest.ROOT / "models" / "silero-vad" / "1" / "model.onnx"))
    states = [np.zeros((2, 1, 128), np.float32) for _ in sounds]
    padded = [np.concatenate([np.zeros(64, np.float32), sound]) for sound in sounds]
    module = MODULES[protocol]
    with Asker(sequences, protocol) as asker:
        for piece in range(12):
            for number, sound in enumerate(padded):
                chunk = sound[None, piece * 512 : piece * 512 + 576]
                expected, states[number] = session.run(None, {"input": chunk, "state": states[number], "sr": np.array(16000)})
                inputs = [module.InferInput("input", list(chunk.shape), "FP32"), module.InferInput("sr", [1], "INT64")]
                inputs[0].set_data_from_numpy(chunk)
                inputs[1].set_data_from_numpy(np.array([16000], np.int64))
                place = {"sequence_start": piece == 0, "sequence_end": piece == 11}
                found = asker.client.infer("vad", inputs, sequence_id=81 + number, **place).as_numpy("output")
                np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
