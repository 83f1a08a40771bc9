"""Writes docs/benchmarks-gpu.md from what was measured: no figure on it is typed.

    scripts/measure.py gpu.page RESULTS [RESULTS ...] [--commit 1234567] [--output docs/benchmarks-gpu.md]

RESULTS are folders that `scripts/measure.py gpu --results` has written, perhaps on another machine. All figures of the page are of one commit: that of --commit, or else that which most
results are of. What was measured at another isn't on it, and neither is what wasn't measured; both are named at the end of the page.
"""

import argparse
import collections
import math
import pathlib

from figures.common import ROOT
from figures.gpu import report, results
from figures.gpu.compiled import geometric_mean

PAGE = ROOT / "docs" / "benchmarks-gpu.md"

HEAD = """# NVIDIA GPUs: what was measured

How to serve on GPUs is in [gpu.md](gpu.md); why the runtime is as it is, in
[013-plans-and-kernels.md](notes/013-plans-and-kernels.md) and [014-gpu-runtime.md](notes/014-gpu-runtime.md).

`scripts/measure.py gpu` measures, and `scripts/measure.py gpu.page docs/benchmarks-gpu` writes this page of what is kept in [benchmarks-gpu](benchmarks-gpu):
numbers are not typed in, and all are of one commit. Each section has the command that measures it again.
"""


def table(head, rows):
    """In Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def us(quantiles, which="p50_us"):
    return f"{quantiles[which]:,.1f} us" if quantiles[which] < 1000 else f"{quantiles[which]:,.0f} us"


def tail(name, quantiles):
    """A row: the median, the 99th percentile, and how far the tails are from the median."""
    half = quantiles["p50_us"]
    return [name, us(quantiles), us(quantiles, "p99_us"), f"{quantiles['p999_us'] / half:.3f}", f"{quantiles['p9999_us'] / half:.3f}"]


TAIL = ["", "p50", "p99", "p99.9/p50", "p99.99/p50"]


def executions(figures):
    """Ours over PyTorch's, a line for each network and precision."""
    measured = [f"{row['model']}:{row['precision'].lower()}" for row in figures["rows"]]
    entries = list(dict.fromkeys([*measured, *figures.get("failures", {})]))
    batches = sorted({row["batch"] for row in figures["rows"]})
    rows = [{**row, "torch_ms": number(row.get("torch_ms")), "torch_error": number(row.get("torch_error"))} for row in figures["rows"]]
    return report.table(entries, batches, rows, figures.get("failures", {})) + "\n\n" + report.summary(entries, rows, figures.get("failures", {})) + "."


def number(value):
    """JSON has no NaN that everybody reads: what is missing is none."""
    return math.nan if value is None else value


def compiled(figures):
    rows = [row for row in figures["rows"] if row.get("compiled_ms")]
    ratio = lambda row: row["ms"] / row["compiled_ms"]
    lines = [[f"{row['model']} {row['precision'].lower()} b{row['batch']}", f"{row['ms']:.3f}", f"{row['compiled_ms']:.3f}", f"**{ratio(row):.2f}**"] for row in rows]
    mean = f"\n\nThe geometric mean of the {len(rows)} is {geometric_mean(list(map(ratio, rows))):.2f}, the largest {max(map(ratio, rows)):.2f}." if rows else ""
    return table(["", "ours, ms", "compiled, ms", "of it"], lines) + mean


def reference(figures):
    return table(["", "error", "PyTorch's", "steps"], [[f"{row['model']} {row['precision']}", f"{row['error']:.1e}", f"{row['torch_error']:.1e}", row["steps"]] for row in figures["rows"]])


