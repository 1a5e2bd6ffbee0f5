"""The figures of MITOSIS (Wei et al., OSDI '23) in kind: seeds beside warm starts and CRIU.

Usage: bench/seeds_figures.py [ROUNDS] [PART...]    as root, after setup/criu.sh and a build

Parts: phases (figures 4, 12, 14), touched (16, 17), prefetch (15), herds (13, 17), ladder (18),
crowd (10,000 children on five nodes).
Each subject is prepared, dumped or checkpointed; then a clone is started for each way. "Start" is
from the start of the command to the function's first line, "run" from there to its answer, which
must be that of a process that is not a clone. All nodes are this machine: pages come by TCP on the
loopback device (seeds, sealed; sshfs, plain), or by shared memory (seeds) where it says so. sshfs
is looked for in PATH and in SSHFS_ROOT, below which its packages were unpacked; without it CRIU's
remote images lie in a directory. The program is that of FARFORK_BIN, or of target/debug.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from criu_seeds import NAMESPACE, ROOT, SILENT, Bed, Dumped, await_text, milliseconds

FUNCTIONS = (
    "hello",
    "compress",
    "json",
    "pyaes",
    "chameleon",
    "imageproc",
    "pagerank",
    "cnn",
)
MICRO_MB = (1, 16, 64, 256)
SHARES = (100, 300, 600, 900, 1000)
CALL = 5
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
RESULTS: list[dict[str, object]] = []


def note(figure: str, subject: str, way: str, **values: float) -> None:
    """Keep one sample."""
    RESULTS.append({"figure": figure, "subject": subject, "way": way, **values})


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
    raise SystemExit("seeds_figures.py: a process has not answered")


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
        raise SystemExit(f"seeds_figures.py: {subject.name}, {way}: {said}, not {subject.right}")


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


def both_criu(bed: Bed, figure: str, subject: Subject) -> None:
    """Measure CRIU with files that are copied, and with files that are read over a network."""
    images, copy = bed.make(), bed.make() / "copy"

    def copied() -> Path:
        subprocess.run(["cp", "-r", images, copy], check=True)
        return copy

    ways: list[tuple[str, Path, Callable[[], Path]]] = [("CRIU-local", images, copied)]
    with remote(bed) as (one, other):
        own = one / str(bed.count)
        own.mkdir()
        name = "CRIU-remote" if one != other else "CRIU, one directory"
        ways.append((name, own, lambda: other / own.name))
        for way, place, fetch in ways:
            try:
                note(figure, subject.name, way, **criu(bed, subject, place, fetch))
            except SystemExit as failure:
                print(f"{subject.name}, {way}: {str(failure)[-300:]}", file=sys.stderr)
        shutil.rmtree(own, ignore_errors=True)
    for place in (images, copy.parent):
        shutil.rmtree(place)


def phases(bed: Bed) -> None:
    """Measure each phase of each way, for the functions and the C function."""
    subjects = [function(name) for name in FUNCTIONS]
    subjects += [micro(bed, megabytes, 1000) for megabytes in MICRO_MB]
    for subject in subjects:
        start, run, _ = subject.cold()
        note("12", subject.name, "cold", start_ms=start, run_ms=run)
        warm = subject.ready()
        resident = memory_kib(warm.pid)
        start, run, _ = answer(warm, time.monotonic())
        warm_memory = memory_kib(warm.pid)
        end(warm)
        times = {"start_ms": start, "run_ms": run, "memory_kib": warm_memory}
        note("12", subject.name, "Caching", provisioned_kib=resident, **times)
        note("12", subject.name, "clone from the pool", **pool(bed, subject))
        for way, options, tcp in (
            ("seed, 1 page with each", ["--prefetch", "1"], True),
            ("seed, adaptive", [], True),
            ("seed, adaptive, shm", [], False),
            ("seed, all before the start", ["--eager"], True),
        ):
            seed = Seed(bed, subject, tcp=tcp)
            made = {
                "made_ms": seed.took,
                "frozen_ms": seed.report["frozen_us"] / 1e3,
                "provisioned_kib": seed.provisioned_kib(),
            }
            note("12", subject.name, way, **made, **seed.clone(*options))
            if way == "seed, adaptive":
                time.sleep(1)
                note("12", subject.name, "seed, its pages cached", **seed.clone(*options))
                pushed = ("--no-cache", "--push-ms", "200")
                note(
                    "12",
                    subject.name,
                    "seed, learned pages first",
                    **seed.clone(*pushed),
                )
            seed.end()
        both_criu(bed, "12", subject)


def touched(bed: Bed) -> None:
    """Measure copies on access beside copies before the start, by the share that is touched."""
    for share in SHARES:
        subject = micro(bed, 64, share)
        for around in ("0", "1", "2", "6", "15", "eager"):
            seed = Seed(bed, subject)
            options = ["--eager"] if around == "eager" else ["--prefetch", around]
            note("16", subject.name, around, **seed.clone(*options))
            seed.end()


def prefetch(bed: Bed) -> None:
    """Measure by the number of pages that come with each."""
    for name in FUNCTIONS:
        subject = function(name)
        for around in ("0", "1", "2", "6", "15"):
            seed = Seed(bed, subject)
            note("15", name, around, **seed.clone("--prefetch", around))
            seed.end()


def await_answers(subject: Subject, command: subprocess.Popen[bytes], count: int) -> None:
    """Wait until so many clones have given the right answer."""
    assert command.stdout is not None
    while count:
        line = command.stdout.readline().decode().strip()
        if line.startswith("A "):
            check(subject, "herd", line)
            count -= 1
        elif not line:
            raise SystemExit("seeds_figures.py: a herd has ended")


def herd(bed: Bed, subject: Subject, count: int, options: list[str]) -> float:
    """Start clones of one seed; return answers in a second."""
    seed = Seed(bed, subject)
    begun = time.monotonic()
    resume = [
        bed.farfork,
        "resume",
        "--detach",
        "--count",
        str(count),
        seed.handle,
        *options,
    ]
    command = subprocess.Popen(
        resume, cwd="/", env=bed.environment, stderr=subprocess.DEVNULL, **PIPES
    )
    assert command.stdin is not None
    command.stdin.write(b"g" * count)
    command.stdin.flush()
    await_answers(subject, command, count)
    seconds = time.monotonic() - begun
    end(command)
    seed.end()
    return count / seconds


def herds(bed: Bed) -> None:
    """Measure answers in a second: of warm processes, of clones of one seed, of CRIU's restores."""
    count = 16
    for subject in [
        *map(function, FUNCTIONS),
        *(micro(bed, 64, share) for share in SHARES),
    ]:
        begun, answered = time.monotonic(), 0
        warm = [subject.ready() for _ in range(count)]
        begun = time.monotonic()
        for process in warm:
            assert process.stdin is not None
            process.stdin.write(b"g")
            process.stdin.flush()
        for process in warm:
            assert process.stdout is not None
            while not process.stdout.readline().startswith(b"A "):
                pass
            answered += 1
        note("13", subject.name, "Caching", per_s=answered / (time.monotonic() - begun))
        for process in warm:
            end(process)
        for way, options in (
            (
                "one seed, 1 page with each, own caches",
                ["--prefetch", "1", "--no-cache"],
            ),
            ("one seed, adaptive, one cache", []),
            ("one seed, all before the start, one cache", ["--eager"]),
        ):
            note("13", subject.name, way, per_s=herd(bed, subject, count, options))


