"""Endpoints that select among models, with Triton's clients and real models: splits, shadows, ensembles with a straggler, feedback."""

import json
import signal
import urllib.error
import urllib.request

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

import conftest
from test_rights import bearer, make_key
from test_statistics import connect

PROTOCOLS = ["http", "grpc"]
CLASSES = 4
KEYS = {"asker": "infer", "other": "infer", "of_one": "infer=one", "reader": "read"}


def save(folder, name, nodes, constants):
    """A model from `x` to `scores`, both of four numbers a row."""
    tensor = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", CLASSES])
    graph = helper.make_graph(nodes, name, [tensor("x")], [tensor("scores")], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    (folder / name / "1").mkdir(parents=True)
    onnx.save(model, folder / name / "1" / "model.onnx")
    (folder / name / "config.pbtxt").write_text("max_batch_size: 8\n")


def constant(name, values, kind=TensorProto.FLOAT):
    values = np.asarray(values)
    return helper.make_tensor(name, kind, values.shape, values.ravel().tolist())


def says(folder, name, label):
    """A model that says this label, whatever it is given."""
    scores = np.zeros(CLASSES)
    scores[label] = 0.9
    save(
        folder,
        name,
        [helper.make_node("Mul", ["x", "zero"], ["nothing"]), helper.make_node("Add", ["nothing", "bias"], ["scores"])],
        [constant("zero", [0.0]), constant("bias", scores)],
    )


def fails(folder, name):
    """A model that is well with zeros, and fails when the first number is anything else."""
    save(
        folder,
        name,
        [
            helper.make_node("Slice", ["x", "from", "to", "axis"], ["first"]),
            helper.make_node("Cast", ["first"], ["index"], to=TensorProto.INT64),
            helper.make_node("Gather", ["only", "index"], ["found"]),
            helper.make_node("Add", ["found", "bias"], ["scores"]),
        ],
        [
            constant("from", [0], TensorProto.INT64),
            constant("to", [1], TensorProto.INT64),
            constant("axis", [1], TensorProto.INT64),
            constant("only", [0.0]),
            constant("bias", [0.9, 0, 0, 0]),
        ],
    )


def straggles(folder, name, label):
    """A model that says this label after a thousand rounds of work, and as many more as the last number says.

    What is measured beforehand is the thousand. A hundred times as many are broken off as something that hangs, which takes
    more than a second on any core.
    """
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["goes"]), helper.make_node("MatMul", ["m", "m"], ["mm"])],
        "round",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("m", TensorProto.FLOAT, [96, 96]),
        ],
        [
            helper.make_tensor_value_info("goes", TensorProto.BOOL, []),
            helper.make_tensor_value_info("mm", TensorProto.FLOAT, [96, 96]),
        ],
    )
    scores = np.zeros(CLASSES)
    scores[label] = 0.9
    save(
        folder,
        name,
        [
            helper.make_node("Slice", ["x", "from", "to", "axis"], ["last"]),
            helper.make_node("ReduceMax", ["last"], ["most"], keepdims=0),
            helper.make_node("Cast", ["most"], ["more"], to=TensorProto.INT64),
            helper.make_node("Add", ["more", "thousand"], ["rounds"]),
            helper.make_node("Loop", ["rounds", "", "start"], ["end"], body=body),
            helper.make_node("ReduceSum", ["end"], ["sum"], keepdims=0),
            helper.make_node("Mul", ["sum", "zero"], ["nothing"]),
            helper.make_node("Mul", ["x", "zero"], ["row"]),
            helper.make_node("Add", ["row", "nothing"], ["base"]),
            helper.make_node("Add", ["base", "bias"], ["scores"]),
        ],
        [
            constant("from", [3], TensorProto.INT64),
            constant("to", [4], TensorProto.INT64),
            constant("axis", [1], TensorProto.INT64),
            constant("thousand", 1000, TensorProto.INT64),
            constant("start", np.eye(96)),
            constant("zero", [0.0]),
            constant("bias", scores),
        ],
    )


def endpoint(folder, name, text):
    (folder / name).mkdir()
    (folder / name / "endpoint.toml").write_text(text)


