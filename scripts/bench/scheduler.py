"""The scheduler alone, on one core: events a second, and how the cost of one grows."""

from common import Failed, Figure, step
from tools import built, example


def run(quick):
    with step("building"):
        built("scheduler", "throughput")
    with step("running"):
        text = example("sim", "throughput", *((1000, 100, 10000, 100000) if quick else ()))
    rows = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) == 6:
            names = ("models", "devices", "queued", "events_per_second", "ns", "refused")
            rows.append(dict(zip(names, map(float, fields))))
    if not rows:
        raise Failed(f"throughput printed no table: {text[:500]}")
    first = rows[0]
    title = f"{first['models']:,.0f} models, {first['devices']:,.0f} devices, {first['queued']:,.0f} queued"
    figures = [Figure(title, first["events_per_second"], "events/s", note=f"{first['ns']:.0f} ns each")]
    if not quick:
        # The first row warms up; those behind it vary one number each.
        by_models, by_queued, by_devices = rows[1:5], rows[5:10], rows[10:]
        for name, group in (("models", by_models), ("queued", by_queued), ("devices", by_devices)):
            low, high = group[0], group[-1]
            figures.append(Figure(f"cost of an event, {low[name]:,.0f} to {high[name]:,.0f} {name}",
                                  high["ns"] / low["ns"], "times", note=f"{low['ns']:.0f} to {high['ns']:.0f} ns"))
    return figures, {"rows": rows}
