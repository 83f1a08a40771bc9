"""What it costs to give an engine a process of its own (`serve --isolate`), and what its end costs: microseconds for an execution, and how a server takes it when the process is killed again and again under load."""

import http.client
import json
import os
import pathlib
import signal
import statistics
import subprocess
import threading
import time

from figures.common import BENCH, BINARY, ENGINE_LAB, Failed, Figure, Server, generate, step

CLIENTS = 4
MLP = json.dumps({"inputs": [{"name": "input", "shape": [1, 10], "datatype": "FP32", "data": [0.5] * 10}]})
# Nobody waits longer for an answer: what has none by then has no outcome.
PATIENCE = 60


def run(quick):
    repository = BENCH / "apart"
    generate(repository, "mlp")
    write_image_model(repository)
    rounds, runs, kills = (3, 50, 5) if quick else (15, 300, 50)
    files = [repository / name / "1" / "model.onnx" for name in ["mlp", "image"]]
    measured = {}
    for pause in [0, 1000]:
        with step(f"executions, {pause} us apart"):
            measured[pause] = executions(files, rounds, runs, pause)
    with step(f"{kills} kills under load"):
        killed = kill_under_load(repository, kills)
    figures = []
    for pause, about in measured.items():
        when = "one behind another" if pause == 0 else "each after a millisecond of sleep"
        for name, model in zip(["10x10 network", "602 KB input"], about):
            added = model["added_us"]
            note = f"{model['here_us']:.1f} us without; {added['least']:.1f} to {added['most']:.1f} in {added['rounds']} rounds"
            figures.append(Figure(f"added to an execution, {name}, {when}", added["median"], "us", None, note))
    again = killed["served_again_ms"]
    figures += [
        Figure("kills of the process under load", kills),
        Figure("requests meanwhile", killed["requests"]),
        Figure("of them without an outcome", killed["without_outcome"], "", ("<=", 0)),
        Figure("of them refused or failed", killed["not_served"]),
        Figure("served again after", statistics.median(again), "ms", None, f"at most {max(again):.0f} ms"),
    ]
    return figures, {"executions": measured, "kills": killed}


def executions(files, rounds, runs, pause):
    output = BENCH / "apart" / "executions.json"
    if not ENGINE_LAB.exists():
        raise Failed(f"{ENGINE_LAB} is missing: build it with 'cargo build --release -p engine-lab'")
    sizes = ["--rounds", rounds, "--runs", runs, "--pause-us", pause]
    command = [ENGINE_LAB, "--json", output, "apart", BINARY, *files, *sizes]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"engine-lab apart: {done.stderr.strip()[-500:]}")
    return json.loads(output.read_text())


def write_image_model(repository):
    """Takes an image of 1x3x224x224, 602,112 bytes, and gives the mean of each colour: it costs little but its input."""
    import onnx
    from onnx import TensorProto, helper

    target = repository / "image" / "1" / "model.onnx"
    if target.exists():
        return
    port = helper.make_tensor_value_info
    node = helper.make_node("GlobalAveragePool", ["image"], ["colour"])
    ports = [port("image", TensorProto.FLOAT, [1, 3, 224, 224])], [port("colour", TensorProto.FLOAT, [1, 3, 1, 1])]
    model = helper.make_model(helper.make_graph([node], "image", *ports), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    target.parent.mkdir(parents=True)
    onnx.save(model, target)


class Client(threading.Thread):
    """Asks again and again, and notes when it asked and had which answer."""

    def __init__(self, address, stop):
        super().__init__()
        self.address, self.stop, self.answers, self.without_outcome = address, stop, [], 0

    def run(self):
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE)
        while not self.stop.is_set():
            sent_at = time.monotonic()
            try:
                connection.request("POST", "/v2/models/mlp/infer", MLP)
                response = connection.getresponse()
                text = response.read()
                why = "" if response.status == 200 else text.decode()
                self.answers.append((sent_at, time.monotonic(), response.status, why))
            except (OSError, http.client.HTTPException):
                self.without_outcome += 1
                connection.close()


def engine_process(server):
    """The process of the server's only device, or nothing."""
    for entry in pathlib.Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split() if entry.name.isdigit() else []
        except OSError:
            continue
        if fields and int(fields[1]) == server.pid and fields[0] != "Z":
            return int(entry.name)
    return None


def kill_under_load(repository, kills):
    with Server(repository, "--isolate", log="error") as server:
        stop = threading.Event()
        clients = [Client(server.http, stop) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            times = [kill_once(server, clients) for _ in range(kills)]
        finally:
            stop.set()
            for client in clients:
                client.join(PATIENCE + 10)
        answers = [answer for client in clients for answer in client.answers]
        losses = server.metrics().sum("punctual_device_losses_total")
    others = {}
    for _, _, status, text in answers:
        if status != 200:
            reason = json.loads(text)["reason"]
            others[reason] = others.get(reason, 0) + 1
    return {
        "kills": kills,
        "device_losses": losses,
        "clients": CLIENTS,
        "requests": len(answers) + sum(client.without_outcome for client in clients),
        "without_outcome": sum(client.without_outcome + client.is_alive() for client in clients),
        "not_served": sum(others.values()),
        "not_served_by_reason": others,
        "served_again_ms": times,
    }


def kill_once(server, clients):
    """Kills the process while requests are under way; milliseconds until one was served that was sent after its end."""
    give_up_at = time.monotonic() + PATIENCE
    while (process := engine_process(server)) is None:
        if time.monotonic() > give_up_at:
            raise Failed("there is no process to kill")
        time.sleep(0.001)
    # The load goes on for a while: the kill comes at any point of a batch.
    time.sleep(0.2)
    seen = [len(client.answers) for client in clients]
    killed_at = time.monotonic()
    os.kill(process, signal.SIGKILL)
    while os.path.exists(f"/proc/{process}"):
        time.sleep(0.0002)
    gone_at = time.monotonic()
    while time.monotonic() < give_up_at:
        for client, before in zip(clients, seen):
            later = [at for sent_at, at, status, _ in client.answers[before:] if status == 200 and sent_at > gone_at]
            if later:
                return (min(later) - killed_at) * 1e3
        time.sleep(0.0005)
    raise Failed("nothing was served any more after a kill")
