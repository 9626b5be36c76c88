"""Which processes there are, and who started them."""

import os
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    # Sets two processes apart that had one pid after each other.
    start: str
    command: str


def all_processes():
    """Every process that has not ended; one that only waits to be reaped has."""
    return _from_proc() if os.path.exists("/proc/self/stat") else _from_ps()


def _from_proc():
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                # The name is in parentheses and may hold anything, parentheses too.
                fields = file.read().rpartition(")")[2].split()
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        if fields[0] not in "ZX":
            found[int(entry)] = Process(int(entry), int(fields[1]), fields[19], command)
    return found


def _from_ps():
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat=,lstart=,args="], capture_output=True, text=True, check=True)
    found = {}
    for line in listing.stdout.splitlines():
        words = line.split()
        pid, parent, state = int(words[0]), int(words[1]), words[2]
        if "Z" not in state:
            found[pid] = Process(pid, parent, " ".join(words[3:8]), " ".join(words[8:]))
    return found


def below(pid):
    """The process and everything that it started, by what is alive now."""
    everything = all_processes()
    family = {pid}
    while more := {p.pid for p in everything.values() if p.parent in family and p.pid not in family}:
        family |= more
    return [everything[member] for member in family if member in everything]


def alive(processes):
    """Those of them that still run."""
    now = all_processes()
    return [p for p in processes if p.pid in now and now[p.pid].start == p.start]
