"""Server processes: started with a mark, counted and ended together with everything that they started."""

import os
import pathlib
import signal
import subprocess
import time
import uuid

from figures.common import TICK, Failed

MARK = "COMPARE_RUN"


class Tree:
    """A process with all that descend from it. Descendants are known by their parents, and by a variable of the
    environment that they inherit also where they left their parents."""

    def __init__(self, command, environment, log, cores=None, folder=None):
        self.mark = uuid.uuid4().hex
        self.log_path = pathlib.Path(log)
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        prefix = ["taskset", "-c", ",".join(map(str, cores))] if cores else []
        with open(self.log_path, "wb") as sink:
            self.process = subprocess.Popen(
                [*prefix, *map(str, command)],
                env={**environment, MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
            )
        self.known = set()

    def members(self):
        """The ids of the processes that live now."""
        parents, marked = {}, {self.process.pid}
        needle = f"{MARK}={self.mark}".encode()
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            pid = int(entry.name)
            try:
                parents[pid] = int(pathlib.Path(entry.path, "stat").read_text().rpartition(")")[2].split()[1])
                if needle in pathlib.Path(entry.path, "environ").read_bytes().split(b"\0"):
                    marked.add(pid)
            except (OSError, IndexError):
                continue
        grown = True
        while grown:
            found = {pid for pid, parent in parents.items() if parent in marked} - marked
            marked |= found
            grown = bool(found)
        self.known = {pid for pid in marked if pid in parents}
        return self.known

    def processor_seconds(self):
        """User and system time of each member so far."""
        seconds = {}
        for pid in self.members():
            try:
                fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            seconds[pid] = (int(fields[11]) + int(fields[12])) * TICK
        return seconds

    def alive(self):
        return self.process.poll() is None

    def said(self, characters=1500):
        return self.log_path.read_text(errors="replace")[-characters:].strip() or "it said nothing"

    def stop(self):
        """Asks the first process to end, then ends what is left of them, each by its id."""
        rest = set(self.members())
        for targets, how, patience in (({self.process.pid}, signal.SIGTERM, 5), (rest, signal.SIGKILL, 5)):
            for pid in filter(exists, targets):
                send(pid, how)
            give_up_at = time.monotonic() + patience
            while any(map(exists, rest)) and time.monotonic() < give_up_at:
                self.process.poll()
                time.sleep(0.05)
            rest |= self.members()
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:
            raise Failed(f"process {self.process.pid} doesn't end: end it by hand") from None


def used_between(before, after):
    """Seconds that members used; those that came meanwhile count in full."""
    return sum(max(0.0, seconds - before.get(pid, 0.0)) for pid, seconds in after.items())


def exists(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def send(pid, how):
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        pass
