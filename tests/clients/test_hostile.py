"""The soak's hostile clients, each for a moment: they get the answers that they may get, and nothing is left of them."""

import http.client
import json
import os
import pathlib
import threading

import pytest

from figures.access import Access
from figures.soak import hostile

import conftest


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """A server with TLS and keys, and those who don't mean well."""
    folder = tmp_path_factory.mktemp("attacked")
    (folder / "models").mkdir()
    for model in ["identity_fp32", "mlp"]:
        (folder / "models" / model).symlink_to(conftest.ROOT / ".cache" / "test-models" / model)
    access = Access(folder / "access", binary=conftest.binary())
    access.key("guest", "infer")
    access.key("ops", "infer", "read", "control")
    options = ["--devices", "cpu:2", "--model-control-mode", "both", "--max-execution-ms", "1000"]
    server = conftest.start(folder / "models", *options, *map(str, access.options), cache=folder / "cache")
    headers = access.headers("guest"), access.headers("ops")
    attacker = hostile.Attacker(server.http, server.grpc, *headers, access.context(), "identity_fp32", "mlp")
    yield server, access, attacker
    conftest.stop(server)


def descriptors(server):
    return len(os.listdir(pathlib.Path(f"/proc/{server.process.pid}/fd")))


SHORT = {"slow_reader": dict(seconds=1), "idle": dict(seconds=1, count=4), "half_head": dict(seconds=1)}


def test_hostile_clients_get_what_they_may_and_leave_nothing_behind(attacked):
    server, access, attacker = attacked
    before = descriptors(server)
    unexpected = []

    def once(kind):
        try:
            getattr(attacker, kind)(**SHORT.get(kind, {}))
        except (OSError, http.client.HTTPException):
            pass  # the server has closed the connection, which is an answer, too
        except Exception as error:
            unexpected.append(f"{kind}: {error!r}")

    threads = [threading.Thread(target=once, args=(kind,), daemon=True) for kind in hostile.KINDS]
    for thread in threads:
        thread.start()
    access.new_certificate()
    for thread in threads:
        thread.join(300)
    assert unexpected == [] and not any(thread.is_alive() for thread in threads)
    good = {"inputs": [{"name": "input", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}

    def asks():
        return attacker.ask("/v2/models/identity_fp32/infer", json.dumps(good), access.headers("guest"))

    assert asks() == 200
    server.until("all their connections are closed", lambda: descriptors(server) <= before, seconds=120)
    assert asks() == 200
