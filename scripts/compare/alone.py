"""ONNX Runtime alone: one session with one thread in a loop, for so many seconds. Prints rows a second as JSON.

alone.py FILE BATCH SECONDS
"""

import json
import sys
import time

import numpy as np
import onnxruntime


def main():
    path, batch, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    shape = [batch, *session.get_inputs()[0].shape[1:]]
    rows = np.random.default_rng(1).random(shape).astype(np.float32)
    for _ in range(3):
        session.run(["output"], {"input": rows})
    times, began = [], time.perf_counter()
    while time.perf_counter() - began < seconds:
        before = time.perf_counter()
        session.run(["output"], {"input": rows})
        times.append(time.perf_counter() - before)
    took = time.perf_counter() - began
    print(json.dumps({"batch": batch, "rate": batch * len(times) / took, "p50_us": float(np.median(times)) * 1e6,
                      "p99_us": float(np.quantile(times, 0.99)) * 1e6, "requests": batch * len(times), "seconds": took}))


if __name__ == "__main__":
    main()
