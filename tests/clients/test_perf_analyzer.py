"""Triton's perf_analyzer, unchanged, in all its ways of sending load: its report has the server's queue and compute times.

PERF_ANALYZER_MS is the length of one window of measurement; scripts/perf-analyzer.sh takes longer ones and shows the reports.
"""

import os
import re
import signal
import subprocess

import pytest

import conftest

PROGRAM = conftest.ROOT / ".cache" / "perf-analyzer" / "perf_analyzer"
WINDOW_MS = os.environ.get("PERF_ANALYZER_MS", "150")
HTTP, GRPC = ["-i", "http"], ["-i", "grpc"]

MODES = {
    "HTTP, concurrency 1 and 4": [*HTTP, "--concurrency-range", "1:4:3"],
    "gRPC, concurrency 1 and 4": [*GRPC, "--concurrency-range", "1:4:3"],
    "HTTP, batches of 4": [*HTTP, "-b", "4", "--concurrency-range", "2"],
    "gRPC, asynchronous": [*GRPC, "--async", "--concurrency-range", "4"],
    "gRPC, streaming": [*GRPC, "--async", "--streaming", "--concurrency-range", "4"],
    "HTTP, Poisson arrivals": [*HTTP, "--request-rate-range", "200", "--request-distribution", "poisson"],
    "gRPC, Poisson arrivals": [*GRPC, "--request-rate-range", "200", "--request-distribution", "poisson"],
    "HTTP, intervals from a file": [*HTTP, "--request-intervals", "INTERVALS"],
    "HTTP, shared memory": [*HTTP, "--shared-memory", "system", "--concurrency-range", "2"],
    "gRPC, shared memory": [*GRPC, "--shared-memory", "system", "--concurrency-range", "2"],
    # Half a second is more than even a machine with much else to do needs; the search must go up to its end.
    "HTTP, binary search": [*HTTP, "--concurrency-range", "1:4:1", "--binary-search", "-l", "500"],
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A server of its own, which lets clients use shared memory."""
    folder = tmp_path_factory.mktemp("perf-analyzer")
    (folder / "models").mkdir()
    (folder / "models" / "mlp").symlink_to(conftest.ROOT / ".cache" / "test-models" / "mlp")
    server = conftest.start(folder / "models", "--allow-shared-memory")
    (folder / "intervals").write_text("3000\n500\n1000\n8000\n" * 10)
    server.folder = folder
    try:
        yield server
    finally:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0


@pytest.mark.parametrize("mode", MODES)
def test_every_way_of_sending_load(measured, mode):
    options = [str(measured.folder / "intervals") if option == "INTERVALS" else option for option in MODES[mode]]
    address = measured.grpc if "grpc" in options else measured.http
    # Any three windows are stable enough: this is about what is in the report. On a busy machine nothing may end in some.
    command = [PROGRAM, "-m", "mlp", "-u", address, "-p", WINDOW_MS, "-s", "999", "-r", "50", *options]
    done = subprocess.run(command, cwd=measured.folder, capture_output=True, text=True, timeout=300)
    print(f"\n== {mode}\n\nperf_analyzer {' '.join(command[1:])}\n{done.stdout}")
    assert done.returncode == 0, done.stdout + done.stderr
    server_side = re.findall(
        r"Server:\s+Inference count: (\d+)\s+Execution count: (\d+)\s+Successful request count: (\d+)\s+"
        r"Avg request latency: (\d+) usec \(overhead (\d+) usec \+ queue (\d+) usec \+ compute input (\d+) usec \+ "
        r"compute infer (\d+) usec \+ compute output (\d+) usec\)",
        done.stdout,
    )
    assert server_side, done.stdout
    for report in server_side:
        inferences, executions, requests, latency, overhead, queue, gather, infer, output = map(int, report)
        rows = 4 if "-b" in options else 1
        assert 0 < executions <= inferences / rows
        # Requests that are between computing and their answers at either end of the measurement.
        assert abs(inferences - requests * rows) <= 8 * rows
        assert infer > 0
        assert abs(latency - overhead - queue - gather - infer - output) <= 5, "rounding of six numbers"
