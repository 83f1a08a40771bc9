"""Models from a bucket: a real S3 endpoint on loopback (moto), and servers that read from it."""

import json
import pathlib
import shutil
import subprocess
import urllib.request

import boto3
import pytest
from moto.server import ThreadedMotoServer

import conftest
from test_repository import LATENCY, client, index, infer, serving

# As large as makes a download of several pieces, and as a multipart upload has another kind of tag.
LARGE = 9 << 20


@pytest.fixture(scope="module")
def endpoint():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint, monkeypatch, request):
    """A bucket of its own, and the credentials for it in the environment of the servers."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    s3 = boto3.resource("s3", endpoint_url=f"http://{endpoint}")
    name = request.node.name.replace("_", "-")[:60].rstrip("-")
    return s3.create_bucket(Bucket=name)


def put_model(bucket, name, folder="models", version="1", config=LATENCY, content=b"pretended"):
    start = f"{folder}/{name}" if folder else name
    bucket.put_object(Key=f"{start}/{version}/model.onnx", Body=content)
    bucket.put_object(Key=f"{start}/config.pbtxt", Body=config.encode())


def copies(cache):
    """The copied files, with what changes when one is written again."""
    files = [path for path in cache.glob("sources/*/models/**/*") if path.is_file()]
    return {str(path.relative_to(cache)): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def test_models_are_served_from_a_bucket_and_kept(endpoint, bucket, tmp_path):
    put_model(bucket, "net", content=bytes(LARGE))
    put_model(bucket, "elsewhere", folder="other")
    url = f"s3://{endpoint}/{bucket.name}/models"
    with serving(url, cache=tmp_path) as server:
        assert infer(server, "net")[0] == 200
        assert infer(server, "elsewhere")[0] == 404
    before = copies(tmp_path)
    assert sorted(pathlib.Path(name).name for name in before) == ["config.pbtxt", "model.onnx"]
    assert next(tmp_path.glob("sources/*/models/net/1/model.onnx")).stat().st_size == LARGE
    # A restart downloads nothing, a changed object is downloaded again.
    with serving(url, cache=tmp_path) as server:
        assert infer(server, "net")[0] == 200
    assert copies(tmp_path) == before
    bucket.put_object(Key="models/net/config.pbtxt", Body=f"max_batch_size: 2 {LATENCY}".encode())
    with serving(url, cache=tmp_path) as server, client(server, "http") as asked:
        assert asked.get_model_config("net")["max_batch_size"] == 2
    changed = {name for name, state in copies(tmp_path).items() if before[name] != state}
    assert [pathlib.Path(name).name for name in changed] == ["config.pbtxt"]


def test_changes_of_a_bucket_are_noticed(endpoint, bucket, tmp_path):
    put_model(bucket, "net")
    options = ["--repository-poll-secs", "1"]
    with serving(f"s3://http://{endpoint}/{bucket.name}/models/", *options, cache=tmp_path) as server:
        put_model(bucket, "later")
        server.until("the new model is served", lambda: infer(server, "later")[0] == 200)
        bucket.put_object(Key="models/net/config.pbtxt", Body=f"max_batch_size: 3 {LATENCY}".encode())
        config = f"http://{server.http}/v2/models/net/config"
        largest = lambda: json.load(urllib.request.urlopen(config, timeout=30))["max_batch_size"]
        server.until("the change is served", lambda: largest() == 3)
        bucket.objects.filter(Prefix="models/later/").delete()
        server.until("the model is gone", lambda: infer(server, "later")[0] == 404)
        assert infer(server, "net")[0] == 200


def test_only_what_is_loaded_is_downloaded(endpoint, bucket, tmp_path):
    for name in ["first", "second"]:
        put_model(bucket, name)
    options = ["--model-control-mode", "explicit", "--load-model", "first"]
    with serving(f"s3://{endpoint}/{bucket.name}/models", *options, cache=tmp_path) as server:
        found = index(server)
        assert found["first", "1"][0] == "READY" and found["second", "1"] == ("UNAVAILABLE", "not loaded")
        assert not list(tmp_path.glob("sources/*/models/second/1/model.onnx"))
        put_model(bucket, "third")
        with client(server, "grpc") as asked:
            asked.load_model("second")
            asked.load_model("third")
        assert infer(server, "second")[0] == 200 and infer(server, "third")[0] == 200


def test_a_folder_and_a_bucket_are_served_together(endpoint, bucket, tmp_path):
    put_model(bucket, "far")
    put_model(bucket, "both")
    for name in ["near", "both"]:
        (tmp_path / "folder" / name / "1").mkdir(parents=True)
        (tmp_path / "folder" / name / "config.pbtxt").write_text(LATENCY)
    second = ["--model-repository", f"s3://{endpoint}/{bucket.name}/models"]
    with serving(tmp_path / "folder", *second, cache=tmp_path / "cache") as server:
        assert infer(server, "near")[0] == 200 and infer(server, "far")[0] == 200
        assert "several models of this name" in index(server)["both", ""][1]


def test_a_store_that_is_gone_leaves_what_was_copied(endpoint, bucket, tmp_path):
    put_model(bucket, "net")
    with serving(f"s3://{endpoint}/{bucket.name}/models", cache=tmp_path) as server:
        assert infer(server, "net")[0] == 200
    # The copy belongs to the URL: a store on a port where nobody listens gets this one's.
    closed = f"s3://127.0.0.1:9/{bucket.name}/models"
    refused = start_refused(closed, tmp_path / "empty")
    assert closed in refused and "AWS_ACCESS_KEY_ID" in refused
    bucket.objects.all().delete()
    bucket.delete()
    with serving(f"s3://{endpoint}/{bucket.name}/models", cache=tmp_path) as server:
        assert infer(server, "net")[0] == 200, "the bucket is gone, but its models were copied before"


def start_refused(url, cache):
    command = [conftest.binary(), "serve", "--devices", "emulated:1", "--model-repository", url, "--cache-dir", str(cache)]
    command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "panicked" not in done.stderr, done.stderr
    return done.stderr


def test_a_bucket_that_cannot_be_read_is_a_sentence(endpoint, bucket, tmp_path):
    said = start_refused(f"s3://{endpoint}/no-such-bucket/models", tmp_path)
    assert f"s3://{endpoint}/no-such-bucket/models can't be read" in said and "AWS_ACCESS_KEY_ID" in said
    said = start_refused(f"s3://{endpoint}", tmp_path)
    assert "names no bucket" in said


def test_objects_that_cannot_be_a_model_are_left_alone(endpoint, bucket, tmp_path):
    put_model(bucket, "net", folder="")
    for key in ["README", "net/.hidden/1/x", "marked/1/", "marked/config.pbtxt"]:
        bucket.put_object(Key=key, Body=LATENCY.encode() if key.endswith("pbtxt") else b"")
    with serving(f"s3://{endpoint}/{bucket.name}", cache=tmp_path) as server:
        # A folder that is only marked is a version, as on a disk.
        assert index(server)["marked", "1"][0] == "READY"
    assert not any("hidden" in name for name in copies(tmp_path))
    shutil.rmtree(tmp_path)
