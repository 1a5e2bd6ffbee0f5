"""What the figures of seeds are made of: functions, seeds, clones from a pool, and CRIU's images.

Each subject is a program that says READY, waits for a byte and answers; its answer must be that of
a process that is not a clone. The program farfork is that of FARFORK_BIN, or of target/debug.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from criu_seeds import NAMESPACE, ROOT, SILENT, Bed, Dumped, await_text, milliseconds
from seeds_report import note

CALL = 5
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}


def memory_kib(pid: int, field: str = "Pss") -> int:
    """Return memory of a process, none of one that has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    return 0


def tree(pid: int) -> Iterator[int]:
    """Return a process and all that descend from it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from tree(int(child))


class Subject:
    """A program that says READY, waits for a byte, and answers."""

    def __init__(self, name: str, words: list[str]) -> None:
        self.name = name
        self.words = words
        models = os.environ.get("FARFORK_MODELS", str(ROOT / "build/models"))
        threads = {"OPENBLAS_NUM_THREADS": "1", "FARFORK_CNN_THREADS": "1"}
        # It keeps a database open, which each process changes.
        threads["ORT_DISABLE_TELEMETRY"] = "1"
        self.environment = {**os.environ, **threads, "FARFORK_MODELS": models}
        _, _, self.right = self.cold()

    def spawn(self, *more: str) -> subprocess.Popen[bytes]:
        """Start it."""
        words = [*self.words, *more]
        return subprocess.Popen(
            words, cwd="/", start_new_session=True, env=self.environment, **PIPES
        )

    def ready(self) -> subprocess.Popen[bytes]:
        """Start it, and wait until it is warm."""
        parent = self.spawn()
        assert parent.stdout is not None
        assert parent.stdout.readline().startswith(b"READY")
        return parent

    def cold(self) -> tuple[float, float, str]:
        """Start it for one call."""
        begun = time.monotonic()
        process = self.spawn()
        answered = answer(process, begun)
        end(process)
        return answered


def function(name: str) -> Subject:
    """Return a sample function."""
    python, server = ROOT / ".venv/bin/python", ROOT / "bench/programs/seed_function.py"
    return Subject(name, [str(python), str(server), str(ROOT / "functions" / name), str(CALL)])


def micro(bed: Bed, megabytes: int, touched: int) -> Subject:
    """Return the C function."""
    return Subject(f"micro-{megabytes}M-{touched}", [str(bed.micro), str(megabytes), str(touched)])


def answer(process: subprocess.Popen[bytes], begun: float) -> tuple[float, float, str]:
    """Give it a byte; return milliseconds to its first line and from there on, and its answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"g")
    process.stdin.flush()
    start = 0.0
    while line := process.stdout.readline():
        if line.startswith(b"S "):
            start = milliseconds(begun)
        elif line.startswith(b"A "):
            return start, milliseconds(begun) - start, line.decode().strip()
    raise SystemExit("seeds_subjects.py: a process has not answered")


