"""A running server for the tests: the one that the environment names, or one that is started here on free ports.

PUNCTUAL_HTTP, PUNCTUAL_GRPC and PUNCTUAL_METRICS (host:port) name a server that runs already and serves the repositories
`models` and `.cache/test-models`; PUNCTUAL_BIN names the binary to start otherwise (default: target/debug/punctual).
"""

import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Too slow for a test's start, and nothing that the others don't show.
LEFT_OUT = {"resnet50", "resnet18", "mobilenetv2", "filler_000", "filler_001"}
START_SECONDS = 300


@dataclasses.dataclass
class Server:
    """Where the server is."""

    http: str
    grpc: str
    metrics: str
    process: subprocess.Popen | None = None

    def metric(self, series):
        """The value of a series, 0 if it isn't there."""
        text = urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10).read().decode()
        found = re.search("^" + re.escape(series) + r" (\S+)$", text, re.MULTILINE)
        return float(found.group(1)) if found else 0.0

    def until(self, what, holds, seconds=30):
        """Waits until something holds."""
        give_up_at = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < give_up_at, f"{what}: not within {seconds} s"
            time.sleep(0.01)

    def peak_memory(self):
        """The most memory that the process ever had, in bytes."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * 1024


def repository(folder):
    """A repository of links to the sample models and the test models."""
    for source in [ROOT / "models", ROOT / ".cache" / "test-models"]:
        for model in sorted(source.iterdir()):
            if model.is_dir() and model.name not in LEFT_OUT and not model.name.startswith("."):
                (folder / model.name).symlink_to(model)
    return folder


def ignoring_the_end(call, *arguments):
    """Calls what will be cut off when the server is killed."""
    try:
        call(*arguments)
    except OSError:
        pass


def binary():
    """The program to test."""
    return os.environ.get("PUNCTUAL_BIN", str(ROOT / "target" / "debug" / "punctual"))


def start(folder, *options, stderr=None, cache=None):
    """A server on free ports; returns when its models are ready."""
    cache = cache or ROOT / ".cache" / "client-tests"
    # Tests know how many devices there are, whatever machine this is.
    devices = [] if "--devices" in options else ["--devices", "cpu:1"]
    command = [binary(), "serve", "--model-repository", str(folder), "--cache-dir", str(cache), *devices]
    command += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--profile-budget-ms", "30", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, cwd=ROOT)
    os.set_blocking(process.stdout.fileno(), False)
    said = b""
    give_up_at = time.monotonic() + START_SECONDS
    while len(found := dict(re.findall(r"^ +(HTTP|gRPC|metrics) +(?:https?://)?([^/\s]+)\S*$", said.decode(), re.M))) < 3:
        if time.monotonic() > give_up_at or process.poll() is not None:
            process.kill()
            raise RuntimeError(f"{' '.join(command)} did not say where it listens within {START_SECONDS} s: {said}")
        time.sleep(0.02)
        said += process.stdout.read() or b""
    return Server(found["HTTP"], found["gRPC"], found["metrics"], process)


def traced(folder):
    """A server with two models, in a folder that has its traces and its log; for a fixture to yield from."""
    (folder / "models").mkdir()
    for model in ["mlp", "add"]:
        (folder / "models" / model).symlink_to(ROOT / ".cache" / "test-models" / model)
    with open(folder / "log", "wb") as log:
        server = start(folder / "models", "--trace-file", str(folder / "trace"), stderr=log)
    server.folder = folder
    try:
        yield server
    finally:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    if "PUNCTUAL_HTTP" in os.environ:
        environment = os.environ
        yield Server(environment["PUNCTUAL_HTTP"], environment["PUNCTUAL_GRPC"], environment.get("PUNCTUAL_METRICS", ""))
        return
    server = start(repository(tmp_path_factory.mktemp("repository")))
    try:
        yield server
    finally:
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(timeout=60)
    assert code == 0, f"the server ended with {code}"


def stop(server):
    """Ends a server that a test started, and looks how it ended."""
    server.process.send_signal(signal.SIGTERM)
    code = server.process.wait(timeout=60)
    assert code == 0, f"the server ended with {code}"


@pytest.fixture(scope="session")
def sharing(tmp_path_factory):
    """A server with a few small models that allows shared memory."""
    folder = tmp_path_factory.mktemp("sharing")
    for model in ["add", "identity_bytes", "identity_fp32", "mlp"]:
        (folder / model).symlink_to(ROOT / ".cache" / "test-models" / model)
    labelled = folder / "labelled"
    labelled.mkdir()
    (labelled / "1").symlink_to(ROOT / ".cache" / "test-models" / "mlp" / "1")
    (labelled / "labels.txt").write_text("".join(f"label {number}\n" for number in range(8)))
    (labelled / "config.pbtxt").write_text(
        'output { name: "output" data_type: TYPE_FP32 dims: 10 label_filename: "labels.txt" } max_batch_size: 4'
    )
    server = start(folder, "--allow-shared-memory")
    yield server
    stop(server)
