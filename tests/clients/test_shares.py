"""A server that divides its GPUs by what is asked for (--shares auto), on emulated devices, with clients that never stop to ask."""

import json
import re
import signal
import subprocess
import threading
import urllib.error
import urllib.request

import pytest

import conftest

EMULATED = """
platform: "emulated"
max_batch_size: 16
parameters {{ key: "emulated_latency" value {{ string_value: "alpha_ms={alpha},beta_ms={beta},load_ms=1" }} }}
"""
BODY = json.dumps({"inputs": [{"name": "input", "shape": [1, 10], "datatype": "FP32", "data": [0.0] * 10}]}).encode()
# What takes how long, and how much time its requests have: nobody waits behind a large batch for 10 ms.
MODELS = {"quick": (0.05, 0.5, 10), "large": (10, 40, 1500), "larger": (10, 40, 1500)}


def publish(folder, name, alpha, beta):
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(EMULATED.format(alpha=alpha, beta=beta))


@pytest.fixture
def divided(tmp_path):
    """A server with one emulated GPU, and its log."""
    for name, (alpha, beta, _) in MODELS.items():
        publish(tmp_path / "models", name, alpha, beta)
    with open(tmp_path / "log", "wb") as log:
        server = conftest.start(tmp_path / "models", "--devices", "emulated:1", "--shares", "auto", stderr=log)
    server.folder = tmp_path
    yield server
    server.process.kill()


class Clients:
    """Threads that ask, each for one model, and count what becomes of it."""

    def __init__(self, server, **threads):
        self.server, self.ended, self.outcomes = server, threading.Event(), []
        ask = [name for name, count in threads.items() for _ in range(count)]
        self.threads = [threading.Thread(target=self.ask, args=[name]) for name in ask]
        [thread.start() for thread in self.threads]

    def ask(self, name):
        url, headers = f"http://{self.server.http}/v2/models/{name}/infer", {"Punctual-Timeout-Us": str(MODELS[name][2] * 1000)}
        while not self.ended.is_set():
            try:
                with urllib.request.urlopen(urllib.request.Request(url, BODY, headers), timeout=60) as answer:
                    self.outcomes.append((name, answer.status))
            except urllib.error.HTTPError as refused:
                self.outcomes.append((name, json.load(refused)["reason"]))
                self.ended.wait(0.01)
            except OSError as broken:
                self.outcomes.append((name, broken))
                return

    def end(self):
        self.ended.set()
        [thread.join() for thread in self.threads]
        return self.outcomes


def shares(server):
    return json.load(urllib.request.urlopen(f"http://{server.http}/v2/shares", timeout=10))["auto"]


def test_a_model_in_a_hurry_gets_a_share_and_nobody_is_without_an_answer_meanwhile(divided):
    assert shares(divided)["gpus"] == [[{"share": 1.0, "models": None}]]
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://{divided.http}/v2/shares", b'{"shares": [0.5, 0.5]}', timeout=10)
    assert refused.value.code == 400 and "--shares auto" in json.load(refused.value)["error"]
    clients = Clients(divided, quick=2, large=10, larger=10)
    divided.until("another division", lambda: shares(divided)["changes"] > 0, seconds=120)
    small, large = shares(divided)["gpus"][0]
    assert (small["models"], sorted(large["models"])) == (["quick"], ["large", "larger"])
    # One that comes while GPUs are divided is served.
    publish(divided.folder / "models", "late", 0.05, 0.5)
    late = urllib.request.Request(f"http://{divided.http}/v2/models/late/infer", BODY, {"Punctual-Timeout-Us": "30000000"})
    served = lambda: divided.metric('punctual_models{state="ready"}') == 4
    divided.until("the new model", served, seconds=60)
    assert urllib.request.urlopen(late, timeout=60).status == 200
    outcomes = clients.end()
    known = {200, "overloaded", "deadline_missed", "deadline_unreachable"}
    assert {outcome for _, outcome in outcomes} <= known, outcomes
    assert {name for name, outcome in outcomes if outcome == 200} >= {"large", "larger"}
    assert divided.metric("punctual_requests_in_flight") == 0
    share = divided.metric('punctual_device_share{device="emulated:0 share 0"}')
    assert 0 < share < 1
    divided.process.send_signal(signal.SIGTERM)
    assert divided.process.wait(timeout=60) == 0
    assert "GPUs are divided otherwise: 1 of 1" in (divided.folder / "log").read_text()


def test_with_one_busy_model_gpus_stay_whole_and_the_log_says_why(divided):
    clients = Clients(divided, large=20)
    log = divided.folder / "log"
    divided.until("a line that says so", lambda: "GPUs stay whole" in log.read_text(), seconds=120)
    divided.until("some batches", lambda: len(clients.outcomes) > 100, seconds=120)
    clients.end()
    assert shares(divided)["changes"] == 0 and shares(divided)["why"].endswith("shares don't pay")
    assert re.search(r"GPUs stay whole: whole GPUs are predicted to carry [\d.]+ times", log.read_text())


def test_a_server_that_is_told_to_stop_while_it_divides_answers_what_it_has(divided):
    clients = Clients(divided, quick=2, large=10, larger=10)
    divided.until("another division", lambda: shares(divided)["changes"] > 0, seconds=120)
    divided.process.send_signal(signal.SIGTERM)
    assert divided.process.wait(timeout=60) == 0
    # Whoever asks after that finds nobody; nobody else is left without an answer.
    broken = [outcome for _, outcome in clients.end() if isinstance(outcome, OSError)]
    assert all("refused" in str(error) or "reset" in str(error) or "closed" in str(error) for error in broken), broken


@pytest.mark.parametrize("devices, sentence", [("cpu:1", "for GPUs and emulated devices"), ("cuda:0:shares=0.5,0.5", "say one of the two")])
def test_what_has_no_shares_to_divide_is_a_sentence(tmp_path, devices, sentence):
    publish(tmp_path, "quick", 1, 1)
    command = [conftest.binary(), "serve", "--model-repository", str(tmp_path), "--devices", devices, "--shares", "auto"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert said.returncode != 0 and sentence in said.stderr, said.stderr
