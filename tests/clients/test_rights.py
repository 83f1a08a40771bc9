"""Who may do what: clients that aren't trusted, pages in browsers, Triton's restricted APIs, keys; and who did what."""

import contextlib
import http.client
import json
import os
import re
import subprocess
import urllib.request

import grpc
import numpy
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

import conftest

CONFIG = 'max_batch_size: 4 parameters { key: "emulated_latency" value { string_value: "alpha_ms=0.1,beta_ms=0.1" } }'
INFER = {"inputs": [{"name": "input", "shape": [1, 10], "datatype": "FP32", "data": [0.0] * 10}]}
PROTOCOLS = ["http", "grpc"]


@contextlib.contextmanager
def serving(folder, *options):
    """A server with an emulated device and the models `net` and `other`, for a while."""
    for name in ["net", "other"]:
        (folder / "models" / name / "1").mkdir(parents=True)
        (folder / "models" / name / "config.pbtxt").write_text(CONFIG)
    with open(folder / "log", "wb") as log:
        models = folder / "models"
        server = conftest.start(models, "--devices", "emulated:1", *options, stderr=log, cache=folder / "cache")
    server.folder = folder
    try:
        yield server
    finally:
        conftest.stop(server)


def client(server, protocol):
    """Triton's client."""
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[protocol]
    return module.InferenceServerClient(getattr(server, protocol))


def ask(server, path, body=None, method=None, **headers):
    """The status and the sentence of a call over HTTP, and the answer."""
    connection = http.client.HTTPConnection(server.http, timeout=30)
    method = method or ("GET" if body is None else "POST")
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    sentence = json.loads(text).get("error", "") if text.startswith("{") else ""
    connection.close()
    return answer.status, sentence, answer


def infer_inputs(module):
    """What the models take, for either of Triton's clients."""
    tensor = module.InferInput("input", [1, 10], "FP32")
    tensor.set_data_from_numpy(numpy.zeros((1, 10), numpy.float32))
    return [tensor]


def infer(server, protocol, model="net", **options):
    """Inference by Triton's client."""
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[protocol]
    with client(server, protocol) as asked:
        return asked.infer(model, infer_inputs(module), **options)


# Anybody who reaches the port may upload, replace and unload models.


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_clients_of_an_exposed_server_load_and_unload_nothing_unless_it_was_asked_for(tmp_path, protocol):
    with serving(tmp_path, "--exposed") as server, client(server, protocol) as asked:
        for order in [
            lambda: asked.unload_model("net"),
            lambda: asked.load_model("net"),
            lambda: asked.load_model("new", config="{}", files={"file:1/model.onnx": b"x"}),
        ]:
            with pytest.raises(InferenceServerException, match="--model-control-mode both"):
                order()
        assert ask(server, "/v2/models/net/infer", INFER)[0] == 200
        # The repository is watched all the same.
        (tmp_path / "models" / "later" / "1").mkdir(parents=True)
        (tmp_path / "models" / "later" / "config.pbtxt").write_text(CONFIG)
        server.until("the new model is served", lambda: ask(server, "/v2/models/later/infer", INFER)[0] == 200)


@pytest.mark.parametrize("options", [[], ["--exposed", "--model-control-mode", "both"]])
def test_this_machines_own_clients_and_those_that_were_asked_for_load_and_unload(tmp_path, options):
    with serving(tmp_path, *options) as server, client(server, "grpc") as asked:
        asked.unload_model("net")
        assert ask(server, "/v2/models/net/infer", INFER)[0] == 404
        asked.load_model("net")
        assert ask(server, "/v2/models/net/infer", INFER)[0] == 200


UNLOAD = "/v2/repository/models/net/unload"


