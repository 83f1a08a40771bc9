"""Writes docs/benchmarks.md from what was measured at this commit; says which sections of an older page are older than the code."""

import json
import re
import subprocess

from figures.common import BENCH, RESULTS, ROOT, Failed, Figure, machine

PAGE = ROOT / "docs" / "benchmarks.md"
# A quick look doesn't replace what was measured properly.
QUICK_PAGE = BENCH / "quick.md"

HEAD = """# Benchmarks

`make bench` measures every figure on this page and writes it; numbers are not typed in. All are of one commit, of `punctual serve`
without flags that choose a policy; where a rival is shown, it is named. A part that wasn't measured at this commit isn't here: the placement,
which builds a solver first, is measured only when it is named (`make bench ARGS=placement`, before the rest).
`make bench` takes about an hour (and 11 GB below `.cache/bench` for the many models), `make bench ARGS="overload report"`
measures one part and writes the page, `make bench ARGS="--quick overload"` is a short look at it. Nothing here runs with the
tests: times on shared machines are too noisy to fail a build. The target column says what the project promises.

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
waking it costs 25 us; so the server's threads look for more work for a short while before they sleep.
""",
    "instructions": """## Instructions for a request

The same network of 10x10, one request after another on one connection, counted by callgrind for all threads of the server once it is warm: a number that
other processes don't disturb. Threads that look for more work before they sleep are part of it. With BASELINE_BINARY another build is counted beside it.
"Keys" is a server that asks for API keys, of which each request brings one.
""",
    "access": """## Keys and TLS

The same network of 10x10 from four servers, which run beside each other: one that asks for nothing, one that asks for API keys (`--api-keys`),
one that speaks TLS (`--tls-certificate`), one that does both. `punctual load` asks each for a second in turns, with 32 clients that
keep their connections, over HTTP (binary tensors) and over gRPC. CPU is user and system time of the server's process over the requests that it
answered. Ratios are of runs of one round; given is the median of the rounds.
""",
    "cores": """## One client and all cores

As many executors as the machine has cores but one, each with a core (`--cpu-division narrow`) and as the server divides them by itself (`auto`): what a
request takes for one client alone, some seconds for each model after the cores had time to go together. Then 0.8 times what narrow carries begins at once,
Poisson, each request with a deadline of ten executions on one core, while cores compute together; and goes on.
""",
    "overload": """## Overload

Capacity first: the best of three closed loops. Then twice that rate, Poisson, each request with a deadline of ten executions.
A server that says yes to everything would have a goodput near zero, because every answer would be late.

"From the actual send" is what the client saw, with the way through the kernel on both sides. The server gives no outputs after
the deadline (P2), so it counts none itself.
""",
    "refusals": """## Overload of eight devices

`--devices emulated:8`: devices that only pretend, so that two cores can carry eight of them, and everything else is the server. A
batch of b takes 4.2 b + 20.3 ms, requests have 100 ms. Full batches of 16 on all devices would carry 1,463 requests/s. "The server's
view" is from its recording (`punctual serve --record`, `punctual replay`): from the instant at which its scheduler was told of the
request to the refusal. The client's is from the actual send, over loopback, with client and server on the same cores. *Simulated* is the
same load in the simulator, with 3.5 ms less, which is what the server keeps for the answer's way.
""",
    "cache": """## Kept answers

A model and its twin with `response_cache`, on a server with `--cache-config`. *Not kept* is the model, *missed* the twin's first answer to a
request, *found* its second to the same. One connection over HTTP with bytes, a client in Python, whose own work is part of the time. The
server's own time to look includes the hash of the inputs, which are 602 KB for MobileNetV2.

Then 20,000 different requests, which come by Zipf's law, and a cache with room for a tenth of the answers: the part that is found once it is
full. No cache could find more, in the long run, than what the tenth that is asked for most has of all requests. Triton doesn't run on this
machine, so that its local cache isn't beside it.
""",
    "pipelines": """## Pipelines

A network of 10x10 alone, and pipelines that ask it once, twice, four and eight times, each time with what it gave before; one connection over HTTP with bytes, a client
in Python, whose own work is part of the time. What one more stage costs is the difference between eight stages and one, divided by seven: two changes of threads, to the
device's and back, a turn of the scheduler, and the model's 6 us.

Then Gpulet's `traffic` (detect, then recognise twice) on four emulated devices, ten times slower than on an H200, with twice its longest way as the deadline: which part
of the requests was in time with each split (`--pipeline-split`), and which part of the device time was for requests that weren't. The simulator has the same models, rates and
split. Triton doesn't run on this machine, so that its ensembles aren't beside it.
""",
    "ocr": """## Text in pictures

20 pictures that are drawn here (one to fifteen lines, sizes, colours, turned a little, upside down, on their end, empty) are read by the endpoint `ocr` of `scripts/setup ocr` and by the package in
Python that its models come from, with the same ONNX Runtime, each on one and the same core. The server is asked once at a time, for the times, then twice at a time, for the rate; the client is on
another core. Measured when it is named.
""",
    "models": """## Models with no configuration

From an empty cache, `punctual serve` with no flag but its ports. *Until ready* is from the start of the process until it names its
address. The small models differ in kind, width and weights.

The others are models out of public Python packages (`scripts/strangers.py` has their versions and hashes) which nothing here was made
for, each dropped into a folder of its own. *Alone* is what a plain session of ONNX Runtime takes on one thread, for the shortest and
the longest of its inputs. Requests come one at a time, from the first moment on: inputs of all lengths in turns by chance, each with a deadline of
three times what it takes alone (but of at least 2 ms more than that: the way over loopback takes up to 1.2 ms in one of a hundred).
After an answer the client waits as long as the model takes alone, at least 5 ms, so that the server has time to learn. Each of
these requests can be met: nothing else is asked for. *Refused as impossible* is the reason `deadline_unreachable`, which is
wrong here. An answer is wrong if it isn't what the plain session computes, within a thousandth of an output's range.

*Busy* is the same with a fresh server that starts beside as many busy processes as there are cores; they end when it is ready.
*Planned* is what the server measured for its smallest batch while it started. Where others take the cores, the times alone are longer, and
deadlines with them: such a run is easier to pass.
""",
    "isolation": """## Isolation

A model with a deadline at 30 % of the capacity, beside clients without one on four other models of the same shape that ask
again as soon as they are answered. The paper's Clockwork kept an objective of 11.4 executions there.
""",
    "flood": """## A flood beside quiet models

`--devices emulated:8`, models as in the overload of eight devices. Ten quiet ones are asked for a quarter of what their fair share of
the devices carries; an eleventh is asked three times what all devices carry together. What the quiet ones lose is late, refused and failed
requests.
""",
    "emulated": """## Live and simulated

`--devices emulated:8` with InceptionResNetV2's profile (5.090 b + 18.368 ms), 70 ms deadlines over HTTP, Poisson arrivals. *Simulated*
is the same load in the simulator, with 3.5 ms less, which is what the server keeps for the answer's way. The two differ by what
isn't the scheduler: the network, the threads, and neighbours that take the cores.
""",
    "many": """## Many models

Five hundred models of 10 MB each, a device memory of 500 MB, popularity by Zipf's law (exponent 0.9), a hot model that has
a fifth of all requests. `popular` are the next 10, `middling` the 90 behind these, `rare` the other 399. Single requests
are asked one at a time: the first one of a model finds it unloaded, the second loaded.

The hot model is measured three times: alone, with as many others as fit into memory, and with all of them. From the first
to the second it shares the device; from the second to the third come the loads.
""",
    "fleet": """## Ten thousand models on a thousand devices

`--devices emulated:1000` and 10,000 models, each with a profile of b + 4 ms and weights of 100 MB that take 10 ms to load; 2 GB on each device.
Requests have 100 ms and go to all models alike or by Zipf's law (exponent 0.9), Poisson, over HTTP. Lost is everything that wasn't answered by its
deadline. The page of metrics is read when every model has been asked.
""",
    "engine": """## Engine

`cargo run --release -p engine-lab -- sessions`, ResNet-50 (102 MB) on one thread. A plain session is what ONNX
Runtime makes of the model's file; executions of both take turns in one process.
""",
    "steps": """## Steps on pictures

A photograph's JPEG file of 1920 x 1080, decoded, made 224 x 224 and normalised, by the steps of pipelines, by Pillow and by OpenCV, one thread each, in
rounds: ratios are of one round, given is their median. *Of all pixels* is with anti-aliasing, which Pillow always does and OpenCV calls `INTER_AREA`; *of the pixels
nearby* is OpenCV's `INTER_LINEAR`. Normalising includes the change to channels first.
""",
    "scheduler": """## Scheduler

`cargo run --release -p lab -- throughput`: the pure machine on one core, driven by exact devices; only the time
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
the same is in [010-placement.md](notes/010-placement.md).
""",
    "minilm": """## Sentences of different lengths

MiniLM (all-minilm-l6-v2, its own weights) on one core, with `padding`, 4 to 256 tokens: three applications
with lognormal lengths (half of the requests with a median of 12 tokens, 30 % with 40, 20 % with 140), Poisson arrivals at 80 %
of what would be answered if every sentence ran alone. Objectives are multiples of what 99 of 100 sentences take alone at most.
*Simulated* is the same load in the simulator, with the times that were measured here. Rivals are policies that `--policy` chooses.
""",
    "simulator": """## Simulator

`cargo run --release -p lab -- million` (100 models on 16 devices, all checkers on), and some files of `experiments/`
as `punctual simulate` runs them. What they show is in [docs/experiments](experiments/README.md).
""",
}


