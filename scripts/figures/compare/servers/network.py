"""The network that every server of the comparison runs: one ONNX Runtime session with one thread, settings by environment.

COMPARE_MODEL is its name, COMPARE_FILE the ONNX file, COMPARE_MAX_BATCH the rows that a server may put into one execution,
COMPARE_HTTP_PORT and COMPARE_GRPC_PORT where to listen.
"""

import os

import numpy as np
import onnxruntime

MODEL = os.environ["COMPARE_MODEL"]
FILE = os.environ["COMPARE_FILE"]
MAX_BATCH = int(os.environ["COMPARE_MAX_BATCH"])
HTTP_PORT = int(os.environ["COMPARE_HTTP_PORT"])
GRPC_PORT = int(os.environ["COMPARE_GRPC_PORT"])
# What a row has, by model.
SHAPE = {"mlp": (10,), "resnet18": (3, 224, 224)}[MODEL]
CLASSES = {"mlp": 10, "resnet18": 1000}[MODEL]
# How long a server that must be given a time waits for company; where it can be none at all, it is none.
WAIT_MS = 1


class Network:
    """Rows in, rows out."""

    def __init__(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(FILE, options, providers=["CPUExecutionProvider"])
        self.run(np.zeros((1, *SHAPE), np.float32))

    def run(self, rows):
        return self.session.run(["output"], {"input": rows})[0]

    def run_each(self, rows):
        """One execution for a list of single rows; a list of single rows comes back."""
        return list(self.run(np.stack(rows)))


def from_list(values):
    return np.asarray(values, np.float32).reshape(SHAPE)


def from_bytes(data):
    return np.frombuffer(data, np.float32).reshape(SHAPE)
