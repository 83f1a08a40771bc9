"""What bringing weights onto the device takes, and whether executions are as fast as a plain session's."""

import re
import statistics

from figures.common import BENCH, Failed, Figure, generate, step
from figures.bench.tools import engine_lab, engine_lab_built


def run(quick):
    repository = BENCH / "engine"
    generate(repository, "resnet50")
    with step("building"):
        engine_lab_built()
    repetitions, runs = (1, 10) if quick else (5, 40)
    texts = []
    for repetition in range(repetitions):
        with step(f"repetition {repetition + 1} of {repetitions}"):
            texts.append(engine_lab("sessions", repository / "resnet50/1/model.onnx", "--runs", runs))
    values = [parse(text) for text in texts]

    def figure(name, key, unit, target=None):
        of = [value[key] for value in values]
        return Figure(name, statistics.median(of), unit, target, f"best {min(of):.3g}" if len(of) > 1 else "")

    return [
        figure("prepare ResNet-50, the first time", "prepare", "ms"),
        figure("prepare ResNet-50, from the cache", "prepare_cached", "ms"),
        figure("a plain session", "load_plain", "ms"),
        figure("LOAD, new session", "load_new", "ms", ("<=", 5)),
        figure("LOAD, after an unload", "load_again", "ms", ("<=", 5)),
        figure("execution, plain session", "execution_plain", "ms"),
        figure("execution, ours", "execution_ours", "ms"),
        figure("execution, ours / plain", "ratio", "", ("<=", 1.02)),
    ], {"output": texts, "values": values}


def parse(text):
    def number(pattern):
        found = re.search(pattern + r"\s+([\d.]+)", text)
        if not found:
            raise Failed(f"engine-lab sessions printed no '{pattern}': {text[:500]}")
        return float(found[1])

    return {
        "prepare": number("  prepare"),
        "prepare_cached": number("from the cache"),
        "load_plain": number("load, plain session"),
        "load_new": number("load, new session"),
        "load_again": number("load, after an unload"),
        "execution_plain": number("execution, plain session"),
        "execution_ours": number("execution, ours"),
        "ratio": number("ratio of the medians"),
    }