def precision(figures):
    """What each network is computed in, how far each precision is off, and what it takes beside all of them in fp32 and in TF32."""
    rows = [row for row in figures["rows"] if "chosen" in row]
    error = lambda value: f"{value:.1e}" if value < 1e300 else "no number"
    ratios, lines = {"fp32": [], "tf32": []}, []
    for row in rows:
        measured = {entry["precision"]: entry for entry in row["measured"]}
        chosen = measured[row["chosen"]["precision"]]
        for other, found in ratios.items():
            found += [chosen["ms"][batch] / measured[other]["ms"][batch] for batch in chosen["ms"]]
        ms = lambda name: " / ".join(f"{time:.3f}" for time in measured[name]["ms"].values())
        lines.append([row["model"], f"**{row['chosen']['precision']}**", error(chosen["error"]), error(measured["tf32"]["error"]), error(measured["fp16"]["error"]), ms(row["chosen"]["precision"]), *map(ms, ("fp32", "tf32", "fp16"))])
    text = table(["", "auto", "its error", "TF32's", "fp16's", "auto, ms", "fp32, ms", "TF32, ms", "fp16, ms"], lines)
    if rows:
        over = [row["model"] for row in rows if row["chosen"]["error"] > figures["bound"]]
        largest = f"The largest error of what was chosen is {error(max(row['chosen']['error'] for row in rows))}, the bound {figures['bound']:g}" + (f"; above it: {', '.join(over)}" if over else "")
        means = [f"{geometric_mean(found):.2f} of the time of {name}" for name, found in (("fp32", ratios["fp32"]), ("TF32", ratios["tf32"]))]
        text += f"\n\n{largest}. In the geometric mean {len(rows)} networks take {' and '.join(means)} for all of them. A comparison took {max(row['compare_s'] for row in rows):.1f} s at most."
    refused = [f"- {row['model']}: {row['refused']}" for row in figures["rows"] if "refused" in row]
    return text + ("\n\nNot on the GPU:\n\n" + "\n".join(refused) if refused else "")


def ready(figures):
    """How soon, and whether what was tuned in idle time is as fast as what was tuned at the start."""
    nothing, cached, again = figures["all"]["nothing"], figures["all"]["cached"], figures["again"]
    said = [
        f"{figures['one']['model']}, from nothing: the first answer {figures['one']['first_answer_s']:.1f} s after the server was started.",
        f"{figures['count']} different models: all ready after {nothing['seconds']:.1f} s from nothing, after {cached['seconds']:.1f} s with the cache of that start.",
    ]
    if again:
        said.append(
            f"{len(figures['tuned_s'])} of them were tuned {max(figures['tuned_s'].values(), default=math.nan):.0f} s after they were ready; with that cache they are ready after {again['seconds']:.1f} s."
        )
    rows, ratios = [], []
    for model, first in figures["at_the_start"].items():
        later = figures["in_idle_time"].get(model, {"precision": "", "ms": {}})
        both = [batch for batch in first["ms"] if batch in later["ms"]]
        ratios += [later["ms"][batch] / first["ms"][batch] for batch in both]
        shown = lambda found: " / ".join(f"{found['ms'][batch]:.3f}" for batch in both)
        rows.append([model, later["precision"], shown(later), first["precision"], shown(first), " / ".join(f"{later['ms'][batch] / first['ms'][batch]:.3f}" for batch in both)])
    head = ["", "in idle time", "ms, by batch size", "at the start", "ms", "of it"]
    mean = f"\n\nIn the geometric mean, what was tuned in idle time takes {geometric_mean(ratios):.3f} of what was tuned at the start." if ratios else ""
    return " ".join(said) + ("\n\n" + table(head, rows) + mean if rows else "")


def nodes(figures):
    contested = f", {figures['contested']} more contradict their operator's definition" if figures.get("contested") else ""
    return f"{figures['right']} of {figures['right'] + figures['wrong']} are right{contested}; {figures['refused']} others have an operator or a type that isn't there, and are refused by its name."


def kernels(figures):
    return f"{figures['tried']} candidate kernels were tried, {figures['wrong']} of them wrong."


def loads(figures):
    rows = []
    for size in figures["sizes"]:
        part = size["copy"]["p50_us"] / size["load"]["p50_us"]
        unload = f"{us(size['unload'])} ({us(size['unload'], 'p99_us')})"
        rows.append([f"{size['megabytes']} MB", us(size["copy"]), us(size["load"]), f"{part:.0%}", us(size["with_new_slab"]), unload])
    return table(["weights", "plain copy", "LOAD", "of the copy's bandwidth", "LOAD with a new slab", "UNLOAD (p99)"], rows)


