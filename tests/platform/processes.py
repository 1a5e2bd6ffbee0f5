"""Processes and cgroups of a platform, for tests of what is left of it."""

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from served import Platform

from farfork.demo.command import Farfork


class Process(NamedTuple):
    """A process. Another may have the pid of one that has ended, but not its start time."""

    pid: int
    started: str


def known(pids: Iterable[int]) -> set[Process]:
    """Return those of the processes that exist."""
    found = set()
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            stat = Path(f"/proc/{pid}/stat").read_text()
            found.add(Process(pid, stat.rsplit(")", 1)[1].split()[19]))
    return found


def alive(processes: set[Process]) -> set[Process]:
    """Return those that have not ended."""
    return processes & known(one.pid for one in processes)


def family(pid: int) -> set[int]:
    """Return the processes that descend from one, it included."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, new = {pid}, [pid]
    while new:
        new = [child for one in new for child in parents.get(one, [])]
        found.update(new)
    return found


def node_of(platform: Platform, node: str) -> set[int]:
    """Return all processes of a node: its agent may be the child of an earlier platform."""
    try:
        record = json.loads((platform.state / f"{node}.agent").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return set()
    return family(record["pid"])


def agent_of(platform: Platform, node: str) -> int | None:
    """Return the pid of a node's agent, the first process of its namespace."""
    call = f"node\0--name\0{node}\0"
    parents: dict[int, int] = {}
    for pid in node_of(platform, node):
        with suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{pid}/cmdline").read_text()
            if words.startswith(str(platform.farfork.binary)) and call in words:
                stat = Path(f"/proc/{pid}/stat").read_text()
                parents[pid] = int(stat.rsplit(")", 1)[1].split()[1])
    # What it has just forked has its command line, too, until it executes another program.
    agents = [pid for pid, parent in parents.items() if parent not in parents]
    return agents[0] if agents else None


def cgroups(pattern: str) -> list[Path]:
    """Return the cgroups whose whole names match, in every hierarchy that there is."""
    found = []
    # Not by `rglob`, which fails when one goes that it is about to read.
    for place, names, _ in os.walk("/sys/fs/cgroup"):
        found += [Path(place) / name for name in names if re.fullmatch(pattern, name)]
    return found


def namespaces(pids: Iterable[int]) -> set[str]:
    """Return the namespaces that processes are in."""
    found = set()
    for pid in pids:
        with suppress(OSError):
            found |= {os.readlink(link) for link in Path(f"/proc/{pid}/ns").iterdir()}
    return found


def everybody() -> set[int]:
    """Return the pids of all processes."""
    return {int(path.name) for path in Path("/proc").glob("[0-9]*")}


def traces(marks: Iterable[str]) -> set[str]:
    """Return the cgroups and mounts of one run: lines of theirs hold one of `marks`."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    # Without the number that a mount has.
    lines = {str(path) for path in cgroups(".*farfork.*")}
    lines |= {line.split(" ", 2)[2] for line in mounts}
    return {line for line in lines if any(mark in line for mark in marks)}


def containers(of: Farfork | None = None) -> set[str]:
    """Return the names of the cgroups that containers have; those on the nodes of one run alone."""
    found = cgroups("farfork-[0-9a-f]{8}")
    if of is not None:
        nodes = f"farfork{of.environment['FARFORK_RUN'].replace('/', '-')}-"
        found = [path for path in found if any(name.startswith(nodes) for name in path.parts)]
    return {path.name for path in found}
