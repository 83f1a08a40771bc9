"""Measures this server beside others, in turns, on this machine."""

import argparse
import json
import os
import shutil
import signal
import sys
import time

from figures import common
from figures.compare import measure, messages, report, rivals

CONNECTIONS = (1, 8, 32)
# Whole seconds that are counted, by model and number of connections; more than named here as for 32.
SPANS = {
    False: {"mlp": {1: 2, 8: 2, 32: 2}, "resnet18": {1: 2, 8: 3, 32: 3}},
    True: {"mlp": {1: 1, 8: 1, 32: 1}, "resnet18": {1: 1, 8: 2, 32: 3}},
}
# Ours is compared to a hundredth there, with ONNX Runtime alone: some requests more or less at the end must not count.
OURS_LONGER = {"mlp": 0, "resnet18": 5}
# Batches that ONNX Runtime alone is tried with.
ALONE = (1, 2, 4, 8, 16)


def arguments():
    names = [rival.name for rival in rivals.ALL]
    parser = argparse.ArgumentParser(
        prog="scripts/compare.sh",
        description="Measures this server beside others on this machine: rate, latency, the server's CPU for each request.",
    )
    parser.add_argument("--quick", action="store_true", help="short runs, to see that everything works; no page is written")
    parser.add_argument("--only", default=",".join(names), metavar="NAME,...", help=f"of {', '.join(names)}")
    parser.add_argument("--models", default="mlp,resnet18", metavar="NAME,...", help="mlp, resnet18")
    parser.add_argument("--connections", default=",".join(map(str, CONNECTIONS)), metavar="COUNT,...")
    parser.add_argument("--pin", choices=("auto", "split", "none"), default="auto",
                        help="split: the server on core 0, the load on core 1; none: both on all cores; "
                             "auto: split for mlp, none for resnet18")
    parser.add_argument("--install", action="store_true", help="only install what is missing")
    parser.add_argument("--report", action="store_true", help="only write the page from what was measured last")
    args = parser.parse_args()
    args.only, args.models = args.only.split(","), args.models.split(",")
    args.connections = [int(count) for count in args.connections.split(",")]
    for given, known in ((args.only, names), (args.models, list(messages.SHAPES))):
        for name in given:
            if name not in known:
                parser.error(f"{name!r} isn't known: expected {', '.join(known)}")
    return args


def cores(pin, model):
    """Where the server and the load may run."""
    split = pin == "split" or (pin == "auto" and model == "mlp")
    available = sorted(os.sched_getaffinity(0))
    return ([available[0]], [available[1]]) if split and len(available) > 1 else (None, None)


