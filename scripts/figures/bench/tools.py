"""Running the measuring programs of the crates."""

import subprocess

from figures.common import ROOT, Failed


def lab(tool, *arguments, features=()):
    """Builds and runs a tool of the laboratory; gives what it printed."""
    return cargo("run", "lab", features, "--", tool, *arguments)


def lab_built(features=()):
    """Builds the laboratory first, so that its run isn't disturbed by the compiler."""
    cargo("build", "lab", features)


def engine_lab(tool, *arguments):
    """Builds and runs a tool of the engines' laboratory; gives what it printed."""
    return cargo("run", "engine-lab", (), "--", tool, *arguments)


def engine_lab_built():
    """Builds it first, so that its run isn't disturbed by the compiler."""
    cargo("build", "engine-lab", ())


def cargo(what, package, features, *arguments):
    asked = ["--features", ",".join(features)] if features else []
    command = ["cargo", what, "--release", "--quiet", "-p", package, *asked, *map(str, arguments)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if run.returncode != 0:
        raise Failed(f"{' '.join(command)}: {run.stderr.strip()[-500:]}")
    return run.stdout