def fetches(figures):
    rows = [[f"{row['count']} of {row['bytes']:,} bytes", row["skipped"], us(row["times"]), f"{row['gb_per_s']:.1f}"] for row in figures["rates"]]
    return table(["inputs", "bytes into their buffers", "p50", "GB/s"], rows) + f"\n\n{figures['pieces']:,} pieces at all misalignments arrived as they should, with nothing touched next to them."


def inputs(figures):
    batches = figures["batches"]
    line = lambda name, pick: [name] + [us(pick(row)) if pick(row) else "" for row in batches]
    rows = [
        line("inputs in plain memory, copied by one core", lambda row: row["plain"]["wall"]), line("inputs in the pool, fetched by the GPU", lambda row: row["pooled"] and row["pooled"]["wall"]),
        line("the graph alone, by the device's clock", lambda row: row["plain"]["device"]), ["one behind another"] + [f"{row['each_us']:,.1f} us" if row["each_us"] else "" for row in batches],
    ]
    return table([""] + [f"b{row['batch']}" for row in batches], rows) + f"\n\n100 more models with the same file were prepared in {figures['hundred_more_ms']:,.0f} ms."


def flow(figures):
    rows = [[f"b{row['batch']}", us(row["device"]), *(f"{row[key]:,.1f} us" if row[key] else "" for key in ("each_us", "disturbed_each_us"))] for row in figures["batches"]]
    return table(["", "the graph alone, by the device's clock", "every", "every, while other kernels run"], rows)


def launches(figures):
    rows = [tail("EXEC, by our clock", figures["wall"]), tail("an empty graph, by our clock", figures["empty"]["wall"]), tail("an empty graph, by the device's clock", figures["empty"]["device"])]
    return table(TAIL, rows)


def loading(figures):
    one = next(row for row in figures["batches"] if row["batch"] == 1)
    rows = [
        tail("the whole execution, by our clock", (one["pooled"] or one["plain"])["wall"]), tail("its graph, by the device's clock", (one["pooled"] or one["plain"])["device"]),
        tail("the whole execution while others are loaded, by our clock", figures["while_loading"]["wall"]), tail("its graph while others are loaded, by the device's clock", figures["while_loading"]["device"]),
    ]
    return table(TAIL, rows) + f"\n\nMeanwhile others were loaded and unloaded at {figures['load_gb_per_s']:.1f} GB/s."


def divisions(figures):
    rows = [
        [", ".join(map(str, row["shares"])), ", ".join(map(str, row["multiprocessors"])), ", ".join(map(str, row["seen_on"])), *(f"{row[key]:,.0f} us" for key in ("contexts_us", "with_graphs_us", "gone_us"))]
        for row in figures["divisions"]
    ]
    change = figures["change"]
    stays = f"p99 of a share that stays: {us(change['alone'], 'p99_us')} alone, {us(change['during'], 'p99_us')} while another is made anew; a change takes {us(change['changes'])}"
    return table(["shares", "multiprocessors", "kernels seen on", "contexts", "with streams and graphs", "given back"], rows) + f"\n\n{stays} (p99 {us(change['changes'], 'p99_us')}, {change['changes']['count']} changes)."


def asked(found):
    """Cells of what a load generator saw."""
    return [f"{found['good']:,} of {found['requests']:,}", f"{found['late']}, {found['refused']}", f"{found['p50']:.1f}, {found['p99']:.1f}, {found['max']:.1f} ms"]


ASKED = ["in time", "late, refused", "p50, p99, max"]


def predicted(seen, action="execution"):
    quantile = seen["predictions"].get(action)
    return "" if quantile is None else f"{quantile['p99'] * 1e6:.0f} us"


