"""Running the measuring programs of the crates."""

import subprocess

from figures.common import ROOT, Failed


def example(package, name, *arguments, features=()):
    """Builds and runs an example of a crate; gives what it printed."""
    command = ["cargo", "run", "--release", "--quiet", "-p", package, *asked(features), "--example", name, "--",
               *map(str, arguments)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if run.returncode != 0:
        raise Failed(f"{' '.join(command)}: {run.stderr.strip()[-500:]}")
    return run.stdout


def built(package, name, features=()):
    """Builds an example first, so that its run isn't disturbed by the compiler."""
    command = ["cargo", "build", "--release", "--quiet", "-p", package, *asked(features), "--example", name]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if run.returncode != 0:
        raise Failed(f"{' '.join(command)}: {run.stderr.strip()[-500:]}")


def asked(features):
    return ["--features", ",".join(features)] if features else []
