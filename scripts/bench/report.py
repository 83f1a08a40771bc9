"""Writes docs/benchmarks.md from what was measured last."""

import json

from common import RESULTS, ROOT, Failed, Figure

PAGE = ROOT / "docs" / "benchmarks.md"

HEAD = """# Benchmarks

Written by `scripts/bench.sh report` from what `make bench` measured last; numbers are not typed in. `make bench` runs
everything but the placement (about fifteen minutes, 11 GB below `.cache/bench` for the many models), `make bench
ARGS=overload` one part, `make bench ARGS="--quick overload"` a short look at it. What wasn't measured on this machine stays
as it was. Nothing here runs with the tests: times on shared machines are too noisy to fail a build. The target column says
what the project promises.

Each part starts servers of its own on free ports of this machine and loads them from this machine, so that the generator
and the server share the cores. Where a figure is a ratio, both numbers come from the same run. "Taken by others" is the
share of all cores' time that the hypervisor or other processes used meanwhile: above some hundredths, times say more about
the neighbours than about the server.
"""

PARTS = {
    "overhead": """## Overhead

A network of 10x10, which takes 6 us in ONNX Runtime, so that nearly all of the time is the server's. `wrk -t1` sends over
loopback, JSON and binary tensors in turns, some seconds each; given is the median of the repetitions that others left
alone (of all, where there are fewer than two), with the best one beside it. "Deadline" is the same model with a latency objective of 50 ms, which takes the other way through the scheduler.
CPU is user and system time of the server's process over the requests that it answered: the steadiest of these numbers. gRPC
is loaded by `punctual load`, whose own work is part of the latency. Binary tensors must be no slower than JSON; three
hundredths are noise.

At one connection every step hands over to a thread that could be asleep. In a virtual machine an idle core halts, and
waking it costs 25 us; without the short look for more work before they sleep, which the server's threads take, the median
at one connection was 90 to 106 us here on a quiet machine, and 40 us beside other work that kept the cores awake.
""",
    "overload": """## Overload

Capacity first: the best of three closed loops. Then twice that rate, Poisson, each request with a deadline of ten executions.
A server that says yes to everything would have a goodput near zero, because every answer would be late.

"The server's view" counts answers that it gave after the deadline; "from the actual send" is what the client saw, with the
way through the kernel on both sides.
""",
    "isolation": """## Isolation

A model with a deadline at 30 % of the capacity, beside clients without one on four other models of the same shape that ask
again as soon as they are answered. The paper's Clockwork kept an objective of 11.4 executions there.
""",
    "many": """## Many models

Five hundred models of 10 MB each, a device memory of 500 MB, popularity by Zipf's law (exponent 0.9), a hot model that has
a fifth of all requests. `popular` are the next 10, `middling` the 90 behind these, `rare` the other 399. Single requests
are asked one at a time: the first one of a model finds it unloaded, the second loaded.

The hot model is measured three times: alone, with as many others as fit into memory, and with all of them. From the first
to the second it shares the device; from the second to the third come the loads.
""",
    "engine": """## Engine

`cargo run --release -p engine-ort --example load_bench`, ResNet-50 (102 MB) on one thread. A plain session is what ONNX
Runtime makes of the model's file; executions of both take turns in one process.
""",
    "scheduler": """## Scheduler

`cargo run --release -p sim --example throughput`: the pure machine on one core, driven by exact devices; only the time
inside it counts.
""",
    "placement": """## Placement

`make bench ARGS=placement`, which builds the solver first. Symphony's experiment A.2: 800 models on 20 parts, 10 seconds. The
imbalance factor is (max - min) / average over the parts, of request rates and of static memory; smaller is better. Models are
drawn from the 37 of the paper's tables. Their sizes are made up, since the paper has none: four bytes for each published
parameter, 0.6 to 1.4 times that for each variant, and half of it and 64 MiB more while running. Rates are exponential. The
bounds on rate and memory are twice the averages, so that random assignments keep them. *Random* is the paper's baseline: the
best of as many random assignments as 10 s allow (1.5 to 3.2 million).

Then every rate is multiplied by something between a half and two, and a tenth of what moving everything costs may be spent (the
cost of a load or an unload is the model's size). *Random* then moves random models until the cost is spent.

Given is the lowest and the highest of five seeds. It is the exchanges that find these assignments; why the solver is there all
the same is in [note 010](notes/010-placement.md).
""",
    "minilm": """## Sentences of different lengths

`make bench ARGS=minilm`. MiniLM (all-minilm-l6-v2, its own weights) on one core, with `padding`, 4 to 256 tokens: three applications
with lognormal lengths (half of the requests with a median of 12 tokens, 30 % with 40, 20 % with 140), Poisson arrivals at 80 %
of what would be answered if every sentence ran alone. Objectives are multiples of what 99 of 100 sentences take alone at most.
*Simulated* is the same load in the simulator, with the times that were measured here.
""",
    "simulator": """## Simulator

`cargo run --release -p sim --example million` (100 models on 16 devices, all checkers on), and the files in `experiments/`
as `punctual simulate` runs them. What they show is in `docs/experiments`.
""",
}


