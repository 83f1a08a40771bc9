"""Writes what ONNX Runtime's own Python package computes, for tests to compare with.

For each model of the given repositories: inputs from a seed, at some batch sizes, and the outputs, as files
.cache/expected/MODEL-CASE.case: 8 bytes with the length of a JSON header, the header, and the tensors' bytes in the
protocol's binary form behind one another, inputs first. A case that is there and newer than its model is kept.
"""

import json
import pathlib
import struct
import sys

import numpy as np
import onnxruntime

from wheels import ROOT, write

EXPECTED = ROOT / ".cache" / "expected"

# The protocol's name and numpy's for each of ONNX Runtime's types. Two have no numpy type: they are compared elsewhere.
TYPES = {
    "tensor(bool)": ("BOOL", np.bool_),
    "tensor(uint8)": ("UINT8", np.uint8),
    "tensor(uint16)": ("UINT16", np.uint16),
    "tensor(uint32)": ("UINT32", np.uint32),
    "tensor(uint64)": ("UINT64", np.uint64),
    "tensor(int8)": ("INT8", np.int8),
    "tensor(int16)": ("INT16", np.int16),
    "tensor(int32)": ("INT32", np.int32),
    "tensor(int64)": ("INT64", np.int64),
    "tensor(float16)": ("FP16", np.float16),
    "tensor(float)": ("FP32", np.float32),
    "tensor(double)": ("FP64", np.float64),
    "tensor(string)": ("BYTES", np.object_),
}

# Shapes (without the batch) and values, where the model says less than it needs.
SPECIAL = {
    ("magika", "bytes"): lambda random, batch: random.integers(0, 256, (batch, 2048)),
    ("silero-vad", "input"): lambda random, batch: random.standard_normal((batch, 576)) * 0.1,
    ("silero-vad", "state"): lambda random, batch: random.standard_normal((2, batch, 128)) * 0.1,
    ("silero-vad", "sr"): lambda random, batch: np.array(16000),
    ("rapidocr-det", "x"): lambda random, batch: random.standard_normal((batch, 3, 96, 160)),
    ("rapidocr-cls", "x"): lambda random, batch: random.standard_normal((batch, 3, 48, 192)),
    ("all-minilm-l6-v2", "input_ids"): lambda random, batch: random.integers(1000, 30000, (batch, 12)),
    ("all-minilm-l6-v2", "attention_mask"): lambda random, batch: np.tril(np.ones((16, 12)), 3)[:batch] * 1,
    ("all-minilm-l6-v2", "token_type_ids"): lambda random, batch: np.zeros((batch, 12)),
    ("failing", "input"): lambda random, batch: random.standard_normal((batch, 3)),
}


def make(random, model, port, batch):
    """An input for a port of a model."""
    kind = TYPES[port.type][1]
    if (model, port.name) in SPECIAL:
        return np.asarray(SPECIAL[model, port.name](random, batch), kind)
    shape = [dim if isinstance(dim, int) else (batch if place == 0 else 5) for place, dim in enumerate(port.shape)]
    if kind is np.object_:
        words = ["", "plain", "with \0 zero", "größer", "長い" * 40]
        return np.array([words[n] for n in random.integers(0, len(words), int(np.prod(shape)))], object).reshape(shape)
    if np.issubdtype(kind, np.floating):
        return random.standard_normal(shape).astype(kind)
    return random.integers(0, 2 if kind is np.bool_ else 120, shape).astype(kind)


def binary(array):
    """The protocol's binary form."""
    if array.dtype != object:
        return np.ascontiguousarray(array).tobytes()
    strings = [text.encode() for text in array.flatten()]
    return b"".join(struct.pack("<I", len(string)) + string for string in strings)


def case(session, name, batch):
    random = np.random.default_rng(batch)
    inputs = {port.name: make(random, name, port, batch) for port in session.get_inputs()}
    outputs = session.run(None, inputs)
    tensors, data = {"inputs": [], "outputs": []}, []
    for side, ports, arrays in [
        ("inputs", session.get_inputs(), inputs.values()),
        ("outputs", session.get_outputs(), outputs),
    ]:
        for port, array in zip(ports, arrays):
            data.append(binary(array))
            entry = {"name": port.name, "datatype": TYPES[port.type][0], "shape": list(array.shape)}
            tensors[side].append(entry | {"bytes": len(data[-1])})
    header = json.dumps({"model": name, "batch": batch} | tensors).encode()
    return struct.pack("<Q", len(header)) + header + b"".join(data)


def batches(session):
    """1 and others, where every first dimension is free; not the largest for pictures, which take seconds."""
    ports = session.get_inputs() + session.get_outputs()
    if not all(port.shape and not isinstance(port.shape[0], int) for port in ports):
        return [1]
    return [1, 3] if any(224 in port.shape for port in ports) else [1, 3, 16]


def cases(file):
    name = file.parent.parent.name
    done = [path for path in EXPECTED.glob(f"{name}-[0-9]*.case") if path.stat().st_mtime > file.stat().st_mtime]
    if done:
        return
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception:  # models that are meant not to load
        return
    if all(port.type in TYPES for port in session.get_inputs() + session.get_outputs()):
        for batch in batches(session):
            write(EXPECTED / f"{name}-{batch}.case", case(session, name, batch))


def main():
    for repository in sys.argv[1:] or [ROOT / "models", ROOT / ".cache" / "test-models"]:
        for file in sorted(pathlib.Path(repository).glob("*/1/model.onnx")):
            cases(file)


if __name__ == "__main__":
    main()