def repository(folder):
    folder.mkdir()
    for name, label in [("one", 1), ("another", 1), ("two", 2)]:
        says(folder, name, label)
    fails(folder, "failing")
    fails(folder, "failing_too")
    straggles(folder, "straggler", 3)
    endpoint(folder, "fixed", 'kind = "fixed"\nmodel = "one"\n')
    split = 'kind = "split"\nmembers = [{ model = "one", weight = 3 }, { model = "two", weight = 1 }]\n'
    endpoint(folder, "canary", split)
    endpoint(folder, "sticky", split + 'by = "user"\n')
    endpoint(folder, "shadowed", 'kind = "shadow"\nmodel = "one"\nshadows = ["failing", "another", "two"]\n')
    voters = 'members = [{ model = "one" }, { model = "another" }, { model = "%s" }]\n'
    endpoint(folder, "voted", 'kind = "ensemble"\n' + voters % "two")
    endpoint(folder, "averaged", 'kind = "ensemble"\ncombine = "average"\n' + voters % "two")
    endpoint(folder, "slow", 'kind = "ensemble"\n' + voters % "straggler")
    endpoint(folder, "unsure", 'kind = "cascade"\nstages = [{ model = "one", enough = 0.95 }, { model = "two" }]\n')
    endpoint(folder, "sure", 'kind = "cascade"\nstages = [{ model = "one", enough = 0.5 }, { model = "two" }]\n')
    variants = 'kind = "variants"\nmembers = [{ model = "one", accuracy = 0.6, cost = 1 }, { model = "two", accuracy = 0.7, cost = 9 }]\n'
    endpoint(folder, "varied", variants)
    endpoint(folder, "learning", 'kind = "exp3"\nmembers = ["one", "two"]\nby = "user"\n')
    endpoint(folder, "weighing", 'kind = "exp4"\nmembers = ["one", "another", "two"]\n')
    hopeless = 'members = [{ model = "failing" }, { model = "failing_too" }]\n'
    endpoint(folder, "hopeless", 'kind = "ensemble"\n' + hopeless)
    endpoint(folder, "hopeful", 'kind = "ensemble"\n' + hopeless + "[default]\nscores = [0, 0, 1, 0]\n")
    default = 'model = "failing"\n[default]\nscores = [0, 0, 0, 1]\n'
    endpoint(folder, "careful", 'kind = "fixed"\n' + default)
    return folder


@pytest.fixture(scope="module")
def selecting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("selecting")
    server = conftest.start(repository(folder / "models"), "--devices", "cpu:2", cache=folder / "cache")
    server.folder = folder
    yield server
    conftest.stop(server)


def ask(module, client, name, x=(0, 0, 0, 0), rows=1, **options):
    """The classes that an endpoint says, its parameters, and the answer's id."""
    values = np.tile(np.array(x, np.float32), (rows, 1))
    tensor = module.InferInput("x", list(values.shape), "FP32")
    tensor.set_data_from_numpy(values)
    answer = client.infer(name, [tensor], **options)
    response = answer.get_response()
    if module.__name__.endswith("grpc"):
        choice = lambda value: getattr(value, value.WhichOneof("parameter_choice"))
        parameters, ident = {name: choice(value) for name, value in response.parameters.items()}, response.id
    else:
        parameters, ident = response.get("parameters", {}), response.get("id", "")
    return answer.as_numpy("scores").argmax(axis=1).tolist(), parameters, ident


