"""A cgroup that counts the processor time of a live platform and all that it starts."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

V1 = Path("/sys/fs/cgroup/cpuacct")
V2 = Path("/sys/fs/cgroup")
NUMBERS = itertools.count()


class Group:
    """Counts the processor time of its processes."""

    def __init__(self, directory: Path, procs: Path) -> None:
        self.directory, self.procs = directory, procs

    def entering(self, command: list[str]) -> list[str]:
        """Return a command that enters the group and executes another one."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.procs), *command]

    def used_us(self) -> int:
        """Return the processor time so far, in microseconds."""
        v1 = self.directory / "cpuacct.usage"
        if v1.exists():
            return int(v1.read_text()) // 1000
        lines = (self.directory / "cpu.stat").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("usage_usec "))


@contextmanager
def counting() -> Iterator[Group | None]:
    """Make such a group while the context lasts; none where that is impossible."""
    name = f"farfork-calibrate-{os.getpid()}-{next(NUMBERS)}"
    is_v1 = V1.is_dir()
    directory = (V1 if is_v1 else V2) / name
    # With cgroup v2 the platform makes the cgroups of its nodes beside its own.
    own = directory if is_v1 else directory / "platform"
    try:
        directory.mkdir()
        own.mkdir(exist_ok=True)
    except OSError:
        with suppress(OSError):
            directory.rmdir()
        yield None
        return
    group = Group(directory, own / "cgroup.procs")
    try:
        yield group
    finally:
        for path, _, _ in os.walk(directory, topdown=False):
            with suppress(OSError):
                Path(path).rmdir()
