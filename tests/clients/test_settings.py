"""Settings of traces and of the log, with Triton's clients: they can be read and changed, they do what they say, and what
makes no sense is refused."""

import http.client
import json

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

import conftest

PROTOCOLS = ["http", "grpc"]
START = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_mode": "triton",
}
LOG_START = {
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
    "log_file": "",
}


@pytest.fixture(scope="module")
def settled(tmp_path_factory):
    """A server of its own, with a file for traces and one that its log goes to."""
    yield from conftest.traced(tmp_path_factory.mktemp("settings"))


@pytest.fixture(params=PROTOCOLS)
def client(request, settled):
    """A client of either protocol; afterwards the settings are as at the start."""
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[request.param]
    with module.InferenceServerClient(getattr(settled, request.param)) as client:
        client.module, client.protocol = module, request.param
        yield client
        cleared = {"trace_level": None, "trace_rate": None, "trace_count": None, "log_frequency": None}
        for model in ["mlp", "add", None]:
            client.update_trace_settings(model, cleared)
        client.update_log_settings(LOG_START)


def plain(client, answer):
    """The settings of an answer, the same for both protocols."""
    if client.protocol == "http":
        return answer
    found = {}
    for name, setting in answer.settings.items():
        if hasattr(setting, "value"):
            found[name] = list(setting.value) if name == "trace_level" else setting.value[0]
        else:
            found[name] = getattr(setting, setting.WhichOneof("parameter_choice"))
    return found


def traces(client, model=None):
    return plain(client, client.get_trace_settings(model))


def ask(client, times=1, width=10, **options):
    tensor = client.module.InferInput("input", [1, width], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, width), np.float32))
    for _ in range(times):
        client.infer("mlp", [tensor], **options)


def test_trace_settings_are_read_and_changed_and_cleared(settled, client):
    start = {**START, "trace_file": str(settled.folder / "trace")}
    assert traces(client) == start
    changed = plain(client, client.update_trace_settings(settings={"trace_rate": "5", "log_frequency": "7"}))
    assert changed == {**start, "trace_rate": "5", "log_frequency": "7"}
    assert traces(client, "mlp") == changed, "a model without its own has the server's"
    client.update_trace_settings("mlp", {"trace_rate": "2", "trace_count": "3"})
    assert traces(client, "mlp") == {**changed, "trace_rate": "2", "trace_count": "3"}
    assert traces(client, "add") == changed
    client.update_trace_settings("mlp", {"trace_rate": None})
    assert traces(client, "mlp")["trace_rate"] == "5"


@pytest.mark.parametrize(
    "settings, match",
    [
        ({"trace_level": ["TENSORS"]}, "OFF or TIMESTAMPS is expected"),
        ({"trace_rate": "0"}, "from 1 on"),
        ({"trace_rate": "often"}, "from 1 on"),
        ({"trace_count": "-2"}, "-1 for no end"),
        ({"log_frequency": "-1"}, "a whole number is expected"),
        ({"trace_file": "/tmp/elsewhere"}, "--trace-file"),
        ({"trace_mode": "opentelemetry"}, '"triton" alone'),
        ({"trace_colour": "red"}, 'no setting "trace_colour"'),
        # Nothing is changed if anything is wrong.
        ({"log_frequency": "3", "trace_rate": "-1"}, "from 1 on"),
    ],
)
def test_bad_trace_settings_are_refused(client, settings, match):
    before = traces(client)
    with pytest.raises(InferenceServerException, match=match):
        client.update_trace_settings(settings=settings)
    assert traces(client) == before


def test_settings_of_an_unknown_model_are_refused(client):
    with pytest.raises(InferenceServerException, match='there is no model "nothing"'):
        client.update_trace_settings("nothing", {"trace_rate": "5"})
    with pytest.raises(InferenceServerException, match='there is no model "nothing"'):
        client.get_trace_settings("nothing")


def test_a_traced_request_is_in_the_file_step_by_step(settled, client):
    client.update_trace_settings("mlp", {"trace_level": ["TIMESTAMPS"], "trace_rate": "2", "trace_count": "2"})
    ask(client, times=3, request_id="before")
    ask(client, times=5, request_id=f"traced over {client.protocol}")
    assert traces(client, "mlp")["trace_count"] == "0"
    file = settled.folder / "trace"

    def written():
        return [entry["id"] for entry in json.loads(file.read_text()) if entry.get("request_id", "").startswith("traced")]

    settled.until("a trace is written", lambda: file.exists() and written())
    entries = json.loads(file.read_text())
    number = written()[-1]
    about, steps = [entry for entry in entries if entry["id"] == number]
    assert (about["model_name"], about["model_version"]) == ("mlp", 1)
    assert about["request_id"] == f"traced over {client.protocol}"
    names = [step["name"] for step in steps["timestamps"]]
    start, end = ("HTTP_RECV", "HTTP_SEND") if client.protocol == "http" else ("GRPC_WAITREAD", "GRPC_SEND")
    assert names == [
        f"{start}_START",
        f"{start}_END",
        "REQUEST_START",
        "QUEUE_START",
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
        "REQUEST_END",
        f"{end}_START",
        f"{end}_END",
    ]
    instants = [step["ns"] for step in steps["timestamps"]]
    assert instants == sorted(instants)