def write(quick=False):
    """The page of what was measured at this commit; says which parts are missing."""
    folder, page = (RESULTS / "quick", QUICK_PAGE) if quick else (RESULTS, PAGE)
    commit = machine()["commit"]
    files = {part: folder / f"{part}.json" for part in PARTS}
    results = {part: json.loads(file.read_text()) for part, file in files.items() if file.exists()}
    results = {part: result for part, result in results.items() if result["machine"]["commit"] == commit}
    if not results:
        if not quick and page.exists():
            page.write_text(dated(page.read_text()))
        raise Failed(f"nothing was measured at commit {commit}: run scripts/bench.sh {'--quick ' if quick else ''}first")
    missing = [part for part in PARTS if part not in results]
    if missing:
        print(f"not measured at commit {commit}, and so not on the page: {', '.join(missing)}")
    sections = [HEAD, about(list(results.values()), quick)]
    for part, result in results.items():
        sections += [PARTS[part], table(result)]
    page.write_text("\n".join(sections))
    return page.relative_to(ROOT)


OLDER = "**Older than the code:** "
COMMIT = re.compile(r"\b[Cc]ommit ([0-9a-f]{7,40})\b")


def dated(text, changed=None):
    """The page with a line below its title that names the sections whose commit had other code than there is; `changed` tells for a commit."""
    changed = changed or has_changed
    title, *rest = [block for block in text.split("\n\n") if not block.startswith(OLDER)]
    head, *sections = "\n\n".join(rest).split("\n## ")
    of_all = COMMIT.search(head)
    older = []
    for section in sections:
        commits = COMMIT.findall(section) or ([of_all[1]] if of_all else [])
        if not commits or any(changed(commit) for commit in commits):
            older.append(f"{section.splitlines()[0]} ({', '.join(commits) or 'of an unknown commit'})")
    line = [f"{OLDER}{'; '.join(older)}. `make bench` measures again."] if older else []
    return "\n\n".join([title, *line, *rest])