def feedback(server, name, body, headers=()):
    """The status and the body of the answer to feedback."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{server.http}/v2/models/{name}/feedback", data, dict(headers), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_fixed_endpoint_is_another_name_for_its_model(selecting, protocol):
    module, client = connect(selecting, protocol)
    with client:
        assert client.is_model_ready("fixed")
        assert ask(module, client, "fixed", rows=3)[:2] == ([1, 1, 1], {"selected": "one"})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_split_has_its_parts(selecting, protocol):
    module, client = connect(selecting, protocol)
    with client:
        chosen = [ask(module, client, "canary")[1]["selected"] for _ in range(400)]
    # Four deviations of a quarter of 400.
    assert abs(chosen.count("two") - 100) < 35


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_user_stays_with_its_model_whatever_the_name_is(selecting, protocol):
    module, client = connect(selecting, protocol)
    users = [f"user {number}" for number in range(40)] + ["", "x" * (1 << 20), "\u00e4\u4e16"]
    with client:
        of = lambda user: ask(module, client, "sticky", parameters={"user": user})[1]["selected"]
        first = [of(user) for user in users]
        assert [of(user) for user in users] == first
        assert set(first) == {"one", "two"}
    other_module, other = connect(selecting, PROTOCOLS[1 - PROTOCOLS.index(protocol)])
    with other:
        assert [ask(other_module, other, "sticky", parameters={"user": user})[1]["selected"] for user in users] == first


def test_a_shadow_that_fails_does_not_hurt(selecting):
    module, client = connect(selecting, "http")
    series = lambda member, outcome: (
        f'punctual_selection_shadows_total{{member="{member}",model="shadowed",outcome="{outcome}",version="1"}}'
    )
    with client:
        for _ in range(20):
            assert ask(module, client, "shadowed", x=(7, 0, 0, 0))[0] == [1]
    for member, outcome in [("failing", "failed"), ("another", "same"), ("two", "different")]:
        selecting.until(f"{member} is {outcome}", lambda: selecting.metric(series(member, outcome)) == 20)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_ensemble_says_what_most_say_and_how_sure_it_is(selecting, protocol):
    module, client = connect(selecting, protocol)
    with client:
        for name in ["voted", "averaged"]:
            said, parameters, _ = ask(module, client, name, rows=2)
            assert said == [1, 1] and parameters["arrived"] == "one,another,two" and parameters["selected"] == "one"
            assert parameters["confidence"] == pytest.approx(2 / 3) == parameters["agreement"]
            assert "missing" not in parameters


def rests(module, client, name):
    """Whether a model is asked for in vain, though nobody is in a hurry: it was broken off."""
    try:
        ask(module, client, name)
    except InferenceServerException:
        return True
    return False


def test_a_straggler_is_not_waited_for(selecting):
    # Either it is dropped when the answer is made, or its own time runs out in the same millisecond.
    ends = [("cancelled", "cancelled"), ("refused", "deadline_missed")]
    series = [f'punctual_requests_total{{model="straggler",outcome="{end}",reason="{why}",version="1"}}' for end, why in ends]
    taken_back = lambda: sum(selecting.metric(name) for name in series)
    clients = [connect(selecting, protocol) for protocol in PROTOCOLS]
    for module, client in clients:
        said, parameters, _ = ask(module, client, "slow")
        assert (said, parameters["arrived"]) == ([1], "one,another,straggler"), "without more work it is there like the others"
    before = taken_back()
    for module, client in clients:
        # Seconds of work, of which nothing was known; a success is by its deadline, or it is none.
        said, parameters, _ = ask(module, client, "slow", x=(0, 0, 0, 1_000_000), timeout=1_000_000)
        assert (said, parameters["missing"], parameters["arrived"]) == ([1], "straggler", "one,another")
        assert parameters["confidence"] == pytest.approx(2 / 3) and parameters["agreement"] == pytest.approx(1)
        # Nobody can stop it before it is broken off: asked at once, it would be started on the other device as well, perhaps
        # before its siblings. Then it rests.
        selecting.until("the straggler rests", lambda: rests(module, client, "straggler"))
        client.close()
    assert taken_back() > before
    missing = 'punctual_selection_missing_total{member="straggler",model="slow",version="1"}'
    assert selecting.metric(missing) == 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_cascades_and_variants_go_by_confidence_and_time(selecting, protocol):
    module, client = connect(selecting, protocol)
    with client:
        said, parameters, _ = ask(module, client, "sure", timeout=10_000_000)
        assert (said, parameters["selected"]) == ([1], "one") and parameters["confidence"] == pytest.approx(0.9)
        said, parameters, _ = ask(module, client, "unsure", timeout=10_000_000)
        assert (said, parameters["selected"]) == ([2], "two")
        assert ask(module, client, "varied", timeout=10_000_000)[1]["selected"] == "two", "the most accurate that is in time"
        assert ask(module, client, "varied")[1]["selected"] == "one", "nobody is in a hurry: the cheapest"


def test_the_default_goes_out_when_nobody_answers(selecting):
    module, client = connect(selecting, "http")
    with client:
        said, parameters, _ = ask(module, client, "careful", x=(7, 0, 0, 0), rows=2)
        assert said == [3, 3] and parameters["default"] is True and parameters["confidence"] == 0
        assert ask(module, client, "careful")[0] == [0]
        with pytest.raises(Exception, match="must have 4|shape"):
            bad = module.InferInput("x", [1, 3], "FP32")
            bad.set_data_from_numpy(np.zeros((1, 3), np.float32))
            client.infer("careful", [bad])


def test_when_all_members_fail_that_is_said_or_the_default_goes_out(selecting):
    for protocol in PROTOCOLS:
        module, client = connect(selecting, protocol)
        with client:
            with pytest.raises(Exception, match="member .failing"):
                ask(module, client, "hopeless", x=(7, 0, 0, 0))
            said, parameters, _ = ask(module, client, "hopeful", x=(7, 0, 0, 0))
            assert (said, parameters["default"], parameters["missing"]) == ([2], True, "failing,failing_too")
            assert ask(module, client, "hopeless")[0] == [0], "they are well with other inputs"


def weight(server, endpoint, member):
    return server.metric(f'punctual_selection_weight{{member="{member}",model="{endpoint}",version="1"}}')


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_feedback_moves_exp3_for_each_user(selecting, protocol):
    module, client = connect(selecting, protocol)
    users = {f"{protocol} likes one": 1, f"{protocol} likes two": 2}
    with client:
        for _ in range(120):
            for user, label in users.items():
                _, _, ident = ask(module, client, "learning", parameters={"user": user})
                assert ident, "an answer that waits for feedback has an id"
                status, said = feedback(selecting, "learning", {"id": ident, "label": label})
                assert status == 200 and set(said["losses"].values()) <= {0.0, 1.0}
        for user, label in users.items():
            chosen = [ask(module, client, "learning", parameters={"user": user})[0][0] for _ in range(40)]
            assert chosen.count(label) > 30, f"{user}: {chosen}"


def test_exp4_weighs_its_members_by_labels(selecting):
    module, client = connect(selecting, "grpc")
    with client:
        assert ask(module, client, "weighing", request_id="first")[0] == [1]
        status, said = feedback(selecting, "weighing", {"id": "first", "loss": 1})
        assert status == 400 and "true label" in said["error"]
        assert feedback(selecting, "weighing", {"id": "first", "label": 2})[1]["losses"] == {"one": 1, "another": 1, "two": 0}
        for number in range(60):
            ask(module, client, "weighing", request_id=str(number))
            feedback(selecting, "weighing", {"id": str(number), "label": 2})
        said, parameters, _ = ask(module, client, "weighing")
        assert said == [2] and parameters["selected"] == "two" and parameters["confidence"] > 0.5


def test_feedback_that_makes_no_sense_is_a_sentence(selecting):
    module, client = connect(selecting, "http")
    with client:
        ask(module, client, "learning", request_id="mine")
        for body, code, words in [
            ({"id": "never asked", "loss": 0.5}, 404, "no answer with this id"),
            ({"id": "mine", "loss": 7}, 400, "from 0"),
            ({"id": "mine", "loss": -1}, 400, "from 0"),
            (b'{"id": "mine", "loss": NaN}', 400, "can't be read"),
            (b'{"id": "mine", "loss": 1e999}', 400, "can't be read"),
            (b"{", 400, "can't be read"),
            ({"id": "mine"}, 400, "neither"),
            ({"id": "mine", "label": 1, "loss": 1}, 400, "a label and a loss"),
            ({"id": "mine", "label": 4}, 400, "4 classes"),
            ({"id": "mine", "label": "cat"}, 400, "no class is called"),
            ({"id": "mine", "label": [1, 2]}, 400, "2 labels"),
            ({"id": "mine", "label": {}}, 400, "a number, a text"),
            ({"id": "", "loss": 0}, 400, "no id"),
            ({"id": "mine", "loss": 0, "label ": 3}, 400, "unknown field"),
        ]:
            status, said = feedback(selecting, "learning", body)
            assert status == code and words in said["error"], (body, status, said)
        assert feedback(selecting, "learning", {"id": "mine", "label": 1})[0] == 200, "wrong feedback takes nothing away"
        status, said = feedback(selecting, "learning", {"id": "mine", "label": 1})
        assert status == 409 and "before" in said["error"]
        status, said = feedback(selecting, "one", {"id": "mine", "label": 1})
        assert status == 400 and "doesn't select" in said["error"]
        assert feedback(selecting, "nobody", {"id": "mine", "label": 1})[0] == 404
        # A flood is so many sentences, and moves nothing.
        before = weight(selecting, "learning", "one")
        for number in range(300):
            assert feedback(selecting, "learning", {"id": f"made up {number}", "loss": 1})[0] == 404
        assert weight(selecting, "learning", "one") == before
        assert ask(module, client, "learning")[0][0] in (1, 2)


def test_feedback_needs_the_right_to_ask_and_the_key_that_asked(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    says(folder, "one", 1)
    says(folder, "two", 2)
    endpoint(folder, "learning", 'kind = "exp3"\nmembers = ["one", "two"]\n')
    made = {name: make_key(name, right) for name, right in KEYS.items()}
    (tmp_path / "keys").write_text("".join(line for _, line in made.values()))
    headers = {name: bearer(key) for name, (key, _) in made.items()}
    server = conftest.start(folder, "--api-keys", str(tmp_path / "keys"), cache=tmp_path / "cache")
    try:
        module, client = connect(server, "http")
        with client:
            _, _, ident = ask(module, client, "learning", headers=headers["asker"])
        statuses = {
            name: feedback(server, "learning", {"id": ident, "loss": 0}, headers.get(name, {}))[0]
            for name in ["nobody", "reader", "of_one", "other", "asker"]
        }
        assert statuses == {"nobody": 401, "reader": 403, "of_one": 403, "other": 404, "asker": 200}
    finally:
        conftest.stop(server)


def test_mistakes_are_sentences(selecting):
    def reason(name, text):
        endpoint(selecting.folder / "models", name, text)
        entries = lambda: {
            entry["name"]: entry
            for entry in json.load(
                urllib.request.urlopen(
                    urllib.request.Request(f"http://{selecting.http}/v2/repository/index", b"{}", method="POST"), timeout=10
                )
            )
        }
        selecting.until(name, lambda: entries().get(name, {}).get("reason"))
        return entries()[name]["reason"]

    (selecting.folder / "models" / "identity_fp32").symlink_to(conftest.ROOT / ".cache" / "test-models" / "identity_fp32")
    assert "there is no kind" in reason("wrong_kind", 'kind = "best"\n')
    assert "unknown field `wieghts`" in reason("wrong_key", 'kind = "split"\nwieghts = 1\nmembers = []\n')
    assert "2 at least" in reason("wrong_count", 'kind = "exp3"\nmembers = ["one"]\n')
    assert "isn't there" in reason("wrong_name", 'kind = "exp3"\nmembers = ["one", "nobody"]\n')
    assert "which \"one\" has" in reason("wrong_fit", 'kind = "exp3"\nmembers = ["one", "identity_fp32"]\n')
    assert "asks itself" in reason("wrong_circle", 'kind = "fixed"\nmodel = "wrong_circle"\n')


def test_members_that_are_replaced_under_load_leave_every_request_an_answer(selecting):
    """A canary grows while it is asked: every request is answered by one of its members."""
    module, client = connect(selecting, "http")
    file = selecting.folder / "models" / "growing" / "endpoint.toml"
    text = 'kind = "split"\nmembers = [{ model = "one", weight = %d }, { model = "two", weight = %d }]\n'
    endpoint(selecting.folder / "models", "growing", text % (1, 0))
    with client:
        selecting.until("it is there", lambda: client.is_model_ready("growing"))
        chosen = []
        for weights in [(1, 1), (0, 1)]:
            file.write_text(text % weights)
            for _ in range(50):
                chosen.append(ask(module, client, "growing")[1]["selected"])
        selecting.until("all go to the new one", lambda: ask(module, client, "growing")[1]["selected"] == "two")
        assert set(chosen) <= {"one", "two"}


def test_what_was_learnt_outlives_the_server(tmp_path):
    folder = repository(tmp_path / "models")
    server = conftest.start(folder, cache=tmp_path / "cache")
    module, client = connect(server, "http")
    with client:
        for _ in range(80):
            said, _, ident = ask(module, client, "learning", parameters={"user": "somebody"})
            feedback(server, "learning", {"id": ident, "loss": float(said == [1])})
    learnt = weight(server, "learning", "two")
    assert learnt > 0.7
    conftest.stop(server)
    # One member goes and another comes: what is known of the one that stays, stays.
    (folder / "learning" / "endpoint.toml").write_text('kind = "exp3"\nmembers = ["another", "two", "one"]\nby = "user"\n')
    server = conftest.start(folder, cache=tmp_path / "cache")
    try:
        parts = {member: weight(server, "learning", member) for member in ["one", "another", "two"]}
        assert parts["two"] > parts["another"] > parts["one"] and parts["two"] / parts["one"] == pytest.approx(
            learnt / (1 - learnt), rel=0.05
        )
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(timeout=60)
        server = conftest.start(folder, cache=tmp_path / "cache")
        assert weight(server, "learning", "two") == pytest.approx(parts["two"], rel=0.05), "a killed server leaves a store that opens"
    finally:
        conftest.stop(server)
