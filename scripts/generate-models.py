"""Writes ONNX models with seeded random weights into a model repository (Triton's layout).

Names: resnet18, resnet50, mobilenetv2 (their real shapes, batch normalisation folded into the convolutions), mlp (10x10,
for measuring overhead), filler:COUNT (models of 10 MB that differ in their weights: filler_000, ...), small:COUNT (models
that differ in kind, width and weights: small_000, ...), detector (boxes, of which non-maximum suppression picks), tests (tiny ones).
A model that is there already is kept, unless --force is given.
"""

import argparse
import pathlib
import sys

import numpy as np

from onnx_writer import FLOAT, Graph, TensorProto
from wheels import ROOT

# A data type of the Open Inference Protocol, and ONNX's name for it.
DATA_TYPES = {
    "bool": TensorProto.BOOL,
    "uint8": TensorProto.UINT8,
    "uint16": TensorProto.UINT16,
    "uint32": TensorProto.UINT32,
    "uint64": TensorProto.UINT64,
    "int8": TensorProto.INT8,
    "int16": TensorProto.INT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "fp16": TensorProto.FLOAT16,
    "fp32": TensorProto.FLOAT,
    "fp64": TensorProto.DOUBLE,
    "bf16": TensorProto.BFLOAT16,
    "bytes": TensorProto.STRING,
}


class Network:
    """A convolution net over pictures: `input` [N,3,side,side] to `output` [N,1000]."""

    def __init__(self, name, seed, side=224, rows="N"):
        self.graph = Graph(name)
        self.random = np.random.default_rng(seed)
        self.graph.input("input", FLOAT, [rows, 3, side, side])

    def normal(self, deviation, *shape):
        return self.graph.weight((self.random.standard_normal(shape) * deviation).astype(np.float32))

    def conv(self, x, inputs, outputs, kernel, stride=1, groups=1, gain=1.0):
        """A convolution with He initialisation; `gain` below 1 keeps sums of residual branches from growing."""
        fan_in = inputs // groups * kernel * kernel
        weight = self.normal(gain * np.sqrt(2.0 / fan_in), outputs, inputs // groups, kernel, kernel)
        bias = self.normal(0.1 * gain, outputs)
        pad = kernel // 2
        return self.graph.node(
            "Conv", x, weight, bias, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, group=groups
        )

    def relu(self, x):
        return self.graph.node("Relu", x)

    def relu6(self, x):
        if not hasattr(self, "bounds"):
            self.bounds = [self.graph.weight(np.array(bound, np.float32)) for bound in (0, 6)]
        return self.graph.node("Clip", x, *self.bounds)

    def add(self, x, y):
        return self.graph.node("Add", x, y)

    def classify(self, x, features):
        x = self.graph.node("GlobalAveragePool", x)
        x = self.graph.node("Flatten", x)
        weight = self.normal(1 / np.sqrt(features), features, 1000)
        self.graph.node("Gemm", x, weight, self.normal(0.1, 1000), named="output")
        self.graph.output("output", FLOAT, ["N", 1000])
        return self.graph


def resnet_stem(net):
    x = net.relu(net.conv("input", 3, 64, 7, stride=2))
    return net.graph.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])


def resnet18():
    net = Network("resnet18", seed=18)
    x, channels = resnet_stem(net), 64
    for width, stride in zip((64, 128, 256, 512), (1, 2, 2, 2)):
        for block in range(2):
            step = stride if block == 0 else 1
            y = net.relu(net.conv(x, channels, width, 3, step))
            y = net.conv(y, width, width, 3, gain=0.3)
            if step != 1 or channels != width:
                x = net.conv(x, channels, width, 1, step, gain=0.7)
            x, channels = net.relu(net.add(x, y)), width
    return net.classify(x, channels)


def resnet50():
    net = Network("resnet50", seed=50)
    x, channels = resnet_stem(net), 64
    for width, blocks, stride in zip((64, 128, 256, 512), (3, 4, 6, 3), (1, 2, 2, 2)):
        for block in range(blocks):
            step = stride if block == 0 else 1
            y = net.relu(net.conv(x, channels, width, 1))
            y = net.relu(net.conv(y, width, width, 3, step))
            y = net.conv(y, width, 4 * width, 1, gain=0.3)
            if block == 0:
                x = net.conv(x, channels, 4 * width, 1, step, gain=0.7)
            x, channels = net.relu(net.add(x, y)), 4 * width
    return net.classify(x, channels)