def test_a_page_from_elsewhere_changes_nothing(tmp_path):
    with serving(tmp_path, "--cors-origin", "http://localhost:3000") as server:
        for path, body in [
            (UNLOAD, {}),
            ("/v2/repository/models/net/load", {}),
            ("/v2/logging", {"log_error": False}),
            ("/v2/trace/setting", {"trace_rate": "1"}),
            ("/v2/shares", {"shares": [1]}),
            ("/v2/systemsharedmemory/unregister", {}),
        ]:
            # What a form or a script may send to any server without asking it first.
            status, sentence, _ = ask(server, path, body, Origin="http://evil.example", Content_Type="text/plain")
            assert status == 403 and "evil.example" in sentence, path
            # The page has given the server a name of its own.
            rebound = {"Origin": "http://evil.example:8000", "Host": "evil.example:8000"}
            status, sentence, _ = ask(server, path, body, **rebound)
            assert status == 403 and "evil.example" in sentence, path
        assert ask(server, "/v2/logging", {"log_info": True}, Origin=f"http://{server.http}")[0] == 200
        assert ask(server, "/v2/logging", {"log_info": True}, Origin="http://localhost:3000")[0] == 200
        # Pages may ask, if the browser lets them see the answer or not.
        status, _, answer = ask(server, "/v2/models/net/infer", INFER, Origin="http://evil.example")
        assert status == 200 and answer.getheader("Access-Control-Allow-Origin") is None
        assert ask(server, "/v2/models/net/infer", INFER, Host="models.internal")[0] == 200
        assert ask(server, UNLOAD, {})[0] == 200, "clients that are no browsers send no Origin"


def test_pages_that_were_named_see_answers(tmp_path):
    with serving(tmp_path, "--cors-origin", "https://a.example", "--cors-origin", "http://b.example:3000") as server:
        path = "/v2/models/net/infer"
        wanted = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "authorization"}
        status, _, answer = ask(server, path, method="OPTIONS", Origin="http://b.example:3000", **wanted)
        assert status == 204
        assert answer.getheader("Access-Control-Allow-Origin") == "http://b.example:3000"
        assert answer.getheader("Access-Control-Allow-Headers") == "authorization"
        assert answer.getheader("Access-Control-Allow-Methods") == "POST"
        status, _, answer = ask(server, path, INFER, Origin="https://a.example")
        assert status == 200 and answer.getheader("Access-Control-Allow-Origin") == "https://a.example"
        assert answer.getheader("Vary") == "Origin"
        status, _, answer = ask(server, path, method="OPTIONS", Origin="https://c.example", **wanted)
        assert status == 405 and answer.getheader("Access-Control-Allow-Origin") is None
        # A page must be able to see what went wrong, too.
        status, _, answer = ask(server, "/v2/models/nothing/infer", INFER, Origin="https://a.example")
        assert status == 404 and answer.getheader("Access-Control-Allow-Origin") == "https://a.example"


# Triton's restricted APIs; what is expected is what its own tests expect (L0_http, L0_grpc).

ADMIN = {"http": {"admin-key": "admin-value"}, "grpc": {"triton-grpc-protocol-admin-key": "admin-value"}}
INFERS = {"http": {"infer-key": "infer-value"}, "grpc": {"triton-grpc-protocol-infer-key": "infer-value"}}
RESTRICTED = {"http": "This API is restricted", "grpc": "This protocol is restricted"}


@pytest.fixture(scope="module")
def restricted(tmp_path_factory):
    groups = ["model-repository:admin-key=admin-value", "inference,health,logging:infer-key=infer-value"]
    options = [f"--http-restricted-api={group}" for group in groups]
    options += [f"--grpc-restricted-protocol={group}" for group in groups]
    with serving(tmp_path_factory.mktemp("restricted"), *options) as server:
        yield server


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_restricted_apis_ask_for_their_header(restricted, protocol):
    admin, infers = ADMIN[protocol], INFERS[protocol]
    with client(restricted, protocol) as asked:
        for call in [
            lambda headers: asked.unload_model("other", headers=headers),
            lambda headers: asked.load_model("other", headers=headers),
            lambda headers: asked.get_model_repository_index(headers=headers),
        ]:
            for wrong in [None, infers, {next(iter(admin)): "admin-valu"}]:
                with pytest.raises(InferenceServerException, match=RESTRICTED[protocol]) as refused:
                    call(wrong)
                assert refused.value.status() in ["403", "StatusCode.PERMISSION_DENIED"]
            call(admin)
        with pytest.raises(InferenceServerException, match=RESTRICTED[protocol]):
            asked.get_log_settings()
        with pytest.raises(InferenceServerException, match=RESTRICTED[protocol]):
            asked.update_log_settings({"log_info": True}, headers=admin)
        asked.update_log_settings({"log_info": True}, headers=infers)
        # The others are open.
        asked.get_inference_statistics("net")
        asked.get_inference_statistics("net", headers=infers)
        asked.get_model_metadata("net")
        with pytest.raises(InferenceServerException, match=RESTRICTED[protocol]):
            infer(restricted, protocol, headers={"test": "1"})
        infer(restricted, protocol, headers=infers)


