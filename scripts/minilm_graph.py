"""Writes the ONNX graph of the sentence embedding all-MiniLM-L6-v2 around the weights of its safetensors file.

A BERT encoder of 6 layers, then the mean over the tokens that the mask keeps, scaled to length 1: what the model's own
pipeline does after the tokenizer.
"""

import json
import struct

import numpy as np

from onnx_writer import FLOAT, INT64, Graph

LAYERS, HEADS, HIDDEN, EPSILON = 6, 12, 384, 1e-12


def read_safetensors(data):
    """The arrays of a safetensors file: 8 bytes of header length, a JSON header, the raw little-endian data."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    kinds = {"F32": np.float32, "I64": np.int64}
    arrays = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] in kinds:
            start, end = entry["data_offsets"]
            flat = np.frombuffer(data[8 + length + start : 8 + length + end], kinds[entry["dtype"]])
            arrays[name] = flat.reshape(entry["shape"])
    return arrays


class Encoder:
    """The graph while it is being written, with the weights to write it with."""

    def __init__(self, arrays):
        self.arrays = arrays
        self.graph = Graph("all-minilm-l6-v2")
        self.op = self.graph.node
        self.constants = {}

    def constant(self, value, dtype=np.int64):
        key = (np.array(value, dtype).tobytes(), np.shape(value), dtype)
        if key not in self.constants:
            self.constants[key] = self.graph.weight(np.array(value, dtype))
        return self.constants[key]

    def linear(self, x, name):
        weight = self.graph.weight(np.ascontiguousarray(self.arrays[f"{name}.weight"].T), f"{name}.weight")
        bias = self.graph.weight(self.arrays[f"{name}.bias"], f"{name}.bias")
        return self.op("Add", self.op("MatMul", x, weight), bias)

    def layer_norm(self, x, name):
        scale = self.graph.weight(self.arrays[f"{name}.weight"], f"{name}.weight")
        bias = self.graph.weight(self.arrays[f"{name}.bias"], f"{name}.bias")
        return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=EPSILON)

    def gelu(self, x):
        inner = self.op("Erf", self.op("Div", x, self.constant(np.sqrt(2.0), np.float32)))
        scaled = self.op("Mul", x, self.op("Add", inner, self.constant(1.0, np.float32)))
        return self.op("Mul", scaled, self.constant(0.5, np.float32))

    def heads(self, x, order):
        shaped = self.op("Reshape", x, self.constant([0, 0, HEADS, HIDDEN // HEADS]))
        return self.op("Transpose", shaped, perm=order)

    def attention(self, x, mask, name):
        query = self.heads(self.linear(x, f"{name}.self.query"), [0, 2, 1, 3])
        key = self.heads(self.linear(x, f"{name}.self.key"), [0, 2, 3, 1])
        value = self.heads(self.linear(x, f"{name}.self.value"), [0, 2, 1, 3])
        scores = self.op("Div", self.op("MatMul", query, key), self.constant(np.sqrt(HIDDEN / HEADS), np.float32))
        weights = self.op("Softmax", self.op("Add", scores, mask), axis=-1)
        mixed = self.op("Transpose", self.op("MatMul", weights, value), perm=[0, 2, 1, 3])
        joined = self.op("Reshape", mixed, self.constant([0, 0, HIDDEN]))
        return self.layer_norm(self.op("Add", self.linear(joined, f"{name}.output.dense"), x), f"{name}.output.LayerNorm")

    def layer(self, x, mask, name):
        x = self.attention(x, mask, f"{name}.attention")
        inner = self.gelu(self.linear(x, f"{name}.intermediate.dense"))
        return self.layer_norm(self.op("Add", self.linear(inner, f"{name}.output.dense"), x), f"{name}.output.LayerNorm")

    def embeddings(self):
        def rows(kind, ids):
            table = self.graph.weight(self.arrays[f"embeddings.{kind}.weight"], f"embeddings.{kind}.weight")
            return self.op("Gather", table, ids)

        length = self.op("Gather", self.op("Shape", "input_ids"), self.constant(1))
        positions = self.op("Range", self.constant(0), length, self.constant(1))
        words = self.op("Add", rows("word_embeddings", "input_ids"), rows("token_type_embeddings", "token_type_ids"))
        return self.layer_norm(self.op("Add", words, rows("position_embeddings", positions)), "embeddings.LayerNorm")

    def pool(self, x):
        mask = self.op("Cast", self.op("Unsqueeze", "attention_mask", self.constant([2])), to=FLOAT)
        total = self.op("ReduceSum", self.op("Mul", x, mask), self.constant([1]), keepdims=0)
        count = self.op("ReduceSum", mask, self.constant([1]), keepdims=0)
        mean = self.op("Div", total, self.op("Max", count, self.constant(1e-9, np.float32)))
        norm = self.op("ReduceL2", mean, axes=[1], keepdims=1)
        self.op("Div", mean, self.op("Max", norm, self.constant(1e-12, np.float32)), named="sentence_embedding")

    def write(self):
        for name in ("input_ids", "attention_mask", "token_type_ids"):
            self.graph.input(name, INT64, ["batch", "sequence"])
        self.graph.output("sentence_embedding", FLOAT, ["batch", HIDDEN])
        kept = self.op("Cast", self.op("Unsqueeze", "attention_mask", self.constant([1, 2])), to=FLOAT)
        absent = self.op("Sub", self.constant(1.0, np.float32), kept)
        mask = self.op("Mul", absent, self.constant(np.finfo(np.float32).min, np.float32))
        x = self.embeddings()
        for index in range(LAYERS):
            x = self.layer(x, mask, f"encoder.layer.{index}")
        self.pool(x)
        return self.graph.bytes()


def from_safetensors(data):
    """The bytes of the ONNX model for the bytes of the safetensors file."""
    return Encoder(read_safetensors(data)).write()
