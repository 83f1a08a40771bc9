"""Measures text in pictures on a GPU, in one call, beside what the package said on a CPU.

    PUNCTUAL_BINARY=... scripts/measure.py gpu.ocr [--devices cuda:0] [--rounds 5] [--json FILE]

Needs what `scripts/setup ocr` makes, and what `make bench ARGS=ocr` leaves: the pictures and what the package said of them. One round first is for shapes that are prepared on the GPU in the background.
"""

import argparse
import json
import pathlib
import time

from figures.bench import ocr
from figures.common import BENCH, Server

# Every picture brings shapes of its own, which the GPU has a while after they were asked for.
PREPARED_WITHIN_S = 90


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--devices", default="cuda:0")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path, help="where figures are kept")
    given = parser.parse_args()
    BENCH.mkdir(parents=True, exist_ok=True)
    package = json.loads(ocr.SAID.read_text())
    names = sorted(package["said"])
    with Server(ocr.REPOSITORY, "--devices", given.devices, log="info") as server:
        first = ocr.asked_server(server, names, 1)
        time.sleep(PREPARED_WITHIN_S)
        found = ocr.asked_server(server, names, given.rounds)
        said = pathlib.Path(server.log.name).read_text()
    figures = {
        "pictures": len(names), "equal": len(ocr.same(package, found)), "equal_at_first": len(ocr.same(package, first)), "package": ocr.summary(package["milliseconds"]),
        "first": first["summary"], "later": found["summary"], "on_the_device": said.count("on the device from now on"), "on_the_cpu": said.count("stays on the CPU"),
        "different": {name: found["said"][name] for name in names if name not in ocr.same(package, found)},
    }
    print(json.dumps(figures, indent=1))
    if given.json:
        given.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
