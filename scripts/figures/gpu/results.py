"""What was measured on a GPU, a file for each part, with the commit and the device that it is of.

MEASURED_BESIDE says what else the machine did meanwhile, for the page: "fuzzers on 14 cores, at idle priority".
"""

import json
import os
import pathlib
import subprocess
import time

from figures.common import ROOT


def commit():
    """Which state is measured. A machine without git is told by PUNCTUAL_COMMIT."""
    told = os.environ.get("PUNCTUAL_COMMIT")
    if told:
        return told
    git = lambda *words: subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    changed = git("status", "--porcelain", "--", "crates", "Cargo.toml", "Cargo.lock")
    return git("rev-parse", "--short", "HEAD") + (" with changes" if changed else "")


def device():
    """The GPU and its driver, as nvidia-smi names them; None where there is none."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return said.splitlines()[0].strip()


def keep(folder, part, command, figures):
    """Writes what a part has measured. `command` is how somebody measures it again."""
    folder.mkdir(parents=True, exist_ok=True)
    result = {
        "part": part, "commit": commit(), "device": device(), "cores": len(os.sched_getaffinity(0)), "measured": time.strftime("%Y-%m-%d"), "command": command,
        "beside": os.environ.get("MEASURED_BESIDE", ""), "figures": figures,
    }
    (folder / f"{part}.json").write_text(json.dumps(result, indent=1) + "\n")


def read(folders):
    """All results that the folders have, in their order."""
    return [json.loads(path.read_text()) for folder in folders for path in sorted(pathlib.Path(folder).glob("*.json"))]