def ladder(bed: Bed) -> None:
    """Measure what each part of the way saves, for a short and a long function."""
    for name in ("json", "cnn"):
        subject = function(name)
        far = ["--no-cache", "--prefetch", "0"]
        for way, options, is_warm in (
            ("a mount, a connection and a clone", far, False),
            ("the mount is there", ["--prefetch", "0"], True),
            ("6 pages with each", ["--prefetch", "6"], True),
            ("15 with each, the others in the background", [], True),
            ("the same in a ghost", ["--ghost"], True),
        ):
            if is_warm:
                other = Seed(bed, subject)
                other.clone(*(word for word in options if word != "--ghost"))
                other.end()
            seed = Seed(bed, subject)
            if "--ghost" in options:
                ghost = bed.command("ghost", "start").decode().strip()
                note("18", name, way, **seed.clone(*options, ghost))
            else:
                note("18", name, way, **seed.clone(*options))
            seed.end()


@contextmanager
def networks(count: int) -> Iterator[list[str]]:
    """Yield network namespaces, each with a cable to this one, whose end here is 10.79.N.1."""
    names = [f"ff{os.getpid()}n{number}" for number in range(count)]
    try:
        for number, name in enumerate(names):
            veth = ["type", "veth", "peer", "name", "eth0", "netns", name]
            here = ["dev", f"{name}v"]
            for words in (
                ["netns", "add", name],
                ["link", "add", f"{name}v", *veth],
                ["addr", "add", f"10.79.{number}.1/24", *here],
                ["link", "set", *here, "up"],
                ["-n", name, "link", "set", "lo", "up"],
                ["-n", name, "addr", "add", f"10.79.{number}.2/24", "dev", "eth0"],
                ["-n", name, "link", "set", "eth0", "up"],
                ["-n", name, "route", "add", "default", "via", f"10.79.{number}.1"],
            ):
                subprocess.run(["ip", *words], check=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def crowd(bed: Bed) -> None:
    """Start 10,000 children of one seed on five nodes, 1,000 at a time."""
    nodes, children, at_once = 5, 10_000, 1_000
    subject = micro(bed, 64, 100)
    each = at_once // nodes
    with networks(nodes) as names:
        seed = Seed(bed, subject, listen="10.79.0.1")
        begun = time.monotonic()
        for _ in range(children // at_once):
            commands = []
            for name in names:
                run = {"FARFORK_RUN": str(bed.run / name), "FARFORK_NODE": name}
                words = ["nsenter", f"--net=/run/netns/{name}", "--", bed.farfork, "resume"]
                words += ["--detach", "--count", str(each), seed.handle]
                silent = {"stderr": subprocess.DEVNULL, "env": {**bed.environment, **run}}
                commands.append(subprocess.Popen(words, cwd="/", **silent, **PIPES))
            for command in commands:
                assert command.stdin is not None
                command.stdin.write(b"g" * each)
                command.stdin.flush()
            for command in commands:
                await_answers(subject, command, each)
            for command in commands:
                end(command)
        seconds = time.monotonic() - begun
        note("crowd", subject.name, f"{nodes} nodes", seconds=seconds, per_s=children / seconds)
        seed.end()


PARTS: dict[str, Callable[[Bed], None]] = {
    "phases": phases,
    "touched": touched,
    "prefetch": prefetch,
    "herds": herds,
    "ladder": ladder,
    "crowd": crowd,
}


def show(rounds: int) -> None:
    """Print medians, as JSON and as lines."""
    groups: dict[tuple[object, object, object], list[dict[str, object]]] = {}
    for row in RESULTS:
        groups.setdefault((row["figure"], row["subject"], row["way"]), []).append(row)
    for (figure, subject, way), rows in groups.items():
        values = {}
        for key in rows[0]:
            if key not in ("figure", "subject", "way"):
                values[key] = round(statistics.median(float(str(row[key])) for row in rows), 2)
        print(
            json.dumps({"figure": figure, "subject": subject, "way": way, **values}),
            flush=True,
        )
    print(json.dumps({"rounds": rounds, "load": os.getloadavg()}))


def main() -> None:
    """Measure the parts in turns, and print medians."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    parts = sys.argv[2:] or list(PARTS)
    with tempfile.TemporaryDirectory(prefix="ff-", dir="/dev/shm") as place:
        bed = Bed(Path(place))
        try:
            for number in range(rounds):
                for part in parts:
                    print(
                        f"round {number + 1}, {part}, {os.getloadavg()}",
                        file=sys.stderr,
                    )
                    PARTS[part](bed)
        finally:
            show(rounds)
            bed.end()


if __name__ == "__main__":
    main()
