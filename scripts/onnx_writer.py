"""A few lines around onnx.helper, so that the model scripts read like the networks that they write."""

import onnx
from onnx import TensorProto, helper, numpy_helper

import wheels

OPSET = 17
IR_VERSION = 9


class Graph:
    """An ONNX graph that grows by one node at a time; every node has one output, and its name is returned."""

    def __init__(self, name):
        self.name = name
        self.nodes, self.weights, self.inputs, self.outputs = [], [], [], []

    def input(self, name, dtype, shape):
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name, dtype, shape):
        self.outputs.append(helper.make_tensor_value_info(name, dtype, shape))

    def list_output(self, name, dtype):
        self.outputs.append(helper.make_tensor_sequence_value_info(name, dtype, None))

    def weight(self, array, name=None):
        name = name or f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op, *inputs, named=None, domain="", **attributes):
        named = named or f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [named], domain=domain, **attributes))
        return named

    def bytes(self):
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.weights)
        opsets = [helper.make_opsetid("", OPSET)]
        opsets += [helper.make_opsetid(domain, 1) for domain in sorted({n.domain for n in self.nodes if n.domain})]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="punctual")
        return model.SerializeToString()

    def write(self, repository, config=None):
        """Writes the model into a model repository, in Triton's layout."""
        wheels.write(repository / self.name / "1" / "model.onnx", self.bytes())
        if config:
            wheels.write(repository / self.name / "config.pbtxt", config.encode())


FLOAT = TensorProto.FLOAT
INT64 = TensorProto.INT64

__all__ = ["FLOAT", "INT64", "Graph", "TensorProto", "onnx"]