class Comparison:
    """A run over all servers that were asked for."""

    def __init__(self, args):
        self.args, self.began = args, time.monotonic()
        self.result = {
            "machine": common.machine(), "quick": args.quick, "command": " ".join(["scripts/compare.sh", *sys.argv[1:]]),
            "servers": {}, "runs": [], "alone": [], "failed": {}, "pin": {},
        }

    def say(self, text):
        passed = int(time.monotonic() - self.began)
        print(f"[{passed // 60:2}:{passed % 60:02}] {text}", flush=True)

    def run(self):
        chosen = [rival for rival in rivals.ALL if rival.name in self.args.only]
        ready = []
        for rival in [rivals.OURS, *chosen]:
            try:
                rival.install()
                about = {"title": rival.title, "settings": rival.settings, **rival.versions()}
                self.result["servers"][rival.name] = {**about, "protocols": list(rival.protocols)}
                ready.append(rival)
            except common.Failed as reason:
                self.fail(rival, "install", reason)
        self.began = time.monotonic()
        for model in self.args.models:
            self.model(model, ready[1:])
        self.result["seconds"] = round(time.monotonic() - self.began)
        self.keep()
        return self.result

    def model(self, model, chosen):
        common.generate(rivals.COMPARE / "models", model)
        file = rivals.model_file(model)
        reference, where = messages.Reference(file), cores(self.args.pin, model)
        self.result["pin"][model] = {"server": where[0], "load": where[1]}
        self.say(f"{model}: server on {where[0] or 'all cores'}, load on {where[1] or 'all cores'}")
        # The profile of an earlier day isn't this machine's of today.
        shutil.rmtree(rivals.profiles(model), ignore_errors=True)
        for turn, rival in enumerate(chosen):
            # Ours between the others, with what the next one speaks, so that each ratio is of neighbours. An execution of
            # ResNet-18 is long, and there three turns are enough.
            if model == "mlp":
                self.server(rivals.OURS, model, reference, where, rival.protocols, turn)
            elif turn in (0, len(chosen) // 2):
                self.ours_and_alone(model, file, reference, where, turn)
            self.server(rival, model, reference, where, None, turn)
            self.keep()
        if model != "mlp":
            self.ours_and_alone(model, file, reference, where, len(chosen))

    def ours_and_alone(self, model, file, reference, where, turn):
        for run in measure.alone(file, ALONE, 1 if self.args.quick else 8):
            self.result["alone"].append({"model": model, "turn": turn, **run})
            self.say(f"{model}: ONNX Runtime alone, batches of {run['batch']}: {run['rate']:,.1f} rows/s")
        self.server(rivals.OURS, model, reference, where, None, turn)

    def server(self, rival, model, reference, where, protocols, turn):
        for part in rival.parts():
            part = {name: part[name] for name in part if protocols is None or name in protocols}
            try:
                with measure.Running(rival, model, part, reference, where) as server:
                    self.say(f"{model}: {rival.title} answers rightly, {server.start_seconds:.1f} s after its start")
                    server.settle()
                    for protocol, variant in server.ways():
                        self.way(server, model, protocol, variant, turn)
            except common.Failed as reason:
                self.fail(rival, model, reason)

    def way(self, server, model, protocol, variant, turn):
        try:
            server.load(protocol, variant, 8, 1)  # warm
            for connections in self.args.connections:
                # Alone there is nobody to batch with, which the small network shows well enough.
                if connections > 1 or variant == "plain" or model == "mlp":
                    self.cell(server, model, protocol, variant, connections, turn)
        except common.Failed as reason:
            self.fail(server.rival, f"{model} {protocol} {variant}", reason)

    def cell(self, server, model, protocol, variant, connections, turn):
        if model != "mlp":
            # Many finish what they have begun when nobody waits for it any more.
            server.settle(3)
        spans = SPANS[self.args.quick][model]
        longer = OURS_LONGER[model] if server.rival is rivals.OURS and not self.args.quick else 0
        run = server.load(protocol, variant, connections, spans.get(connections, spans[32]) + longer)
        run |= {"server": server.rival.name, "model": model, "protocol": protocol, "connections": connections, "turn": turn}
        self.result["runs"].append(run)
        taken = run["foreign"] + run["stolen"]
        batching = f"  {variant}" if len(server.rival.variants) > 1 else ""
        others = f"  (others took {taken:.2f} of the cores)" if taken > 0.05 else ""
        self.say(f"{model}: {server.rival.title:<9} {messages.PROTOCOLS[protocol]:<11} {connections:>2} connections "
                 f"{run['rate']:>9,.1f}/s  p50 {run['p50_us'] / 1e3:>8.3f} ms  p99 {run['p99_us'] / 1e3:>8.3f} ms  "
                 f"CPU {run['cpu_us']:>8,.1f} us{batching}{others}")

    def fail(self, rival, what, reason):
        self.result["failed"][f"{rival.name} {what}"] = str(reason)
        self.say(f"{rival.title} could not be measured ({what}): {reason}")

    def keep(self):
        # A quick look doesn't replace what was measured properly.
        name = "results-quick.json" if self.args.quick else "results.json"
        rivals.COMPARE.mkdir(parents=True, exist_ok=True)
        (rivals.COMPARE / name).write_text(json.dumps(self.result, indent=1) + "\n")


def main():
    args = arguments()
    # Told to stop: leave no server behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if args.install:
        for rival in rivals.ALL:
            rival.install()
        return
    if args.report:
        print(f"wrote {report.write()}")
        return
    try:
        rivals.OURS.install()
    except common.Failed as reason:
        sys.exit(str(reason))
    for folder in ("work", "logs"):
        (rivals.COMPARE / folder).mkdir(parents=True, exist_ok=True)
    common.BENCH.mkdir(parents=True, exist_ok=True)
    comparison = Comparison(args)
    result = comparison.run()
    print(report.text(result))
    if not args.quick:
        print(f"wrote {report.write()}")
    if result["failed"]:
        sys.exit(f"not measured: {', '.join(result['failed'])}")


if __name__ == "__main__":
    sys.exit(main())