def end(process: subprocess.Popen[bytes]) -> None:
    """Close its pipes, and wait for its end."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.read()
    process.wait()


def check(subject: Subject, way: str, said: str) -> None:
    """Demand the right answer."""
    if said != subject.right:
        raise SystemExit(f"seeds_subjects.py: {subject.name}, {way}: {said}, not {subject.right}")


class Seed:
    """A prepared process, which has ended."""

    def __init__(
        self, bed: Bed, subject: Subject, *, tcp: bool = True, listen: str = "127.0.0.1"
    ) -> None:
        self.bed, self.subject = bed, subject
        parent = subject.ready()
        begun = time.monotonic()
        more = ["--tcp-only"] if tcp else []
        made = bed.command(
            "prepare",
            "--json",
            "--listen",
            listen,
            *more,
            "--pid",
            str(parent.pid),
        )
        self.took = milliseconds(begun)
        self.report = json.loads(made)
        self.handle = self.report["handle"]
        parent.kill()
        parent.wait()

    def clone(self, *options: str) -> dict[str, float]:
        """Start one clone; return its times and its memory."""
        begun = time.monotonic()
        resume = [self.bed.farfork, "resume", "--detach", self.handle, *options]
        command = subprocess.Popen(
            resume,
            cwd="/",
            env=self.bed.environment,
            stderr=subprocess.DEVNULL,
            **PIPES,
        )
        start, run, said = answer(command, begun)
        check(self.subject, " ".join(options), said)
        clones = json.loads(self.bed.command("ps", "--json"))
        own = [clone["pid"] for clone in clones if clone["cid"] == self.report["id"]]
        pss = max(map(memory_kib, own), default=0)
        end(command)
        return {
            "start_ms": start,
            "run_ms": run,
            "memory_kib": pss,
            "fetched_kib": self.fetched(),
        }

    def fetched(self) -> float:
        """Return what this machine has fetched of it, in the mount that was asked last."""
        mounts = json.loads(self.bed.command("far", "status", "--json"))
        images = [image for mount in mounts for image in mount["images"]]
        own = [image["fetched_bytes"] for image in images if image["cid"] == self.report["id"]]
        return max(own, default=0) / 1024

    def provisioned_kib(self) -> int:
        """Return memory of the frozen copy and its keeper."""
        seeds = json.loads(self.bed.command("seeds", "--json"))
        own = next(seed for seed in seeds if seed["id"] == self.report["id"])
        return memory_kib(own["shadow_pid"]) + memory_kib(own["keeper_pid"])

    def end(self) -> None:
        """Reclaim it."""
        self.bed.command("reclaim", "--wait", "0", self.handle)


def pool(bed: Bed, subject: Subject) -> dict[str, float]:
    """Checkpoint, and restore one clone."""
    parent = subject.ready()
    name = f"figures/{subject.name.lower()}"
    begun = time.monotonic()
    bed.command("checkpoint", "--json", "--pid", str(parent.pid), "--name", name)
    took = milliseconds(begun)
    parent.kill()
    parent.wait()
    begun = time.monotonic()
    restore = [bed.farfork, "restore", "--detach", name]
    silent = {"stderr": subprocess.DEVNULL}
    command = subprocess.Popen(restore, cwd="/", env=bed.environment, **PIPES, **silent)
    start, run, said = answer(command, begun)
    check(subject, "pool", said)
    end(command)
    bed.command("images", "rm", name)
    return {"made_ms": took, "start_ms": start, "run_ms": run}


@contextmanager
def remote(bed: Bed) -> Iterator[tuple[Path, Path]]:
    """Yield a directory as two nodes have it mounted from a third; twice the same without sshfs."""
    below = bed.place / "served"
    below.mkdir(exist_ok=True)
    root = Path(os.environ.get("SSHFS_ROOT", "/"))
    tools = {name: shutil.which(name, path=f"{root}/usr/bin") for name in ("sshfs", "socat")}
    server = root / "usr/lib/openssh/sftp-server"
    if None in tools.values() or not server.exists():
        yield below, below
        return
    port = 22000 + os.getpid() % 1000
    listen = f"TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr,nodelay"
    serving = subprocess.Popen([str(tools["socat"]), listen, f"EXEC:{server}"], **SILENT)
    mounts = [bed.make(), bed.make()]
    try:
        time.sleep(0.5)
        for at in mounts:
            source = f"127.0.0.1:{below}"
            sshfs = [str(tools["sshfs"]), "-o", f"directport={port}", source, str(at)]
            subprocess.run(sshfs, check=True, **SILENT)
        yield mounts[0], mounts[1]
    finally:
        for at in mounts:
            subprocess.run(["umount", "-l", at], check=False)
        serving.terminate()
        serving.wait()


def criu(bed: Bed, subject: Subject, images: Path, fetch: Callable[[], Path]) -> dict[str, float]:
    """Dump to a directory, have `fetch` bring it to the other node, and restore."""
    dumped = Dumped(bed, subject.words, images=images, environment=subject.environment)
    kib = sum(file.stat().st_size for file in images.iterdir()) / 1024
    dumped.parent.wait()
    os.write(dumped.fifo, b"g")
    begun = time.monotonic()
    here = fetch()
    moved = milliseconds(begun)
    restore = [*NAMESPACE, *bed.criu, "restore", *dumped.common("restore.log", here)]
    dumped.processes.append(subprocess.Popen(restore, cwd=here, **SILENT))
    start = 0.0
    if not subject.name.startswith("micro"):
        await_text(dumped.output, "S 0")
        start = milliseconds(begun)
    await_text(dumped.output, subject.right)
    run = milliseconds(begun) - start
    pss = sum(memory_kib(pid) for pid in list(tree(dumped.processes[-1].pid))[-1:])
    dumped.end()
    values = {
        "made_ms": dumped.took,
        "moved_ms": moved,
        "start_ms": start,
        "run_ms": run,
    }
    return {**values, "memory_kib": pss, "provisioned_kib": kib}


def criu_herd(
    bed: Bed, subject: Subject, count: int, images: Path, fetch: Callable[[], Path]
) -> float:
    """Dump to a directory, and restore so many at once; return answers in a second."""
    dumped = Dumped(bed, subject.words, images=images, environment=subject.environment)
    dumped.parent.wait()
    os.write(dumped.fifo, b"g" * count)
    begun = time.monotonic()
    here = fetch()
    for number in range(count):
        work = dumped.place / str(number)
        work.mkdir()
        words = [*dumped.common("restore.log", here), "--work-dir", str(work)]
        restore = [*NAMESPACE, *bed.criu, "restore", *words]
        dumped.processes.append(subprocess.Popen(restore, cwd=work, **SILENT))
    try:
        await_text(dumped.output, f"{subject.right}\n", count)
        return count / (time.monotonic() - begun)
    finally:
        dumped.end()


@contextmanager
def criu_places(bed: Bed) -> Iterator[list[tuple[str, Path, Callable[[], Path]]]]:
    """Yield where CRIU's images are written, and how another node gets them.

    They are copied, and read over a network as far as this machine can.
    """
    images, copy = bed.make(), bed.make() / "copy"

    def copied() -> Path:
        subprocess.run(["cp", "-r", images, copy], check=True)
        return copy

    with remote(bed) as (one, other):
        own = one / str(bed.count)
        own.mkdir()
        name = "CRIU-remote" if one != other else "CRIU, one directory"
        yield [("CRIU-local", images, copied), (name, own, lambda: other / own.name)]
        shutil.rmtree(own, ignore_errors=True)
    for place in (images, copy.parent):
        shutil.rmtree(place)


def both_criu(bed: Bed, figure: str, subject: Subject) -> None:
    """Measure CRIU with files that are copied, and with files that are read over a network."""
    with criu_places(bed) as places:
        for way, images, fetch in places:
            try:
                note(figure, subject.name, way, **criu(bed, subject, images, fetch))
            except SystemExit as failure:
                print(f"{subject.name}, {way}: {str(failure)[-300:]}", file=sys.stderr)
