"""Processes and cgroups of a platform, for tests of what is left of it."""

import re
from contextlib import suppress
from pathlib import Path

from served import Platform


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


def agent_of(platform: Platform, node: str) -> int | None:
    """Return the pid of a node's agent, the first process of its namespace."""
    call = f"node\0--name\0{node}\0"
    for pid in family(platform.process.pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{pid}/cmdline").read_text()
            if words.startswith(str(platform.farfork.binary)) and call in words:
                return pid
    return None


def cgroups() -> list[Path]:
    """Return the cgroups of all containers, in every hierarchy that there is."""
    found = Path("/sys/fs/cgroup").rglob("farfork-*")
    own = [path for path in found if re.fullmatch("farfork-[0-9a-f]{8}", path.name)]
    return list({path.name: path for path in own}.values())
