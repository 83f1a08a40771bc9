"""The figures of a comparison beside their targets, as text and as docs/comparison.md."""

import json
import pathlib
import statistics

from figures.common import ROOT, Figure
from figures.compare.messages import PROTOCOLS
from figures.compare.rivals import ALL, COMPARE, MAX_BATCH, OURS

PAGE = ROOT / "docs" / "comparison.md"
TEMPLATE = pathlib.Path(__file__).with_name("page.md")
RESULTS = COMPARE / "results.json"
TITLES = {"mlp": "the 10x10 network", "resnet18": "ResNet-18"}
# What the project promises.
RATE, CPU, ALONE = 2.5, 0.4, 0.97


class Results:
    """A comparison's runs, looked up."""

    def __init__(self, result):
        self.result = result

    def runs(self, server, model, protocol, connections):
        wanted = {"server": server, "model": model, "protocol": protocol, "connections": connections}
        return [run for run in self.result["runs"] if all(run[key] == value for key, value in wanted.items())]

    def best(self, server, *where):
        """A rival's run with the higher rate of its variants; the median one of ours."""
        runs = sorted(self.runs(server, *where), key=lambda run: run["rate"])
        if not runs:
            return None
        return runs[len(runs) // 2] if server == OURS.name else runs[-1]

    def beside(self, rival, *where):
        """The run of ours that is next to a rival's."""
        return min(self.runs(OURS.name, *where), key=lambda run: abs(run["turn"] - rival["turn"]), default=None)

    def connections(self, model):
        return sorted({run["connections"] for run in self.result["runs"] if run["model"] == model})

    def models(self):
        return list(self.result["pin"])

    def alone(self, model):
        """Rows a second of ONNX Runtime alone by batch size, the median of its runs."""
        by = {}
        for run in self.result["alone"]:
            if run["model"] == model:
                by.setdefault(run["batch"], []).append(run["rate"])
        return {batch: statistics.median(rates) for batch, rates in by.items()}

    def others(self):
        """What other processes and the hypervisor took of the cores: the median, and the worst."""
        taken = sorted(run["foreign"] + run["stolen"] for run in self.result["runs"])
        return (taken[len(taken) // 2], taken[-1]) if taken else (0.0, 0.0)


def figures(result):
    results = Results(result)
    found = []
    for model in results.models():
        for protocol in PROTOCOLS:
            for connections in results.connections(model):
                where = (model, protocol, connections)
                found += against_alone(results, *where) if model == "resnet18" else against_rivals(results, *where)
    return found


def against_rivals(results, *where):
    """Ours and the rival with the highest rate, each pair measured one after the other."""
    rivals = [run for rival in ALL if (run := results.best(rival.name, *where)) and run["requests"]]
    best = max(rivals, key=lambda run: run["rate"], default=None)
    ours = best and results.beside(best, *where)
    if not ours:
        return []
    name = f"{TITLES[where[0]]}, {PROTOCOLS[where[1]]}, {where[2]} connection{'s' * (where[2] > 1)}"
    title = results.result["servers"][best["server"]]["title"]
    return [
        Figure(f"{name}: rate / best", ours["rate"] / best["rate"], "", (">=", RATE),
               f"{ours['rate']:,.0f} and {best['rate']:,.0f} ({title}) /s"),
        Figure(f"{name}: CPU / its", ours["cpu_us"] / best["cpu_us"], "", ("<=", CPU),
               f"{ours['cpu_us']:,.1f} and {best['cpu_us']:,.1f} us"),
    ]


def against_alone(results, model, protocol, connections):
    ours, alone = results.best(OURS.name, model, protocol, connections), results.alone(model)
    if not ours or not alone:
        return []
    best = max(alone, key=alone.get)
    # One client leaves the executor idle between its requests: nothing is promised there.
    target = (">=", ALONE) if connections > 1 else None
    name = f"{TITLES[model]}, {PROTOCOLS[protocol]}, {connections} connection{'s' * (connections > 1)}"
    note = f"{ours['rate']:.2f} and {alone[1]:.2f} /s; of its best, batches of {best}: {ours['rate'] / alone[best]:.3f}"
    return [Figure(f"{name}: rate / ONNX Runtime alone", ours["rate"] / alone[1], "", target, note)]


# ---- text -----------------------------------------------------------------------------------------------------------


def text(result):
    lines = [figure.line() for figure in figures(result)]
    return "\n".join(["", "figures beside their targets", *lines, ""])


def table(head, rows, numbers):
    """Markdown; columns in `numbers` are aligned right."""
    rule = ["---:" if index in numbers else "---" for index in range(len(head))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def target_table(result):
    rows = [[figure.name, figure.shown(), figure.wanted(), {"PASS": "pass"}.get(figure.verdict, figure.verdict.lower()),
             figure.note] for figure in figures(result)]
    return table(["figure", "measured", "target", "", "both"], rows, (1, 2))


def protocol_table(results, model, protocol):
    connections = results.connections(model)
    head = ["server", "batching"]
    for count in connections:
        head += [f"{count}: /s", "p50 / p99 ms", "CPU us"]
    rows = []
    for rival in [OURS, *ALL]:
        if rival.name not in results.result["servers"]:
            continue
        runs = [results.best(rival.name, model, protocol, count) for count in connections]
        if protocol not in rival.protocols:
            rows.append((-2, [rival.title, "", *["-", "", ""] * len(connections)]))
            continue
        cells = []
        for run in runs:
            cells += run_cells(run)
        last = runs[-1]["rate"] if runs and runs[-1] else -1
        rows.append((last, [f"**{rival.title}**" if rival is OURS else rival.title, batching(rival, runs), *cells]))
    rows.sort(key=lambda row: -row[0])
    return table(head, [row for _, row in rows], range(2, len(head)))


def run_cells(run):
    if not run:
        return ["not measured", "", ""]
    rate = f"{run['rate']:,.0f}" if run["rate"] >= 100 else f"{run['rate']:.1f}"
    return [rate, f"{milliseconds(run['p50_us'])} / {milliseconds(run['p99_us'])}", f"{run['cpu_us']:,.0f}"]


def milliseconds(micros):
    value = micros / 1e3
    return f"{value:.3f}" if value < 10 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def batching(rival, runs):
    """Which variant was better, in the order of the columns."""
    if len(rival.variants) == 1:
        return "planned" if rival is OURS else "none"
    return ", ".join({"plain": "off", "batched": "on"}[run["variant"]] if run else "-" for run in runs)


def alone_table(results, model):
    rows = [[str(batch), f"{rate:.2f}"] for batch, rate in sorted(results.alone(model).items())]
    return table(["rows in a batch", "rows/s"], rows, (0, 1))


def inside_table(result):
    """What our server itself says of its executions of ResNet-18."""
    rows = []
    for run in result["runs"]:
        if run["server"] == OURS.name and run["model"] == "resnet18":
            sizes = ", ".join(f"{size}: {count:,}" for size, count in run["batches"].items())
            rows.append([PROTOCOLS[run["protocol"]], str(run["connections"]), sizes, f"{run['row_ms']:.2f}",
                         f"{run['busy']:.3f}"])
    return table(["protocol", "connections", "executions by rows", "ms for a row", "executor busy"], rows, (1, 3, 4))


def settings_table(result):
    rows = []
    for rival in [OURS, *ALL]:
        about = result["servers"].get(rival.name) if result else None
        version = f"{about['package']} {about['version']}" if about else rival.packages[0] if rival.packages else "this tree"
        speaks = ", ".join(PROTOCOLS[protocol] for protocol in rival.protocols)
        rows.append([rival.title, version, speaks, rival.settings])
    return table(["server", "version", "speaks", "what was set"], rows, ())


def machine_text(result):
    about, (median, worst) = result["machine"], Results(result).others()
    minutes = result.get("seconds", 0) / 60
    return (
        f"{about['cores']} cores of {about['cpu']}, {about['memory_gib']:.0f} GiB, Linux {about['kernel']}, ONNX Runtime "
        f"{about['onnxruntime']}, commit {about['commit']}, {about['measured']}; `{result['command']}`, {minutes:.0f} minutes. "
        f"Of the cores' time, others took {median:.3f} in the median run and {worst:.3f} in the worst."
    )


def write():
    """Fills the page's template with what was measured last."""
    result = json.loads(RESULTS.read_text()) if RESULTS.exists() else None
    none = "Not measured yet: run `scripts/compare.sh`."
    parts = {"settings": settings_table(result), "max_batch": " and ".join(f"{MAX_BATCH[m]} for {TITLES[m]}" for m in TITLES)}
    for name in ("machine", "targets", "mlp", "resnet18", "alone", "inside", "failed"):
        parts[name] = none
    if result:
        results = Results(result)
        parts |= {"machine": machine_text(result), "targets": target_table(result), "failed": failed_text(result)}
        for model in results.models():
            parts[model] = "\n\n".join(
                f"### {TITLES[model][0].upper() + TITLES[model][1:]}, {title}\n\n{protocol_table(results, model, protocol)}"
                for protocol, title in PROTOCOLS.items()
            )
        if "resnet18" in results.models():
            parts |= {"alone": alone_table(results, "resnet18"), "inside": inside_table(result)}
    page = TEMPLATE.read_text()
    for name, value in parts.items():
        page = page.replace(f"@{name}@", value)
    PAGE.write_text(page)
    return PAGE.relative_to(ROOT)


def failed_text(result):
    if not result["failed"]:
        return "Every server could be measured."
    return "\n".join(f"- {what}: {reason.splitlines()[0][:200]}" for what, reason in result["failed"].items())
