"""ONNX Runtime alone: one session with one thread in a loop, batch sizes in turns. Prints rows a second for each as JSON.

measure.py compare.alone FILE SECONDS SIZE...
"""

import json
import statistics
import sys
import time

import numpy as np
import onnxruntime

# In each turn every size computes so many rows, so that all of them meet the same machine.
ROWS = 16


def main():
    path, seconds, sizes = sys.argv[1], float(sys.argv[2]), [int(size) for size in sys.argv[3:]]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(1)
    inputs = {size: random.random([size, *session.get_inputs()[0].shape[1:]]).astype(np.float32) for size in sizes}
    for rows in inputs.values():
        session.run(["output"], {"input": rows})
    rates, began = {size: [] for size in sizes}, time.perf_counter()
    while not rates[sizes[-1]] or time.perf_counter() - began < seconds:
        for size, rows in inputs.items():
            runs, before = max(1, ROWS // size), time.perf_counter()
            for _ in range(runs):
                session.run(["output"], {"input": rows})
            rates[size].append(runs * size / (time.perf_counter() - before))
    print(json.dumps([{"batch": size, "rate": statistics.median(of), "turns": len(of)} for size, of in rates.items()]))


if __name__ == "__main__":
    main()
