"""The OpenAPI document, tried out: schemathesis sends what it allows and what it doesn't, and compares the answers with it.

SCHEMATHESIS_SECONDS says for how long; scripts/schemathesis.sh is the long run.
"""

import json
import os
import re
import subprocess
import urllib.request

import pytest

import conftest

SECONDS = os.environ.get("SCHEMATHESIS_SECONDS", "20")
SEED = "4"


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """A server of its own: what is sent changes its settings."""
    yield from conftest.traced(tmp_path_factory.mktemp("openapi"))


def test_the_document_is_served(tried):
    with urllib.request.urlopen(f"http://{tried.http}/openapi.json", timeout=10) as answer:
        assert answer.headers["Content-Type"] == "application/json"
        assert json.load(answer) == json.loads((conftest.ROOT / "docs" / "openapi.json").read_text())


def test_the_example_of_the_document_works(tried):
    document = json.loads((conftest.ROOT / "docs" / "openapi.json").read_text())
    operation = document["paths"]["/v2/models/{model}/infer"]["post"]
    example = operation["requestBody"]["content"]["application/json"]["example"]
    request = urllib.request.Request(f"http://{tried.http}/v2/models/mlp/infer", json.dumps(example).encode())
    with urllib.request.urlopen(request, timeout=10) as answer:
        outputs = json.load(answer)["outputs"]
    assert [output["shape"] for output in outputs] == [[1, 10]]


def test_answers_are_what_the_document_says(tried):
    program = conftest.ROOT / ".cache" / "schemathesis" / "bin" / "schemathesis"
    config = conftest.ROOT / "scripts" / "schemathesis.toml"
    command = [program, "--no-color", "--config-file", config, "run", f"http://{tried.http}/openapi.json"]
    command += ["--max-time", SECONDS, "--seed", SEED, "--warnings", "off", "--generation-database", "none"]
    done = subprocess.run(command, cwd=tried.folder, capture_output=True, text=True, timeout=int(SECONDS) + 120)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert tried.process.poll() is None
    # What is sent may unload the models, and load them again: how many requests they got isn't known afterwards.
    assert re.search(r"Selected: (\d+)/\1\s+Tested: \1\s", done.stdout), "every operation was tried"
