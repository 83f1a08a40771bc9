"""Which networks are compared, which errors are too large, and how results are told. Without PyTorch, so that it is tested where there is none."""

import math

from figures.gpu.compiled import geometric_mean

# The networks that people serve beside those of exec.py's first table, each once; encoders for two lengths from one file.
NAMED = [
    "resnext50_32x4d",
    "seresnext50",
    "googlenet",
    "inception_v3",
    "mobilenet_v3_large",
    "mnasnet1_0",
    "efficientnet_b0",
    "ssd300",
    "ssdlite320",
    "yolo",
    "lenet",
    "minilm-32",
    "minilm-128",
    "gpt2-32",
    "gpt2-128",
]
# Those that are also computed in fp32, whose own error is so small that it hides no mistake: together they have every kind of step.
ALSO_IN_F32 = ["seresnext50", "ssd300", "ssdlite320", "yolo", "lenet", "minilm-32", "gpt2-32"]
# Largest errors, over the largest output. With random weights a format's own error can be larger (docs/benchmarks-gpu.md): so PyTorch's in the same precision, twice, is allowed too.
BOUNDS = {"f32": 1e-3, "tf32": 1e-3, "f16": 1e-2}


def expand(models):
    """`named` in a list of NAME:PRECISION stands for all of NAMED. Every network has its turn in fp16 first, so that whoever is out of time knows something of each."""
    named = [f"{name}:{precision}" for precision in ("f16", "tf32") for name in NAMED] + [f"{name}:f32" for name in ALSO_IN_F32]
    entries = []
    for entry in models.split(","):
        entries += named if entry == "named" else [entry]
    return list(dict.fromkeys(entries))


def is_over(result):
    """Whether an output is further off than its precision and PyTorch's own error allow. An error that is no number is."""
    allowed = BOUNDS[result["precision"].lower()]
    if math.isfinite(result["torch_error"]):
        allowed = max(allowed, 2 * result["torch_error"])
    return not result["error"] <= allowed


def cell(result):
    """Ours over PyTorch's, where it has a time."""
    if math.isnan(result["torch_ms"]):
        return f"{result['ms']:.3f}"
    return f"{result['ms']:.3f} / {result['torch_ms']:.3f} = {result['ms'] / result['torch_ms']:.2f}"


def table(entries, batches, results, failures):
    """In Markdown, a line for each entry. `failures` are sentences by entry: PyTorch's or ours, whichever failed."""
    lines = ["| model | " + " | ".join(f"b{batch}" for batch in batches) + " | error | PyTorch's | |", "|---|" + "---|" * (len(batches) + 3)]
    for entry in entries:
        name, precision = entry.split(":")
        mine = {r["batch"]: r for r in results if r["model"] == name and r["precision"].lower() == precision}
        cells = [cell(mine[batch]) if batch in mine else "" for batch in batches]
        errors = [f"{max(r[which] for r in mine.values()):.1e}" if mine else "" for which in ("error", "torch_error")]
        remarks = (["**over**"] if any(map(is_over, mine.values())) else []) + failures.get(entry, [])
        lines.append("| " + " | ".join([f"{name} {precision}", *cells, *errors, "; ".join(remarks).replace("|", "/")]) + " |")
    return "\n".join(lines)


def summary(entries, results, failures):
    """What the figures come to, and in its last line how much of it isn't as it should be."""
    ratios = [r["ms"] / r["torch_ms"] for r in results if not math.isnan(r["torch_ms"])]
    over = {(r["model"], r["precision"]) for r in results if is_over(r)}
    lines = []
    if ratios:
        mean, worst = geometric_mean(ratios), max(results, key=lambda r: r["error"])
        largest = f"largest error {worst['error']:.1e} ({worst['model']} {worst['precision'].lower()})"
        lines.append(f"geometric mean {mean:.3f}, largest {max(ratios):.3f}, {largest}")
    lines.append(f"{len(entries)} compared: {len(over)} over the bound, {len(failures)} failed")
    return "\n".join(lines)