def capacity(figures):
    rows = []
    for phase in figures["phases"]:
        busy = f"{phase['seen']['busy']:.0%}, {phase['seen']['link']:.0%}"
        for name in ("minor", "major"):
            rows.append([phase["title"], name, *asked(phase[name]), busy, f"{phase['seen']['cold']:.0%}", predicted(phase["seen"]), predicted(phase["seen"], "load")])
    said = f"{figures['models']:,} models, ready {figures['ready_seconds']:.0f} s after the start."
    return said + "\n\n" + table(["", "class", *ASKED, "device, link busy", "cold", "EXEC's prediction off, p99", "LOAD's"], rows)


def figure5(figures):
    rows = [[f"`{policy}`", *(f"{value:,.0f}" for value in goodput)] for policy, goodput in figures["goodput"].items()]
    return table(["goodput/s", *(f"{objective} ms" for objective in figures["objectives_ms"])], rows)


def honesty(figures):
    rows = [
        [f"`{row['policy']}`", f"{row['rate']:,.0f}", f"{row['part']:.0%}", f"{row['live']:.4f}", f"{row['simulated']:.4f}", predicted(row["seen"])] for row in figures["rates"]
    ]
    return table(["", "requests/s", "of the device", "in time", "simulated", "EXEC's prediction off, p99"], rows)


def served_shares(figures):
    return "\n\n".join(f"{row['network']}, shares {row['shares']}:\n\n```text\n{row['output']}\n```" for row in figures["networks"])


def changes(figures):
    rows = []
    for phase in figures["phases"]:
        took = f"{phase['changes']}, p50 {phase['change_p50_us']:.0f} us, max {phase['change_max_us']:.0f} us" if phase["changes"] else ""
        rows.append([phase["title"], *asked(phase["found"]), predicted(phase["seen"]), took])
    return table(["", *ASKED, "EXEC's prediction off, p99", "changes"], rows)


def sizes(figures):
    modes, parts = ({row[key]: None for row in figures["rows"]} for key in ("mode", "part"))
    of = {(row["mode"], row["part"]): row for row in figures["rows"]}
    cell = lambda row: f"{row['goodput']:,.0f}/s ({row['batch']:.1f})"
    ratio = lambda part: f"{of['default', part]['goodput'] / of['all', part]['goodput']:.3f}"
    rows = [[f"{of['all', part]['rate']:,.0f}/s ({part:.0%})", *(cell(of[mode, part]) for mode in modes), ratio(part)] for part in parts]
    added = ", ".join(map(str, figures["added"])) or "none"
    return table(["requests/s", *modes, "default / all"], rows) + f"\n\nSizes that were added: {added}."


def auto_shares(figures):
    texts = []
    for name, found in figures["loads"].items():
        modes, parts = ({row[key]: None for row in found["rows"]} for key in ("mode", "part"))
        of = {(row["mode"], row["part"]): row for row in found["rows"]}
        rows = []
        for part, model in [(part, model) for part in parts for model in next(iter(of.values()))["classes"]]:
            in_time = lambda one: f"{one['good'] / max(1, one['requests']):.4f} ({one['p99']:.1f} ms)"
            cells = [in_time(of[mode, part]["classes"][model]) for mode in modes]
            changes = of["auto", part]["changes"] if ("auto", part) in of else math.nan
            rows.append([f"{of['whole', part]['rate']:,.0f}/s ({part:.0%})", model, *cells, f"{changes:.0f}"])
        texts.append(f"`{name}`, whole GPUs answer {found['capacity']:,.0f}/s to clients that wait:\n\n" + table(["requests/s", "", *modes, "changes of `auto`"], rows))
    return "\n\n".join(texts)


def ocr(figures):
    row = lambda name, found: [name, f"{found['rate']:.1f}/s", f"{found['p50_ms']:.1f} ms", f"{found['p99_ms']:.1f} ms"]
    rows = [row("the server, its shapes prepared", figures["later"]), row("the server, each picture for the second time", figures["first"]), row("the package in Python, one CPU core", figures["package"])]
    said = f"{figures['equal']} of {figures['pictures']} pictures have the package's texts ({figures['equal_at_first']} at first)."
    return table(["", "pictures", "p50", "p99"], rows) + f"\n\n{said} {figures['on_the_device']} shapes of the three models were prepared on the GPU; {figures['on_the_cpu']} stayed on the CPU."


