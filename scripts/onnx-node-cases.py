"""Writes the node tests of ONNX's own package as files that crates/graph/tests/nodes.rs reads.

For each test two files: NAME.onnx, the model, and NAME.data.onnx, a graph without nodes whose initializers are the inputs
(input0, ...) and the outputs (output0, ...). Shapes, axes and the like, which the tests pass as inputs, become constants of
the model, as they are in every network that people serve.

    python scripts/onnx-node-cases.py --out .cache/onnx-nodes
"""

import argparse
import hashlib
import pathlib
import warnings

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

# The inputs that say how, not what: by operator.
PARAMETERS = {
    "Reshape": [1],
    "Expand": [1],
    "Tile": [1],
    "Slice": [1, 2, 3, 4],
    "Squeeze": [1],
    "Unsqueeze": [1],
    "Split": [1],
    "Pad": [1, 2, 3],
    "Resize": [1, 2, 3],
    "Upsample": [1],
    "TopK": [1],
    "OneHot": [1],
    "Range": [0, 1, 2],
    "ConstantOfShape": [0],
    "CumSum": [1],
    "Trilu": [1],
    "CenterCropPad": [1],
    "Col2Im": [1, 2],
    "AffineGrid": [1],
    "MaxUnpool": [2],
    "NonMaxSuppression": [2, 3, 4],
    "DFT": [1, 2],
    "STFT": [1, 3],
    "HannWindow": [0],
    "HammingWindow": [0],
    "BlackmanWindow": [0],
    "MelWeightMatrix": [0, 1, 2, 3, 4],
}
# What the name of a test ends with whose operator is written out as the nodes of its definition.
WRITTEN_OUT = "_expanded"
REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()
PARAMETERS.update({"Reduce" + kind: [1] for kind in REDUCTIONS})


def parameters(model):
    names = set()
    for node in model.graph.node:
        for position in PARAMETERS.get(node.op_type, []):
            names.update(node.input[position : position + 1])
    return names - {""}


def write(case, wanted, out):
    """Whether it could be: tests of sequences and the like can't. `wanted` are the names of inputs that say how."""
    model, (inputs, outputs) = case.model, case.data_sets[0]
    if model is None or len(inputs) != len(model.graph.input):
        return False
    arrays = [*inputs, *outputs]
    if not all(isinstance(array, (numpy.ndarray, numpy.generic, TensorProto)) for array in arrays):
        return False
    as_proto = lambda array, name: (
        array if isinstance(array, TensorProto) else numpy_helper.from_array(numpy.asarray(array), name)
    )
    copy, data, left = onnx.ModelProto(), [], []
    copy.CopyFrom(model)
    for info, array in zip(model.graph.input, inputs):
        if info.name in wanted:
            copy.graph.initializer.append(as_proto(array, info.name))
        else:
            left.append(info)
            data.append(as_proto(array, f"input{len(left) - 1}"))
    del copy.graph.input[:]
    copy.graph.input.extend(left)
    data += [as_proto(array, f"output{position}") for position, array in enumerate(outputs)]
    for proto, name in zip(data, [f"input{i}" for i in range(len(left))] + [f"output{i}" for i in range(len(outputs))]):
        proto.name = name
    held = helper.make_model(helper.make_graph([], "data", [], [], initializer=data))
    (out / f"{case.name}.onnx").write_bytes(copy.SerializeToString())
    (out / f"{case.name}.data.onnx").write_bytes(held.SerializeToString())
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out
    stamp = out / "version"
    version = f"{onnx.__version__} {hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()}"
    if stamp.exists() and stamp.read_text() == version:
        return
    warnings.simplefilter("ignore")
    from onnx.backend.test.case.node import collect_testcases

    out.mkdir(parents=True, exist_ok=True)
    cases = collect_testcases(None)
    wanted = {case.name: parameters(case.model) for case in cases if case.model is not None}
    # An operator and what it is written out as have the same inputs.
    of = lambda name: wanted.get(name, set()) | wanted.get(name.removesuffix(WRITTEN_OUT), set())
    written = sum(write(case, of(case.name), out) for case in cases)
    stamp.write_text(version)
    print(f"{written} node tests of onnx {onnx.__version__} in {out}")


if __name__ == "__main__":
    main()