def mobilenetv2():
    net = Network("mobilenetv2", seed=2)
    x, channels = net.relu6(net.conv("input", 3, 32, 3, stride=2)), 32
    # Expansion, output channels, repeats, stride of the first.
    table = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for expansion, outputs, repeats, stride in table:
        for repeat in range(repeats):
            step, width = (stride if repeat == 0 else 1), channels * expansion
            y = x if expansion == 1 else net.relu6(net.conv(x, channels, width, 1))
            y = net.relu6(net.conv(y, width, width, 3, step, groups=width))
            y = net.conv(y, width, outputs, 1, gain=0.7)
            x = net.add(x, y) if step == 1 and channels == outputs else y
            channels = outputs
    return net.classify(net.relu6(net.conv(x, channels, 1280, 1)), 1280)


def perceptron(name, seed, widths):
    """Fully connected layers with a ReLU between them."""
    graph, random, x = Graph(name), np.random.default_rng(seed), "input"
    graph.input("input", FLOAT, ["N", widths[0]])
    graph.output("output", FLOAT, ["N", widths[-1]])
    last = len(widths) - 2
    for layer, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
        weight = graph.weight((random.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs)).astype(np.float32))
        bias = graph.weight((random.standard_normal(outputs) * 0.1).astype(np.float32))
        x = graph.node("Gemm", x, weight, bias, named="output" if layer == last else None)
        x = x if layer == last else graph.node("Relu", x)
    return graph


def mlp():
    return perceptron("mlp", 10, (10, 10, 10))


def filler(index):
    """About 10 MB of weights and little work."""
    return perceptron(f"filler_{index:03}", 1000 + index, (64, 1600, 1500, 64))