def lengths(figures):
    return table(["", *ASKED], [["sentences of any length", *asked(figures["found"])]]) + f"\n\nThe largest difference from ONNX Runtime on the CPU is {figures['difference']:.1e} of the largest output. 129 tokens: \"{figures['refusal']}\""


def shapes(figures):
    first, later = (", ".join(f"{span:.1f}" for span in figures[when]) for when in ("first_ms", "later_ms"))
    return (
        f"{figures['shapes']} shapes, {figures['prepared']} prepared. The first request of each took {first} ms, one after that {later} ms, over HTTP in JSON. "
        f"The largest difference from ONNX Runtime on the CPU is {figures['difference']:.1e} of the largest output."
    )


def fallback(figures):
    return f"With `--cpu-fallback false`: \"{figures['refusal']}\" By default, outputs are {'those' if figures['same'] else '**not those**'} of the CPU alone."


# Part by part, in the page's order: its title, what is measured, and how figures become text.
SECTIONS = {
    "exec": (
        "EXEC", executions,
        "One execution, ours / PyTorch's CUDA graph = ours of PyTorch's, in ms: medians of single replays by the device's events, both in one run. \"Error\" is the largest difference of any output from PyTorch's in fp32 "
        "without TF32, over the largest output; next to it PyTorch's own in the same precision. Weights are random, so that rounding isn't averaged away by what a trained network ignores: most of an error is the format's own.",
    ),
    "compiled": ("Compiled by PyTorch", compiled, "Compared with `torch.compile(mode=\"max-autotune\")`, recorded in a CUDA graph, in the same run as ours."),
    "named": (
        "Other networks", executions,
        "SSD300 and SSDlite are computed up to what their heads say; MiniLM and GPT-2 for sentences of 32 and 128 tokens from one file. An error is over the bound if it is above 1e-3 (fp16: 1e-2) and above twice PyTorch's own in that precision.",
    ),
    "reference": ("Plans without a GPU", reference, "The same networks, executed by the reference on the CPU."),
    "precision": (
        "Precision by evidence", precision,
        "Networks out of packages, with the weights of their authors: what `--precision auto` chooses for each, how far each precision is from the network's own fp32 (the largest difference, as a part of an output's range), and one execution by the device's clock, for batch 1 / batch 8 where it batches.",
    ),
    "ready": (
        "Ready soon, better later", ready,
        "Models of named networks with other widths, each different, computed in what `--precision auto` finds. EXEC by the device's clock, with kernels that a server measured in idle time, and with those that were measured before a model was ready (`--ready-soon false`).",
    ),
    "nodes": ("Operators", nodes, "ONNX's own tests of single nodes, computed through the engine in fp32 and compared with what they should give."),
    "kernels": ("Kernels", kernels, "Every candidate kernel of some steps that are hard or frequent, compared with the reference."),
    "loads": ("Memory", loads, "LOAD and UNLOAD, compared with a plain copy of the same bytes from pinned memory."),
    "fetches": ("Inputs", fetches, "How inputs are fetched out of the pool."),
    "model": ("Batches", inputs, "ResNet-18 in fp16 through the engine, by our clock."),
    "loading": ("While others are loaded", loading, "ResNet-50 in fp16, batch 1, through the engine, by itself and while another thread loads and unloads other models without pause."),
    "flow": ("One batch behind another", flow, "ResNet-50 in TF32 from the pool. Each batch had its own outputs, bit for bit."),
    "launches": ("Predictability", launches, "ResNet-50 in fp16, batch 1, from the launch to the moment at which it is seen that it is computed; and as many replays of a graph with one kernel that only waits, as long."),
    "divisions": ("Shares", divisions, "The device divided into shares, and one that is made anew while another runs."),
    "shares": ("Batches in shares", served_shares, "What `punctual profile` measures in each share, fp16."),
    "capacity": ("Thousands of models", capacity, "Clockwork's section 6.2: copies of ResNet-18 in fp16 with `--device-memory 8GB`, deadline 100 ms. One model (minor) gets 200 requests/s; the others (major) join one after another, then all of them are asked alike."),
    "figure5": ("Figure 5", figure5, "15 copies of ResNet-50 in TF32, 16 clients each that wait for their answer, by objective. PyTorch's server is `torch_server.py`: CUDA graphs, batches of up to 16 after 1 ms, written in Python, no deadlines."),
    "honesty": ("The simulator", honesty, "The same models at given rates, Poisson, objective 25 ms, against the simulator with the table of `punctual profile`."),
    "changes": ("Shares that change", changes, "15 copies of ResNet-50 in TF32 in two shares, objective 25 ms, first left alone, then divided differently ten times a second."),
    "sizes": (
        "Batch sizes that follow what comes", sizes,
        "ResNet-50 of pixels with 6 ms for each request: what is answered in time (rows in a batch), with all sizes from 1 to 16, with powers of two alone, and as `punctual serve` has it by default, after its traffic "
        "has added sizes. Rates are parts of what 128 clients that wait get in time with all sizes.",
    ),
    "auto_shares": (
        "Shares by themselves", auto_shares,
        "What is answered in time (99th percentile of the latency) by whole GPUs, `--shares auto` and two fixed halves: Gpulet's applications as endpoints, and LeNet with 6 ms beside VGG-16 and BERT with 150 ms. Rates are parts of what whole GPUs answer to 64 clients that wait.",
    ),
    "ocr": ("Text in pictures", ocr, "`rapidocr`'s three models and the steps between them in one call ([endpoints](endpoints.md#text-in-pictures)), two requests at a time for the rate, one for the latencies; 20 pictures that are made for it."),
    "lengths": ("Sentences", lengths, "A small BERT with a mask, prepared for 16, 32, 64 and 128 tokens."),
    "shapes": ("Shapes that requests bring", shapes, "A network of convolutions whose images may have any height and width, in fp32."),
    "fallback": ("Other engines", fallback, "A model with a `Scaler` of `ai.onnx.ml`, which isn't there for GPUs."),
}


