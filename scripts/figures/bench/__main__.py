"""Runs the parts that are named on the command line, or all of them."""

import argparse
import importlib
import signal
import sys
import time

from figures import common
from figures.bench import report

PARTS = {
    "overhead": "what the server costs: latency, rate and CPU for each request",
    "instructions": "what a request costs in instructions, counted by callgrind; beside BASELINE_BINARY, if that is set",
    "access": "what keys and TLS cost: CPU for each request",
    "cores": "one client where all cores compute together, and load that comes then",
    "overload": "twice the capacity of a CPU: goodput, lateness, refusals in time",
    "refusals": "eight emulated devices, more than they carry: who hears at once that there is no time",
    "cache": "kept answers: a hit beside a miss, and how much is found by Zipf's law",
    "pipelines": "pipelines: what one more stage costs; one deadline over three models, live and in the simulator",
    "ocr": "text in pictures, from file to lines in one call, beside a package in Python; measured when it is named",
    "models": "models with no configuration: time until ready, deadlines from the first request on",
    "isolation": "an urgent model beside batch clients that take the rest of a CPU",
    "flood": "ten quiet models beside a flooded one, on eight emulated devices",
    "emulated": "eight emulated devices, live and in the simulator",
    "many": "500 models in the memory of 50",
    "fleet": "10,000 models on 1,000 emulated devices: start, memory, processor time",
    "engine": "what a load and an execution take, against a plain session",
    "apart": "an engine in a process of its own: what that adds, and kills under load; measured when it is named",
    "steps": "built-in steps on a picture, beside Pillow and OpenCV",
    "scheduler": "events a second, and how their cost grows",
    "placement": "800 models on 20 parts; builds a solver first, so that it is measured only when it is named",
    "minilm": "sentences of different lengths on a CPU, live and simulated; a quarter of an hour",
    "simulator": "a million simulated requests, some of the paper's experiments",
}


# Named or not measured.
ON_REQUEST = ("apart", "ocr", "placement")


def main():
    listing = "\n".join(f"  {name:<10} {about}" for name, about in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="scripts/bench.sh",
        description="Measures what the project promises, on this machine.",
        epilog=f"parts:\n{listing}\n  report     docs/benchmarks.md from what was measured at this commit",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="part")
    parser.add_argument("--quick", action="store_true", help="short runs, to see that everything works")
    args = parser.parse_args()
    unknown = [part for part in args.parts if part not in PARTS and part != "report"]
    if unknown:
        parser.error(f"there is no part {unknown[0]}: expected {', '.join(PARTS)} or report")
    # Told to stop: leave no server behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    common.BENCH.mkdir(parents=True, exist_ok=True)
    failed = []
    everything = [part for part in PARTS if part not in ON_REQUEST]
    for part in [part for part in args.parts or everything if part != "report"]:
        print(f"\n== {part}: {PARTS[part]}", flush=True)
        common.wait_for_quiet()
        load_before, began = common.load_average(), time.monotonic()
        try:
            figures, details = importlib.import_module(f"figures.bench.{part}").run(args.quick)
        except common.Failed as reason:
            print(f"\n{part} could not be measured: {reason}")
            failed.append(part)
            continue
        details["seconds"] = round(time.monotonic() - began, 1)
        common.publish(part, figures, details, load_before, args.quick)
    if not args.parts or "report" in args.parts:
        try:
            print(f"\nwrote {report.write(args.quick)}")
        except common.Failed as reason:
            print(f"\nno report: {reason}")
            failed.append("report")
    if failed:
        sys.exit(f"not done: {', '.join(failed)}")


if __name__ == "__main__":
    main()
