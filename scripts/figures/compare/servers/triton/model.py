"""Triton's Python backend: all requests that it hands over at once are one execution."""

import os
import sys

# The backend's interpreter doesn't read PYTHONPATH.
sys.path[:0] = os.environ["COMPARE_PATH"].split(":")

import numpy as np
import triton_python_backend_utils as utils
from network import Network


class TritonPythonModel:
    def initialize(self, _arguments):
        self.network = Network()

    def execute(self, requests):
        inputs = [utils.get_input_tensor_by_name(request, "input").as_numpy() for request in requests]
        if len(inputs) == 1:
            outputs = [self.network.run(inputs[0])]
        else:
            ends = np.cumsum([len(rows) for rows in inputs])[:-1]
            outputs = np.split(self.network.run(np.concatenate(inputs)), ends)
        return [utils.InferenceResponse([utils.Tensor("output", rows)]) for rows in outputs]
