"""What clients send can't pose as a line of the log."""

import base64
import json
import urllib.error
import urllib.parse
import urllib.request

import conftest
import pytest

FORGED = "a\n2000-01-01T00:00:00.000000Z ERROR forged"


def load(server, model, parameters):
    url = f"http://{server.http}/v2/repository/models/{urllib.parse.quote(model, safe='')}/load"
    request = urllib.request.Request(url, json.dumps({"parameters": parameters}).encode())
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    return refused.value.code, json.load(refused.value)["error"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_names_with_newlines_forge_no_log_lines(tmp_path, form):
    content = base64.b64encode(b"x").decode()
    (tmp_path / "models" / FORGED / "1").mkdir(parents=True)
    with open(tmp_path / "log", "w+") as log:
        server = conftest.start(tmp_path / "models", "--devices", "emulated:1", "--log-format", form, stderr=log, cache=tmp_path / "cache")
        try:
            code, said = load(server, FORGED, {})
            assert code == 400 and "control characters" in said, said
            code, said = load(server, FORGED, {"config": "{}", "file:1/model.onnx": content})
            assert code == 400 and "control characters" in said, said
            # The name of the model's file is quoted in the sentence that says that it is missing.
            config = json.dumps({"default_model_filename": FORGED})
            load(server, "b", {"config": config, "file:1/model.onnx": content})
        finally:
            server.process.terminate()
            server.process.wait()
        log.seek(0)
        lines = log.read().splitlines()
    quoting = [line for line in lines if "forged" in line]
    assert len(quoting) >= 2, lines
    for line in quoting:
        assert not line.startswith("2000-01-01"), line
