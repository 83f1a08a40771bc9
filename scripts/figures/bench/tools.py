"""Running the measuring programs of the crates."""

import subprocess

from figures.common import ROOT, Failed


def example(package, name, *arguments, features=()):
    """Builds and runs an example of a crate; gives what it printed."""
    return cargo("run", package, features, "--example", name, "--", *arguments)


def built(package, name, features=()):
    """Builds an example first, so that its run isn't disturbed by the compiler."""
    cargo("build", package, features, "--example", name)


def lab(tool, *arguments, features=()):
    """Builds and runs a tool of the laboratory; gives what it printed."""
    return cargo("run", "lab", features, "--", tool, *arguments)


def lab_built(features=()):
    """Builds the laboratory first, so that its run isn't disturbed by the compiler."""
    cargo("build", "lab", features)


def cargo(what, package, features, *arguments):
    asked = ["--features", ",".join(features)] if features else []
    command = ["cargo", what, "--release", "--quiet", "-p", package, *asked, *map(str, arguments)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if run.returncode != 0:
        raise Failed(f"{' '.join(command)}: {run.stderr.strip()[-500:]}")
    return run.stdout