def has_changed(commit, root=ROOT):
    """Whether the crates are others than they were at that commit, or nobody knows it."""
    command = ["git", "diff", "--quiet", commit, "--", "crates"]
    return subprocess.run(command, cwd=root, capture_output=True).returncode != 0


def about(results, quick):
    """Which state, where and when."""
    machines = [result["machine"] for result in results]
    first, times = machines[0], sorted(machine["measured"] for machine in machines)
    loads = [result["load_average_before"] for result in results]
    minutes = sum(result["details"].get("seconds", 0) for result in results) / 60
    short = "**Quick runs of a few seconds each, which show that the program works; their figures mean little.**\n\n" if quick else ""
    return (
        f"{short}Commit {first['commit']}, {times[0]} to {times[-1]}, {minutes:.0f} minutes in all; {first['cores']} cores of "
        f"{first['cpu']}, {first['memory_gib']:.0f} GiB, Linux {first['kernel']}, ONNX Runtime {first['onnxruntime']}; load average "
        f"before a part {min(loads)} to {max(loads)}.\n"
    )


def table(result):
    rows = {"scheduler": own_rows, "models": own_rows, "placement": placement_rows}.get(result["part"])
    extra = rows(result["details"]) if rows else ""
    return figures_table(result["figures"]) + extra + caption(result)


def figures_table(figures):
    if not figures:
        return ""
    lines = ["| figure | measured | target | |", "|---|---:|---:|---|"]
    for fields in figures:
        verdict, target = fields["verdict"], fields["target"]
        known = {key: fields[key] for key in ("name", "value", "unit", "note")}
        figure = Figure(**known, target=tuple(target) if target else None)
        said = ", ".join(part for part in (verdict.lower(), figure.note) if part)
        lines.append(f"| {figure.name} | {figure.shown()} | {figure.wanted()} | {said} |")
    return "\n".join(lines) + "\n\n"


def own_rows(details):
    return details["markdown"] + "\n"


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
    seconds, load = result["details"].get("seconds", 0), result["load_average_before"]
    return f"Measured {result['machine']['measured']} in {seconds:.0f} s, load average before it {load}.\n"