def small(index):
    """A network that has its widths with no other: convolutions, or fully connected layers."""
    name, width = f"small_{index:03}", 16 + index
    if index % 2:
        return perceptron(name, 2000 + index, (width, *[2 * width] * (1 + index % 3), 10))
    net = Network(name, seed=2000 + index, side=32)
    x = net.relu(net.conv("input", 3, width // 4, 3, stride=2))
    x = net.relu(net.conv(x, width // 4, width, 3, stride=2))
    return net.classify(x, width)


def detector():
    """Boxes of 8 classes at 40 by 40 places of a picture, and what non-maximum suppression leaves of them: how many
    there are depends on the picture."""
    net, places, classes = Network("detector", seed=40, side=320, rows=1), 40, 8
    graph, x, channels = net.graph, "input", 3
    for width in (32, 64, 128):
        x, channels = net.relu(net.conv(x, channels, width, 3, stride=2)), width
    for _ in range(4):
        y = net.relu(net.conv(x, channels, channels, 3))
        x = net.relu(net.add(x, net.conv(y, channels, channels, 3, gain=0.3)))
    x = net.conv(x, channels, 4 + classes, 1)
    x = graph.node("Reshape", x, graph.weight(np.array([1, 4 + classes, places**2])))
    x = graph.node("Transpose", x, perm=[0, 2, 1])

    def part(first, end):
        return graph.node("Slice", x, *[graph.weight(np.array([number])) for number in (first, end, 2)])

    # The centre is somewhere in its place of 8 by 8, and a side has 8 to 72.
    row, column = np.divmod(np.arange(places**2), places)
    least = np.stack([8 * column, 8 * row, np.full(places**2, 8), np.full(places**2, 8)], axis=1)
    spread = graph.weight(np.array([8, 8, 64, 64], np.float32))
    boxes = graph.node("Mul", graph.node("Sigmoid", part(0, 4)), spread)
    boxes = graph.node("Add", boxes, graph.weight(least[None].astype(np.float32)))
    scores = graph.node("Transpose", graph.node("Sigmoid", part(4, 4 + classes)), perm=[0, 2, 1])
    limits = [graph.weight(np.array([20])), *[graph.weight(np.array([at], np.float32)) for at in (0.5, 0.8)]]
    picked = graph.node("NonMaxSuppression", boxes, scores, *limits, center_point_box=1)
    graph.node("Gather", picked, graph.weight(np.array(1)), axis=1, named="classes")
    place = graph.node("Gather", picked, graph.weight(np.array(2)), axis=1)
    listed = graph.node("Reshape", boxes, graph.weight(np.array([-1, 4])))
    graph.node("Gather", listed, place, axis=0, named="boxes")
    graph.node("GatherND", scores, picked, named="scores")
    graph.output("boxes", FLOAT, ["count", 4])
    graph.output("scores", FLOAT, ["count"])
    graph.output("classes", TensorProto.INT64, ["count"])
    return graph


def tiny_models():
    """One identity for each data type, and one model for each way in which signatures differ."""
    for name, dtype in DATA_TYPES.items():
        graph = Graph(f"identity_{name}")
        graph.input("input", dtype, ["batch", "width"])
        graph.output("output", dtype, ["batch", "width"])
        graph.node("Identity", "input", named="output")
        yield graph

    graph = Graph("add")  # two inputs, two outputs
    graph.input("a", FLOAT, ["batch", 4])
    graph.input("b", FLOAT, ["batch", 4])
    graph.output("sum", FLOAT, ["batch", 4])
    graph.output("difference", FLOAT, ["batch", 4])
    graph.node("Add", "a", "b", named="sum")
    graph.node("Sub", "a", "b", named="difference")
    yield graph

    graph = Graph("fixed")  # a first dimension that isn't free
    graph.input("input", FLOAT, [2, 3])
    graph.output("output", FLOAT, [2, 3])
    graph.node("Neg", "input", named="output")
    yield graph

    graph = Graph("scalar")  # no dimension at all
    graph.input("input", TensorProto.INT64, [])
    graph.output("output", TensorProto.INT64, [])
    graph.node("Abs", "input", named="output")
    yield graph

    graph = Graph("nonzero")  # an output whose size depends on the values, and whose first dimension isn't the batch
    graph.input("input", FLOAT, ["batch", "width"])
    graph.output("output", TensorProto.INT64, [2, "count"])
    graph.node("NonZero", "input", named="output")
    yield graph

    graph = Graph("mixed_names")  # dynamic first dimensions that don't have the same name
    graph.input("input", FLOAT, ["rows", 3])
    graph.output("output", FLOAT, ["other", 3])
    graph.node("Neg", "input", named="output")
    yield graph

    graph = Graph("doubled")  # strings that are more than passed on
    graph.input("input", TensorProto.STRING, ["batch", "width"])
    graph.output("output", TensorProto.STRING, ["batch", "twice"])
    graph.node("Concat", "input", "input", named="output", axis=1)
    yield graph

    graph = Graph("beside_a_list")  # an output that is no tensor, as classifiers of scikit-learn have one
    graph.input("input", FLOAT, ["batch", 3])
    graph.output("output", FLOAT, ["batch", 3])
    graph.list_output("list", FLOAT)
    graph.node("Neg", "input", named="output")
    graph.node("SequenceConstruct", "input", named="list")
    yield graph

    graph = Graph("missing_operator")
    graph.input("input", FLOAT, ["batch", 3])
    graph.output("output", FLOAT, ["batch", 3])
    graph.node("NoSuchOperator", "input", named="output", domain="no.such.domain")
    yield graph

    graph = Graph("failing")  # loads, and fails when the width isn't 3
    graph.input("input", FLOAT, ["batch", "width"])
    graph.output("output", FLOAT, ["batch", "three"])
    shape = graph.weight(np.array([0, 3], np.int64))
    graph.node("Reshape", "input", shape, named="output")
    yield graph


def chosen(name):
    """The names that a word of the command line stands for, each with the function that makes the graph."""
    networks = {"resnet18": resnet18, "resnet50": resnet50, "mobilenetv2": mobilenetv2, "mlp": mlp, "detector": detector}
    if name in networks:
        return [(name, networks[name])]
    if name == "tests":
        return [(graph.name, lambda graph=graph: graph) for graph in tiny_models()]
    kind, _, count = name.partition(":")
    series = {"filler": filler, "small": small}
    if kind in series and count.isdigit():
        return [(f"{kind}_{index:03}", lambda index=index: series[kind](index)) for index in range(int(count))]
    known = ", ".join(networks)
    sys.exit(f"no model is called {name}: expected {known}, filler:COUNT, small:COUNT or tests")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "models", help="the model repository")
    parser.add_argument("--force", action="store_true", help="write models that are there already again")
    args = parser.parse_args()
    for word in args.models:
        for name, make in chosen(word):
            if args.force or not (args.out / name / "1" / "model.onnx").exists():
                make().write(args.out)


if __name__ == "__main__":
    main()