def write():
    files = {part: RESULTS / f"{part}.json" for part in PARTS}
    results = {part: json.loads(file.read_text()) for part, file in files.items() if file.exists()}
    if not results:
        raise Failed("nothing was measured yet: run scripts/bench.sh without --quick first")
    said = said_before()
    sections = [HEAD]
    for part, text in PARTS.items():
        if part in results:
            sections += [text, table(results[part])]
        else:
            # Not measured here: what was measured elsewhere stays.
            sections.append(said.get(heading(text), text + "\nNot measured yet.\n"))
    PAGE.write_text("\n".join(sections))
    return PAGE.relative_to(ROOT)


def heading(text):
    return text.partition("\n")[0]


def said_before():
    """The sections of the page as it is, by their headings."""
    page = PAGE.read_text() if PAGE.exists() else ""
    sections = [f"## {section.rstrip()}\n" for section in page.split("\n## ")[1:]]
    return {heading(section): section for section in sections}


def table(result):
    lines = ["| figure | measured | target | |", "|---|---:|---:|---|"]
    for fields in result["figures"]:
        verdict = fields.pop("verdict")
        target = fields.pop("target")
        figure = Figure(**fields, target=tuple(target) if target else None)
        said = ", ".join(part for part in (verdict.lower(), figure.note) if part)
        lines.append(f"| {figure.name} | {figure.shown()} | {figure.wanted()} | {said} |")
    rows = {"scheduler": scheduler_rows, "placement": placement_rows}.get(result["part"])
    extra = rows(result["details"]) if rows else ""
    return "\n".join(lines) + "\n\n" + extra + caption(result)


def scheduler_rows(details):
    lines = ["| models | devices | queued | events/s | ns for each |", "|---:|---:|---:|---:|---:|"]
    for row in details["rows"]:
        names = ("models", "devices", "queued", "events_per_second", "ns")
        lines.append("| " + " | ".join(f"{row[name]:,.0f}" for name in names) + " |")
    return "\n".join(lines) + "\n\n"


def placement_rows(details):
    def shown(span, form):
        return f"{span[0]:{form}} .. {span[1]:{form}}" if span else "none kept the bounds"
    first = ["| first placement | rate | memory |", "|---|---:|---:|"]
    for row in details["first"]:
        first.append(f"| {row['how']} | {shown(row['rate'], '.5f')} | {shown(row['memory'], '.5f')} |")
    changed = ["| rates changed | rate | memory | of the cost that is allowed |", "|---|---:|---:|---:|"]
    for row in details["changed"]:
        changed.append(f"| {row['how']} | {shown(row['rate'], '.5f')} | {shown(row['memory'], '.5f')} | "
                       f"{shown(row['spent'], '.0%')} |")
    return "\n".join(first) + "\n\n" + "\n".join(changed) + "\n\n"


def caption(result):
    about = result["machine"]
    return (
        f"{about['cores']} cores of {about['cpu']}, {about['memory_gib']:.0f} GiB, Linux {about['kernel']}, ONNX Runtime "
        f"{about['onnxruntime']}, commit {about['commit']}; {about['measured']}, load average before it "
        f"{result['load_average_before']}.\n"
    )