def test_health_and_streams_can_be_restricted_too(restricted):
    assert ask(restricted, "/v2/health/live")[0] == 403
    assert ask(restricted, "/readyz")[0] == 403
    assert ask(restricted, "/v2/health/live", **INFERS["http"])[0] == 200
    with grpc.insecure_channel(restricted.grpc) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        with pytest.raises(grpc.RpcError, match="This protocol is restricted") as refused:
            check(b"", timeout=30)
        assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
        assert check(b"", timeout=30, metadata=list(INFERS["grpc"].items())) == b"\x08\x01"
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        with pytest.raises(grpc.RpcError, match="This protocol is restricted"):
            list(stream(iter([]), timeout=30))
        assert list(stream(iter([]), timeout=30, metadata=list(INFERS["grpc"].items()))) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--http-restricted-api=model-repository,health:k1=v1", "--http-restricted-api=metadata,health:k2=v2"],
         "api 'health' can not be specified in multiple config groups"),
        (["--http-restricted-api=model-reposit,health:k1=v1"], "unknown restricted api 'model-reposit'"),
        (["--grpc-restricted-protocol=model-repository,health:k1=v1", "--grpc-restricted-protocol=metadata,health:k2=v2"],
         "protocol 'health' can not be specified in multiple config groups"),
        (["--grpc-restricted-protocol=model-reposit,health:k1=v1"], "unknown restricted protocol 'model-reposit'"),
        (["--cors-origin", "example.org"], "is no origin"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_sentences(options, said, tmp_path):
    command = [conftest.binary(), "serve", "--devices", "emulated:1", "--model-repository", str(tmp_path), *options]
    command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and said in done.stderr and "panicked" not in done.stderr, done.stderr


# Keys and rights.


def make_key(name, *rights):
    """A new key and its line."""
    command = [conftest.binary(), "key", name, *rights]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stderr.split()[-1], done.stdout


def bearer(key, protocol="http"):
    """The header that has a key."""
    return {"Authorization" if protocol == "http" else "authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keyed")
    made = {
        "net": make_key("net", "infer=ne*"),
        "reader": make_key("reader", "read"),
        "controller": make_key("controller", "control"),
        "operator": make_key("operator", "operate"),
        "all": make_key("all", "infer", "read", "control", "operate"),
    }
    (folder / "keys").write_text("# keys\n" + "".join(line for _, line in made.values()))
    # Where others reach the server, so that nothing is open for another reason.
    with serving(folder, "--exposed", "--api-keys", str(folder / "keys"), "--trace-file", str(folder / "trace")) as server:
        server.keys = {name: key for name, (key, _) in made.items()}
        yield server


def outcome(call):
    """What comes of a call by Triton's clients: nothing, or the status."""
    try:
        call()
    except InferenceServerException as refused:
        assert len(refused.message()) > 20, "there is a sentence"
        return refused.status().removeprefix("StatusCode.")
    return "done"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_key_is_good_for_its_rights_and_no_others(keyed, protocol):
    with client(keyed, protocol) as asked:
        deeds = {
            "infer": lambda headers: infer(keyed, protocol, headers=headers),
            "infer other": lambda headers: infer(keyed, protocol, "other", headers=headers),
            "read": lambda headers: asked.get_model_metadata("net", headers=headers),
            "read server": lambda headers: asked.get_server_metadata(headers=headers),
            "read config": lambda headers: asked.get_model_config("net", headers=headers),
            "read statistics": lambda headers: asked.get_inference_statistics("net", headers=headers),
            "read index": lambda headers: asked.get_model_repository_index(headers=headers),
            "read log": lambda headers: asked.get_log_settings(headers=headers),
            "read trace": lambda headers: asked.get_trace_settings(headers=headers),
            "read regions": lambda headers: asked.get_system_shared_memory_status(headers=headers),
            "control": lambda headers: asked.load_model("net", headers=headers),
            "control regions": lambda headers: asked.unregister_system_shared_memory(headers=headers),
            "operate": lambda headers: asked.update_log_settings({"log_info": True}, headers=headers),
            "operate trace": lambda headers: asked.update_trace_settings(settings={"trace_rate": "7"}, headers=headers),
        }
        rights = {
            "net": {"infer"},
            "reader": {deed for deed in deeds if deed.startswith("read")},
            "controller": {deed for deed in deeds if deed.startswith("control")},
            "operator": {deed for deed in deeds if deed.startswith("operate")},
            "all": set(deeds),
        }
        unknown, forbidden = {"http": ("401", "403"), "grpc": ("UNAUTHENTICATED", "PERMISSION_DENIED")}[protocol]
        for name, key in keyed.keys.items():
            for deed, call in deeds.items():
                expected = "done" if deed in rights[name] else forbidden
                assert outcome(lambda: call(bearer(key, protocol))) == expected, (name, deed)
        for deed, call in deeds.items():
            for wrong in [None, {"authorization": "Basic abc"}, bearer("punctual-00", protocol), bearer("", protocol)]:
                assert outcome(lambda: call(wrong)) == unknown, (deed, wrong)
        # Probes need no key.
        assert asked.is_server_live() and asked.is_server_ready() and asked.is_model_ready("net")


def test_refusals_for_want_of_a_key_say_how_to_send_one(keyed):
    status, sentence, answer = ask(keyed, "/v2/models/net/infer", INFER)
    assert status == 401 and "Authorization: Bearer" in sentence and answer.getheader("WWW-Authenticate") == "Bearer"
    status, sentence, _ = ask(keyed, "/v2/models/other/infer", INFER, **bearer(keyed.keys["net"]))
    assert status == 403 and "infer=other" in sentence
    assert ask(keyed, "/v2/shares", {"shares": [1]}, **bearer(keyed.keys["reader"]))[0] == 403
    assert ask(keyed, "/v2/shares", {"shares": [1]}, **bearer(keyed.keys["controller"]))[0] == 400, "no GPU to divide"


def test_a_stream_asks_only_models_that_its_key_is_good_for(keyed):
    def answers(key):
        found = []
        with client(keyed, "grpc") as asked:
            asked.start_stream(lambda result, error: found.append(str(error)), headers=bearer(key, "grpc"))
            for model in ["net", "other"]:
                asked.async_stream_infer(model, infer_inputs(tritonclient.grpc))
            asked.stop_stream()
        return sorted("infer=other" in answer for answer in found)

    assert answers(keyed.keys["net"]) == [False, True]
    assert answers(keyed.keys["all"]) == [False, False]


def scrape(server, path, **headers):
    """The status of the metrics' port."""
    try:
        return urllib.request.urlopen(urllib.request.Request(f"http://{server.metrics}{path}", headers=headers), timeout=30).status
    except urllib.error.HTTPError as error:
        return error.code


def test_metrics_are_for_readers(keyed):
    for path in ["/metrics", "/scaling", "/shares"]:
        assert scrape(keyed, path) == 401
        assert scrape(keyed, path, **bearer(keyed.keys["net"])) == 403
        assert scrape(keyed, path, **bearer(keyed.keys["reader"])) == 200


def test_keys_are_changed_without_a_restart(tmp_path):
    (old, old_line), (new, new_line) = make_key("a", "infer"), make_key("a", "infer")
    keys = tmp_path / "keys"

    def write(text):
        (tmp_path / "new").write_text(text)
        os.replace(tmp_path / "new", keys)

    write(old_line)
    with serving(tmp_path, "--api-keys", str(keys)) as server:
        def status(key):
            return ask(server, "/v2/models/net/infer", INFER, **bearer(key))[0]

        assert (status(old), status(new)) == (200, 401)
        write(old_line + new_line)
        server.until("both hold", lambda: status(new) == 200)
        assert status(old) == 200
        write(new_line)
        server.until("the old one is gone", lambda: status(old) == 401)
        assert status(new) == 200
        write("nonsense")
        server.until("it is said", lambda: "stay as they were" in (tmp_path / "log").read_text())
        assert (status(old), status(new)) == (401, 200)
    log = (tmp_path / "log").read_text()
    assert old not in log and new not in log


# Switching the log off, traces of everything and dividing GPUs need a right.


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_without_keys_settings_are_changed_by_this_machines_own_users_alone(tmp_path, protocol):
    with serving(tmp_path, "--exposed", "--trace-file", str(tmp_path / "trace")) as server, client(server, protocol) as asked:
        forbidden = {"http": "403", "grpc": "PERMISSION_DENIED"}[protocol]
        assert outcome(lambda: asked.update_log_settings({"log_error": False})) == forbidden
        assert outcome(lambda: asked.update_trace_settings(settings={"trace_rate": "1"})) == forbidden
        assert outcome(lambda: asked.update_trace_settings("net", {"trace_rate": "1"})) == forbidden
        status, sentence, _ = ask(server, "/v2/shares", {"shares": [1]})
        assert status == 403 and "--api-keys" in sentence
        assert outcome(asked.get_log_settings) == outcome(asked.get_trace_settings) == "done"
        infer(server, protocol)


def test_a_restricted_api_is_open_to_those_who_know_its_header(tmp_path):
    with serving(tmp_path, "--exposed", "--http-restricted-api", "logging:k=v") as server:
        assert ask(server, "/v2/logging", {"log_info": True}, k="v")[0] == 200
        assert ask(server, "/v2/logging", {"log_info": True})[0] == 403
        assert ask(server, "/v2/trace/setting", {"trace_rate": "1"}, k="v")[0] == 403


def test_a_file_of_keys_that_makes_no_sense_is_a_sentence(tmp_path):
    for text, said in [(None, "No such file"), ("", "punctual key"), ("a b c", "line 1"), ("a", "NAME sha256:HASH")]:
        keys = tmp_path / "keys"
        keys.unlink(missing_ok=True)
        if text is not None:
            keys.write_text(text)
        command = [conftest.binary(), "serve", "--devices", "emulated:1", "--model-repository", str(tmp_path)]
        command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--api-keys", str(keys)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and said in done.stderr and str(keys) in done.stderr, done.stderr
    refused = subprocess.run([conftest.binary(), "key", "a", "write"], capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0 and "is no right" in refused.stderr and refused.stdout == ""


# A load or unload is logged without the client's address, and the log can be switched off.


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_change_is_a_line_that_says_who_from_where_what_and_the_outcome(tmp_path, protocol):
    (key, line), (other, other_line) = make_key("ops", "control", "operate"), make_key("web", "infer")
    (tmp_path / "keys").write_text(line + other_line)
    options = ["--api-keys", str(tmp_path / "keys"), "--trace-file", str(tmp_path / "trace"), "--log", "warn"]
    with serving(tmp_path, *options) as server, client(server, protocol) as asked:
        headers = bearer(key, protocol)
        deeds = [
            lambda: asked.update_log_settings({"log_info": False, "log_warning": False}, headers=headers),
            lambda: asked.update_trace_settings("net", {"trace_rate": "7"}, headers=headers),
            lambda: asked.unload_model("net", headers=headers),
            lambda: asked.load_model("net", headers=headers),
            lambda: asked.load_model("nothing", headers=headers),
            lambda: asked.register_system_shared_memory("r", "/k", 1, headers=headers),
            lambda: asked.unregister_system_shared_memory(headers=headers),
            lambda: asked.unload_model("net", headers=bearer(other, protocol)),
            lambda: asked.unload_model("net"),
        ]
        outcomes = [outcome(deed) for deed in deeds]
        assert outcomes.count("done") == 5
        infer(server, protocol, headers=bearer(other, protocol))
    log = (tmp_path / "log").read_text()
    lines = re.findall(r'audit: (.*) who=(\S+) from="127\.0\.0\.1:\d+" result="(\w+)"', log)
    said = [(who, result) for _, who, result in lines]
    done, failed = ("ops", "done"), lambda reason: ("ops", reason)
    assert said == [
        done, done, done, done, failed("model_not_found"), failed("unsupported"), done, ("web", "forbidden"), ("anybody", "unauthenticated"),
    ]  # fmt: skip
    words = [what for what, _, _ in lines]
    assert words[:4] == [
        "set the log: log_info=false log_warning=false",
        'set traces of model "net": trace_rate=7',
        'unload model "net"',
        'load model "net"',
    ]
    assert "nload" in words[7] and key not in log and other not in log


def test_calls_that_strangers_are_refused_flood_no_log(tmp_path):
    (tmp_path / "keys").write_text(make_key("ops", "control")[1])
    with serving(tmp_path, "--api-keys", str(tmp_path / "keys")) as server:
        for _ in range(50):
            assert ask(server, UNLOAD, {})[0] == 401
    assert 1 <= (tmp_path / "log").read_text().count("audit:") < 50
