"""The servers of the comparison: what is installed, how each is started, what it speaks, what was set."""

import dataclasses
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import urllib.parse

from figures.common import BINARY, ROOT, Failed
from figures.compare.messages import SHAPES

HERE = pathlib.Path(__file__).resolve().parent
SERVERS = HERE / "servers"
COMPARE = ROOT / ".cache" / "compare"
ENVIRONMENTS = COMPARE / "venv"
# The same version everywhere, that of scripts/setup.
ONNXRUNTIME = "onnxruntime==1.24.4"
# Rows that a server may put into one execution. ResNet-18 on one thread loses with more than 8.
MAX_BATCH = {"mlp": 32, "resnet18": 8}
# What would be sent elsewhere isn't.
QUIET = {"BENTOML_DO_NOT_TRACK": "True", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "DO_NOT_TRACK": "1"}


@dataclasses.dataclass
class Started:
    """What it takes to start one, and where it will be."""

    command: list
    environment: dict
    folder: pathlib.Path
    http_port: int
    grpc_port: int
    metrics_port: int | None = None


class Rival:
    """A server that others wrote, in a Python environment of its own."""

    name = title = ""
    packages = ()
    # By protocol: the form of its HTTP messages ("grpc" has none).
    protocols = {}
    # With and without its own batching; the one with the higher rate counts, for each protocol and number of connections.
    variants = ("plain", "batched")
    settings = ""
    start_within = 120

    @property
    def python(self):
        return ENVIRONMENTS / self.name / "bin" / "python"

    @property
    def site(self):
        return next((ENVIRONMENTS / self.name / "lib").glob("python3*")) / "site-packages"

    def versions(self):
        """The version of the first package, which is the server."""
        package = self.packages[0].split("==")[0].split("[")[0]
        script = f"import importlib.metadata as m; print(m.version('{package}'), m.version('onnxruntime'))"
        version, runtime = subprocess.run(
            [self.python, "-c", script], capture_output=True, text=True, check=True
        ).stdout.split()
        return {"package": package, "version": version, "onnxruntime": runtime}

    def install(self):
        """Makes the environment, unless it has the packages already."""
        folder, wanted = ENVIRONMENTS / self.name, "\n".join((*self.packages, ONNXRUNTIME))
        stamp = folder / "installed.txt"
        if stamp.exists() and stamp.read_text() == wanted:
            return False
        print(f"installing {self.title} into {folder.relative_to(ROOT)}", flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not self.python.exists():
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        command = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*command, *self.packages, ONNXRUNTIME]).returncode != 0:
            raise Failed(f"{self.title} can't be installed: pip says why above")
        stamp.write_text(wanted)
        return True

    def environment(self, model, http_port, grpc_port):
        """What servers/network.py reads, and nothing of this script's own environment of Python."""
        kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return {
            **kept,
            **QUIET,
            "PATH": f"{self.python.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(SERVERS),
            "PYTHONDONTWRITEBYTECODE": "1",
            "COMPARE_MODEL": model,
            "COMPARE_FILE": str(model_file(model)),
            "COMPARE_MAX_BATCH": str(MAX_BATCH[model]),
            "COMPARE_HTTP_PORT": str(http_port),
            "COMPARE_GRPC_PORT": str(grpc_port),
            # A server on one core must not be told of more; ONNX Runtime is set to one thread by itself.
            "OMP_NUM_THREADS": "1",
        }

    def prepare(self, model, part, http_port, grpc_port):
        environment = self.environment(model, http_port, grpc_port)
        return Started(self.command(), environment, fresh(self.name, model), http_port, grpc_port)

    def command(self):
        return [self.python, SERVERS / f"{self.name}_server.py"]

    def parts(self):
        """What is started together: for each part, which variants of which protocols it has."""
        return [{protocol: self.variants for protocol in self.protocols}]

    def path(self, model, variant, protocol):
        """Where an HTTP request goes."""
        return f"/{variant}/{protocol}"

    def remote_name(self, model, variant):
        """What the model is called over gRPC."""
        return f"{model}_{variant}"


class OpenInference(Rival):
    """One that speaks the protocol: its models are called MODEL_plain and MODEL_batched."""

    def path(self, model, variant, protocol):
        return f"/v2/models/{urllib.parse.quote(self.remote_name(model, variant))}/infer"


