"""What is left of models that clients sent."""

import json
import pathlib

import conftest
import tritonclient.http

MODEL = conftest.ROOT / "models" / "magika" / "1" / "model.onnx"


def upload(server, name):
    client = tritonclient.http.InferenceServerClient(server.http, network_timeout=60)
    client.load_model(name, config=json.dumps({}), files={"file:1/model.onnx": MODEL.read_bytes()})
    return client


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*") if path.is_file())


def test_uploads_leave_nothing_after_they_are_unloaded(tmp_path, monkeypatch):
    temporary, cache = tmp_path / "temporary", tmp_path / "cache"
    for folder in [temporary, cache, tmp_path / "models"]:
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    server = conftest.start(tmp_path / "models", cache=cache)
    try:
        client = upload(server, "sent")
        assert any("model.onnx" in file for file in files(temporary)), "the test looks where uploads are"
        client.unload_model("sent")
        server.until("the files are gone", lambda: files(temporary) == [])
        assert files(cache) == []
        upload(server, "sent")
    finally:
        server.process.kill()
        server.process.wait()
    assert files(temporary) != [], "a server that is killed removes nothing"
    server = conftest.start(tmp_path / "models", cache=cache)
    try:
        assert files(temporary) == [] and files(cache) == []
    finally:
        server.process.kill()
        server.process.wait()