def chosen_commit(found):
    """That which most results are of."""
    return collections.Counter(result["commit"] for result in found).most_common(1)[0][0]


def page(found, commit):
    """The whole text."""
    # Where a part was measured several times, the last counts.
    here = {result["part"]: result for result in found if result["commit"] == commit}
    said = sorted({f"{result['device'] or 'no GPU'}, {result['cores']} cores, {result['measured']}" for result in here.values()})
    several = len({result["cores"] for result in here.values()}) > 1
    parts = [HEAD, f"Commit {commit}. Measured on: {'; '.join(said)}.\n"]
    for part, (title, write, what) in SECTIONS.items():
        if part in here:
            cores = f" On {here[part]['cores']} cores." if several else ""
            beside = cores + (f" Meanwhile the machine had other work: {here[part]['beside']}." if here[part].get("beside") else "")
            parts.append(f"## {title}\n\n{what}{beside}\n\n```sh\n{here[part]['command']}\n```\n\n{write(here[part]['figures'])}\n")
    missing = [f"{title} (`{part}`)" for part, (title, _, _) in SECTIONS.items() if part not in here]
    if missing:
        parts.append(f"## Not measured\n\nNot measured at this commit: {', '.join(missing)}. Older pages are in the repository's history.\n")
    return "\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", nargs="+", type=pathlib.Path)
    parser.add_argument("--commit")
    parser.add_argument("--output", type=pathlib.Path, default=PAGE)
    arguments = parser.parse_args()
    found = results.read(arguments.results)
    if not found:
        parser.error(f"no results in {', '.join(map(str, arguments.results))}: scripts/measure.py gpu --results FOLDER PART writes them")
    commit = arguments.commit or chosen_commit(found)
    if all(result["commit"] != commit for result in found):
        parser.error(f"no result is of commit {commit}: there are {', '.join(sorted({result['commit'] for result in found}))}")
    arguments.output.write_text(page(found, commit))


if __name__ == "__main__":
    main()
