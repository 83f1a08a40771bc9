"""The TypeScript client: it is compiled, and Node's own test runner uses it against the real server."""

import os
import shutil
import subprocess

import pytest

import conftest
from conftest import ROOT

SOURCE = ROOT / "clients" / "typescript"
COMPILER = ROOT / ".cache" / "node" / "node_modules" / "typescript" / "bin" / "tsc"
SLOW = """
platform: "emulated"
parameters { key: "emulated_latency" value { string_value: "alpha_ms=0,beta_ms=1000" } }
"""


@pytest.mark.skipif(not shutil.which("node") or not COMPILER.exists(), reason="there is no Node.js (scripts/setup node)")
def test_the_typescript_client(server, tmp_path):
    built = tmp_path / "dist"
    done = subprocess.run(["node", str(COMPILER), "--project", str(SOURCE), "--outDir", str(built)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert (built / "index.d.ts").exists()
    (built / "package.json").write_text('{"type": "module"}')
    (tmp_path / "models" / "slow" / "1").mkdir(parents=True)
    (tmp_path / "models" / "slow" / "config.pbtxt").write_text(SLOW)
    slow = conftest.start(tmp_path / "models", "--devices", "emulated:1")
    try:
        environment = {"DIST": str(built), "URL": f"http://{server.http}", "SLOW_URL": f"http://{slow.http}"}
        command = ["node", "--test", "--test-reporter=spec", str(SOURCE / "test" / "client.test.mjs")]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, timeout=120)
    finally:
        slow.process.kill()
        slow.process.wait()
    assert done.returncode == 0 and "pass 7" in done.stdout, done.stdout + done.stderr