class Punctual(OpenInference):
    name, title = "punctual", "Punctual"
    protocols = {"json": "oip", "binary": "oip", "grpc": None}
    variants = ("plain",)
    settings = "`--devices cpu:1` and nothing else: batch sizes come from the profile that it takes at the start."

    def install(self):
        if not BINARY.exists():
            raise Failed(f"{BINARY} is missing: build it, or say with PUNCTUAL_BIN where it is")

    def versions(self):
        text = subprocess.run([BINARY, "--version"], capture_output=True, text=True, check=True).stdout.split()
        return {"package": "punctual", "version": text[-1], "onnxruntime": ONNXRUNTIME.split("==")[1]}

    def remote_name(self, model, variant):
        return model

    def prepare(self, model, part, http_port, grpc_port):
        folder = COMPARE / "work" / "punctual" / model
        file = folder / model / "1" / "model.onnx"
        if not file.exists():
            file.parent.mkdir(parents=True)
            shutil.copy(model_file(model), file)
        metrics_port = free_port()
        command = [BINARY, "serve", "--model-repository", folder, "--devices", "cpu:1", "--log", "warn",
                   "--http-port", http_port, "--grpc-port", grpc_port, "--metrics-port", metrics_port]
        return Started(command, dict(os.environ), ROOT, http_port, grpc_port, metrics_port)


class Triton(OpenInference):
    name, title = "triton", "Triton"
    packages = ("nvidia-pytriton==0.7.0",)
    protocols = {"json": "oip", "binary": "oip", "grpc": None}
    settings = (
        "The server of the wheel, without PyTriton's own proxy in between; a `model.py` for its Python backend (the wheel has "
        "no other), one instance. Batched: `dynamic_batching {}`, without delay. Metrics off."
    )

    def prepare(self, model, part, http_port, grpc_port):
        server = self.site / "pytriton" / "tritonserver"
        folder = fresh(self.name, model)
        backend = folder / "backends" / "python"
        shutil.copytree(server / "backends" / "python", backend)
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        stub = backend / "triton_python_backend_stub"
        shutil.copy(server / "python_backend_stubs" / version / stub.name, stub)
        for variant in self.variants:
            place = folder / "models" / self.remote_name(model, variant)
            (place / "1").mkdir(parents=True)
            shutil.copy(SERVERS / "triton" / "model.py", place / "1" / "model.py")
            (place / "config.pbtxt").write_text(triton_config(model, variant))
        environment = self.environment(model, http_port, grpc_port)
        environment["COMPARE_PATH"] = f"{SERVERS}:{self.site}"
        # The stub looks for the libraries of the wheel, and for libpython.
        environment["LD_LIBRARY_PATH"] = f"{self.site / 'nvidia_pytriton.libs'}:{library_folder(self.python)}"
        command = [server / "bin" / "tritonserver", "--model-repository", folder / "models", "--backend-directory",
                   folder / "backends", "--http-address", "127.0.0.1", "--grpc-address", "127.0.0.1", "--http-port",
                   http_port, "--grpc-port", grpc_port, "--allow-metrics", "false", "--log-info", "false"]
        return Started(command, environment, folder, http_port, grpc_port)


class Mosec(Rival):
    name, title = "mosec", "mosec"
    packages = ("mosec==0.9.8", "numpy")
    protocols = {"json": "own", "binary": "own"}
    settings = "One worker. Batched: `max_wait_time` 1 ms, the least there is. Binary: the body is the row's bytes."


class KServe(OpenInference):
    name, title = "kserve", "KServe"
    packages = ("kserve==0.21.0",)
    protocols = {"json": "oip", "binary": "oip", "grpc": None}
    variants = ("plain",)
    settings = (
        "A `kserve.Model` in its `ModelServer`, one process, access log off. Its batcher is a container of its own beside "
        "the server on Kubernetes, so there is none here."
    )


class LitServe(Rival):
    name, title = "litserve", "LitServe"
    packages = ("litserve==0.2.19", "numpy", "python-multipart")
    protocols = {"json": "own", "binary": "upload"}
    settings = (
        "One API server, one worker, `fast_queue=True`. Batched: `batch_timeout` 1 ms. Binary: an uploaded file, which is "
        "how it takes bytes; the answer is the plain bytes. What is batched is a server of its own each, because its idle "
        "workers poll."
    )

    def parts(self):
        return [{"json": ("plain",), "binary": ("plain",)}, {"json": ("batched",)}, {"binary": ("batched",)}]

    def prepare(self, model, part, http_port, grpc_port):
        started = super().prepare(model, part, http_port, grpc_port)
        ways = [f"{variant}/{protocol}" for protocol, variants in part.items() for variant in variants]
        started.environment["COMPARE_PART"] = ",".join(ways)
        return started


