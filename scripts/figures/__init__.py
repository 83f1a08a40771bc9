"""What measures this server: alone (bench), beside others (compare), on a GPU (gpu). `scripts/measure.py` runs its programs."""

import pathlib
import sys


def program(name, *arguments):
    """The command that runs a program of this package in a process of its own."""
    return [sys.executable, str(pathlib.Path(__file__).parents[1] / "measure.py"), name, *map(str, arguments)]
