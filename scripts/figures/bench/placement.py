"""Models on the parts of a cluster, Symphony's experiment A.2: the imbalance of each way to place them."""

import re

from figures.common import Failed, Figure, step
from figures.bench.tools import lab, lab_built

FEATURES = ("placement",)


def run(quick):
    with step("building, with the solver (minutes, the first time)"):
        lab_built(FEATURES)
    seeds, seconds = (1, 1) if quick else (5, 10)
    with step(f"{seeds} seeds, twice three ways of {seconds} s each"):
        text = lab("placement", seeds, seconds, features=FEATURES)
    first, changed = parse(text)
    figures = []
    for title, rows in (("first placement", first), ("rates changed", changed)):
        # Of one seed each: different seeds are different problems.
        pairs = list(zip(rows.get("random", ()), rows.get("all stages", ()), strict=True))
        if not pairs:
            raise Failed(f"placement printed no table for the {title}: {text[:500]}")
        for name in ("rate", "memory"):
            worst = min(random[name] / ours[name] for random, ours in pairs if random[name] is not None)
            figures.append(Figure(f"{title}, imbalance of the {name}: random / ours, the least of {seeds} seeds", worst,
                                  "times", (">=", 1)))
    return figures, {"first": ranges(first), "changed": ranges(changed), "seconds_each": seconds, "seeds": seeds}


def parse(text):
    """What each way reached, by its name, one entry for each seed: first placements, and those after rates changed."""
    first, changed, rows, allowed = {}, {}, None, None
    for line in text.splitlines():
        if bound := re.match(r"seed \d+, rates changed, changes may cost (\d+)", line):
            rows, allowed = changed, float(bound[1])
        elif line.startswith("seed "):
            rows, allowed = first, None
        elif line.startswith("| ") and not line.startswith("| how"):
            name, rate, memory, cost = [field.strip() for field in line.split("|")[1:5]]
            seen = {"rate": known(rate), "memory": known(memory), "spent": None}
            if allowed and known(cost) is not None:
                seen["spent"] = known(cost) / allowed
            rows.setdefault(name, []).append(seen)
    return first, changed


def known(field):
    return None if field == "-" else float(field)


def ranges(rows):
    """The lowest and the highest of all seeds."""
    def span(entries, key):
        values = [entry[key] for entry in entries if entry[key] is not None]
        return [min(values), max(values)] if values else None
    return [{"how": name, **{key: span(entries, key) for key in ("rate", "memory", "spent")}}
            for name, entries in rows.items()]
