"""The scheduler alone, on one core: what an event costs, as the laboratory says it."""

from figures.common import Failed, step
from figures.bench.tools import lab, lab_built


def run(quick):
    with step("building"):
        lab_built()
    with step("running"):
        text = lab("throughput", *(("--once", 1000, 100, 10000, 100000) if quick else ()))
    if not text.strip():
        raise Failed("throughput printed nothing")
    return [], {"markdown": as_markdown(text)}


def as_markdown(text):
    """What it printed: a table in Markdown as it is, anything else as text."""
    lines = text.strip().splitlines()
    if any(line.startswith("|") for line in lines):
        return text.strip() + "\n"
    return "```text\n" + text.strip() + "\n```\n"
