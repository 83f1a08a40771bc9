"""What ONNX Runtime's own Python package computed (scripts/expected-outputs.py), as arrays."""

import dataclasses
import json
import pathlib
import struct

import numpy as np

from conftest import LEFT_OUT, ROOT

EXPECTED = ROOT / ".cache" / "expected"
NUMPY = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}


@dataclasses.dataclass
class Case:
    """A request and its outputs."""

    model: str
    batch: int
    inputs: dict  # name to (datatype, array)
    outputs: dict

    def has(self, datatype):
        return any(kind == datatype for kind, _ in [*self.inputs.values(), *self.outputs.values()])


def strings(data, shape):
    """The elements of a BYTES tensor."""
    elements = []
    while data:
        (length,) = struct.unpack_from("<I", data)
        elements.append(data[4 : 4 + length])
        data = data[4 + length :]
    return np.array(elements, object).reshape(shape)


def array(entry, data):
    if entry["datatype"] == "BYTES":
        return strings(data, entry["shape"])
    return np.frombuffer(data, NUMPY[entry["datatype"]]).reshape(entry["shape"])


def read(path):
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    sides = {}
    for side in ["inputs", "outputs"]:
        sides[side] = {}
        for entry in header[side]:
            sides[side][entry["name"]] = (entry["datatype"], array(entry, data[: entry["bytes"]]))
            data = data[entry["bytes"] :]
    return Case(header["model"], header["batch"], **sides)


def find(pattern="*"):
    """All cases of models that are served, by file name."""
    names = {path.stem: path for path in sorted(EXPECTED.glob(f"{pattern}.case"))}
    # `failing` is made to fail for some inputs; the engine's tests look at it.
    served = {name: path for name, path in names.items() if name.rsplit("-", 1)[0] not in LEFT_OUT | {"failing"}}
    assert served, f"no case in {EXPECTED}: run scripts/setup tests"
    return served


def check(case, got):
    """Compares outputs by name with what was expected."""
    for name, (datatype, expected) in case.outputs.items():
        actual = got(name)
        assert actual is not None, f"output {name} is missing"
        assert list(actual.shape) == list(expected.shape), name
        if datatype == "BYTES":
            as_bytes = [text.encode() if isinstance(text, str) else bytes(text) for text in actual.flatten()]
            assert as_bytes == list(expected.flatten()), name
        elif np.issubdtype(expected.dtype, np.floating):
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(actual, expected, err_msg=name)