class MLServer(OpenInference):
    name, title = "mlserver", "MLServer"
    packages = ("mlserver==1.7.1", "uvloop<0.22")
    protocols = {"json": "oip", "grpc": None}
    settings = (
        "A custom runtime, in the server's own process (`parallel_workers` 0: with one model that is faster), metrics and "
        "debug off. Batched: `max_batch_time` 1 ms. It has no binary tensors over HTTP."
    )

    def prepare(self, model, part, http_port, grpc_port):
        folder = fresh(self.name, model)
        settings = {
            "host": "127.0.0.1", "http_port": http_port, "grpc_port": grpc_port, "metrics_endpoint": None, "debug": False,
            "parallel_workers": 0, "grpc_max_message_length": 1 << 24,
        }
        (folder / "settings.json").write_text(json.dumps(settings))
        for variant in self.variants:
            name = self.remote_name(model, variant)
            about = {
                "name": name,
                "implementation": "mlserver_runtime.Runtime",
                "inputs": [{"name": "input", "datatype": "FP32", "shape": [-1, *SHAPES[model]]}],
            }
            if variant == "batched":
                about |= {"max_batch_size": MAX_BATCH[model], "max_batch_time": 0.001}
            (folder / name).mkdir()
            (folder / name / "model-settings.json").write_text(json.dumps(about))
        command = [self.python, "-m", "mlserver.cli.main", "start", folder]
        return Started(command, self.environment(model, http_port, grpc_port), folder, http_port, grpc_port)


class BentoML(Rival):
    name, title = "bentoml", "BentoML"
    packages = ("bentoml==1.4.39",)
    protocols = {"json": "rows", "binary": "upload"}
    settings = (
        "One worker, access log and metrics off. Batched: `batchable=True`, its adaptive batching, which is for arrays in "
        "JSON only. Binary: an uploaded file; the answer is the plain bytes."
    )

    def command(self):
        return [self.python, "-m", "bentoml", "serve", "bentoml_server:Served", "--working-dir", SERVERS]

    def prepare(self, model, part, http_port, grpc_port):
        started = super().prepare(model, part, http_port, grpc_port)
        started.command += ["--host", "127.0.0.1", "--port", http_port]
        started.environment["BENTOML_HOME"] = str(started.folder)
        return started

    def parts(self):
        return [{"json": self.variants, "binary": ("plain",)}]


class Ray(Rival):
    name, title = "ray", "Ray Serve"
    packages = ("ray[serve-grpc]==2.60.0", "tritonclient[grpc]==2.73.0")
    protocols = {"json": "own", "binary": "own", "grpc": None}
    settings = (
        "One replica, its own proxy, `RAY_SERVE_THROUGHPUT_OPTIMIZED=1` (docs.ray.io, \"Enable High Throughput on Ray Serve\"; "
        "without the HAProxy that is named there too), access log off, no dashboard. Batched: `@serve.batch` with "
        "`batch_wait_timeout_s` 1 ms. gRPC: the Open Inference Protocol's service through `grpc_servicer_functions`."
    )
    start_within = 240

    def prepare(self, model, part, http_port, grpc_port):
        started = super().prepare(model, part, http_port, grpc_port)
        started.environment["RAY_SERVE_THROUGHPUT_OPTIMIZED"] = "1"
        # The protocol's messages under the name by which they are pickled between Ray's processes.
        (started.folder / "grpc_service_pb2.py").write_text("from tritonclient.grpc.service_pb2 import *\n")
        started.environment["PYTHONPATH"] += f":{started.folder}"
        return started


ALL = [Triton(), Mosec(), KServe(), LitServe(), MLServer(), BentoML(), Ray()]
OURS = Punctual()


# ---- files and folders ----------------------------------------------------------------------------------------------


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def model_file(model):
    return COMPARE / "models" / model / "1" / "model.onnx"


def profiles(model):
    """Where our server keeps what it has measured of a model."""
    return COMPARE / "work" / OURS.name / model / ".punctual"


def fresh(name, model):
    """An empty folder for what a server writes."""
    folder = COMPARE / "work" / name / model
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def library_folder(python):
    script = "import sysconfig; print(sysconfig.get_config_var('LIBDIR') or '')"
    return subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def triton_config(model, variant):
    shape, classes = {"mlp": ("10", 10), "resnet18": ("3, 224, 224", 1000)}[model]
    batching = "dynamic_batching { }\n" if variant == "batched" else ""
    return f"""backend: "python"
max_batch_size: {MAX_BATCH[model]}
input [ {{ name: "input" data_type: TYPE_FP32 dims: [ {shape} ] }} ]
output [ {{ name: "output" data_type: TYPE_FP32 dims: [ {classes} ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
{batching}"""
