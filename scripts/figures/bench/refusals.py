"""More than eight devices can carry: how much is still answered in time, and how soon the others hear that they won't be."""

from figures.common import BENCH, Figure, Server, load, step, watch
from figures.bench.emulated import DEVICES, models, replayed, simulate, taken

ALPHA_MS, BETA_MS, DEADLINE_MS = 4.2, 20.3, 100
# The most that full batches of 16 on every device could carry.
BEST = DEVICES * 16 / (16 * ALPHA_MS + BETA_MS) * 1e3
CASES = {"20 models, 1,000 requests/s": (20, 1000), "20 models, 1,600 requests/s": (20, 1600),
         "1 model, 1.3 times the best": (1, round(1.3 * BEST))}


def run(quick):
    seconds = 4 if quick else 30
    found = {}
    for title, (count, rate) in CASES.items():
        names = [f"model-{index:02}" for index in range(count)]
        repository = models(f"refusals-{count}", names, ALPHA_MS, BETA_MS)
        recording = BENCH / "refusals.recording"
        for old in BENCH.glob("refusals.recording*"):
            old.unlink()
        with step(f"{title} for {seconds} s"):
            with Server(repository, "--devices", f"emulated:{DEVICES}", "--record", recording) as server:
                with watch(server) as view:
                    asked = [option for name in names for option in ("--model", name)]
                    options = ("--rate", rate, "--deadline-ms", DEADLINE_MS, "--duration", seconds)
                    report = load(server, *asked, *options)["total"]
            seen = replayed(recording)
        with step(f"{title}, simulated"):
            there = simulate("refusals", ALPHA_MS, BETA_MS, count, DEADLINE_MS, [rate], seconds)[rate]
        found[title] = {"client": report, "server": view, "replay": seen, "simulated": there}
    figures = [figure for title, each in found.items() for figure in figures_of(title, each)]
    return figures, {"cases": found, "seconds_each": seconds}


def figures_of(title, each):
    report, view, there, ended = each["client"], each["server"], each["simulated"], each["replay"]["outcomes"]
    good = report["good"] / max(1, report["requests"])
    figures = [
        Figure(f"{title}: in time", good, note=f"{report['goodput_rps']:.0f} /s; simulated {there['satisfied']:.3f}"),
        Figure(f"{title}: late, from the actual send", report["late_from_send"], "", ("<=", 0),
               f"of {report['successes']}"),
    ]
    refused = sum(ended["refused"].values())
    if not refused:
        return [*figures, Figure(f"{title}: refused", 0)]
    simulated = f"simulated {there['refused_at_once']:.3f}; " if there["refused_at_once"] else ""
    return [
        *figures,
        Figure(f"{title}: refusals within 1 ms of arrival, the server's view", ended["refused_at_once"] / refused, "", (">=", 0.9),
               f"{simulated}the client's {report['refused_at_once_fraction'] or 0:.3f}"),
        Figure(f"{title}: refusals with more than half of the deadline left, the server's view", ended["refused_early"] / refused,
               note=f"the client's {report['refused_early_fraction'] or 0:.3f}"),
        Figure(f"{title}: time to a refusal, p50, the server's view", ended["refusal_ms"]["p50_ms"], "ms",
               note=f"p99 {ended['refusal_ms']['p99_ms']:.3g}; the client's p50 {report['refusal_ms']['p50']:.3g}, "
                    f"p99 {report['refusal_ms']['p99']:.3g}; cores taken by others {taken(view)}"),
    ]