def test_traces_have_what_tritons_summary_asks_of_them(settled, client):
    """Also those of refused requests: each is of one protocol, and its spans end after they begin and fit into one another."""
    client.update_trace_settings("mlp", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"})
    with pytest.raises(InferenceServerException):
        ask(client, width=11)
    ask(client)
    client.update_trace_settings("mlp", {"trace_level": ["OFF"]})
    file, frontend = settled.folder / "trace", "HTTP" if client.protocol == "http" else "GRPC"

    def written():
        steps = [{step["name"]: step["ns"] for step in entry.get("timestamps", [])} for entry in json.loads(file.read_text())]
        return [found for found in steps if f"{frontend}_SEND_END" in found][-2:]

    settled.until("both are written", lambda: file.exists() and [len(found) for found in written()] == [6, 11])
    receive = "RECV" if client.protocol == "http" else "WAITREAD"
    for found in written():
        spans = [
            found[f"{name}_END"] - found[f"{name}_START"] for name in [f"{frontend}_{receive}", "REQUEST", f"{frontend}_SEND"]
        ]
        assert min(spans) >= 0
        assert found[f"{frontend}_SEND_END"] - found[f"{frontend}_{receive}_START"] >= sum(spans)


def test_with_a_frequency_traces_go_to_several_files(settled, client):
    def files():
        return list(settled.folder.glob("trace.*"))

    before = len(files())
    client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "log_frequency": "2"})
    ask(client, times=5)
    # What is left over is written when the settings change.
    client.update_trace_settings(settings={"trace_level": ["OFF"]})
    settled.until("three files", lambda: len(files()) == before + 3)
    newest = sorted(files(), key=lambda file: int(file.suffix[1:]))[-3:]
    settled.until("whole files", lambda: all(file.read_text().endswith("]\n") for file in newest))
    assert [len(json.loads(file.read_text())) for file in newest] == [4, 4, 2]


def test_log_settings_are_read_and_changed(client):
    assert plain(client, client.get_log_settings()) == LOG_START
    changes = {"log_verbose_level": 1, "log_info": False, "log_format": "ISO8601"}
    assert plain(client, client.update_log_settings(changes)) == {**LOG_START, **changes}
    assert plain(client, client.get_log_settings()) == {**LOG_START, **changes}


def test_log_settings_do_what_they_say(settled, client):
    """A file that is no model is an error in the log, and that it was seen is told as well."""
    log = settled.folder / "log"
    folder = settled.folder / "models" / f"broken_{client.protocol}"
    file = folder / "1" / "model.onnx"
    file.parent.mkdir(parents=True)

    def lines():
        # Who changed what can't be switched off.
        return [line for line in log.read_text().splitlines() if "audit: " not in line]

    def models(state):
        return settled.metric(f'punctual_models{{state="{state}"}}')

    client.update_log_settings({"log_error": False, "log_info": False, "log_warning": False})
    before = lines()
    file.write_text("not a model")
    settled.until("the model is known to be broken", lambda: models("broken") == 1 and models("loading") == 0)
    assert lines() == before, "everything is off"
    client.update_log_settings({"log_error": True})
    file.write_text("not a model either")
    settled.until("an error is logged", lambda: folder.name in log.read_text())
    new = "\n".join(lines()[len(before) :])
    assert "ERROR" in new and " INFO " not in new
    file.unlink()
    file.parent.rmdir()
    folder.rmdir()
    settled.until("it is gone", lambda: models("broken") == 0)


@pytest.mark.parametrize(
    "settings, match",
    [
        ({"log_file": "/tmp/elsewhere"}, "standard error"),
        ({"log_format": "fancy"}, "ISO8601"),
        ({"log_info": True, "log_colour": True}, 'no setting "log_colour"'),
    ],
)
def test_bad_log_settings_are_refused(client, settings, match):
    before = plain(client, client.get_log_settings())
    if client.protocol == "grpc" and "log_colour" in settings:
        pytest.skip("this client refuses it itself")
    with pytest.raises(InferenceServerException, match=match):
        client.update_log_settings(settings)
    assert plain(client, client.get_log_settings()) == before


@pytest.mark.parametrize(
    "body", [b'{"log_verbose_level": -1}', b'{"log_verbose_level": "1"}', b'{"log_info": 1}', b'{"log_info": null}', b"[]", b"{"]
)
def test_values_of_a_wrong_kind_are_refused(settled, body):
    connection = http.client.HTTPConnection(settled.http)
    connection.request("POST", "/v2/logging", body)
    response = connection.getresponse()
    assert response.status == 400
    assert json.loads(response.read())["reason"] == "bad_input"


def test_without_a_file_traces_cannot_be_turned_on(server):
    with tritonclient.http.InferenceServerClient(server.http) as client:
        with pytest.raises(InferenceServerException, match="--trace-file"):
            client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})
        assert client.get_trace_settings()["trace_level"] == ["OFF"]
