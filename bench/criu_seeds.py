"""Seeds beside CRIU: one C function, moved by each, to its first right answer.

Usage: bench/criu_seeds.py [ROUNDS]    as root, after setup/criu.sh and cargo build -p farfork-cli

Each round of each case has a new process. It is prepared (farfork) or dumped (CRIU); then it is
killed, and a clone is started that adds up a share of its pages. "To the answer" is from the start
of the first program that starts the clone to the right sum. Pages come over TCP on the loopback
device: sealed (farfork), plain (CRIU's page server). CRIU's images lie on a tmpfs; its post-copy
starts a daemon, then a restore. The program of farfork is that of FARFORK_BIN, or of target/debug:
the results are those of its profile.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SIZES_MB = (16, 128)
TOUCHED = (100, 600, 900)
LIMIT_S = 60
OPTIONS = ["--manage-cgroups=ignore", "--file-validation", "filesize", "-v1"]
NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
Case = Callable[["Bed", int, int], tuple[float, float]]


class Bed:
    """A directory on a tmpfs, the compiled function, and both programs."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.count = 0
        self.micro = place / "micro"
        source = ROOT / "bench/programs/seed_micro.c"
        subprocess.run(["cc", "-O2", "-o", self.micro, source], check=True)
        self.criu = (ROOT / "build/criu/command").read_text().splitlines()
        self.farfork = os.environ.get("FARFORK_BIN", str(ROOT / "target/debug/farfork"))
        self.run = place / "run"
        self.run.mkdir()
        self.environment = dict(os.environ, FARFORK_RUN=str(self.run))

    def make(self) -> Path:
        """Return a new directory."""
        self.count += 1
        made = self.place / str(self.count)
        made.mkdir()
        return made

    def end(self) -> None:
        """Unmount what clones of seeds had mapped: its far process ends then."""
        for line in Path("/proc/mounts").read_text().splitlines():
            if (mounted := line.split(" ")[1]).startswith(str(self.run)):
                subprocess.run(["umount", "-l", mounted], check=True)
        # It looks whether it is still mounted.
        time.sleep(1)

    def command(self, *words: str) -> bytes:
        """Run farfork, and return what it prints."""
        command = [self.farfork, *words]
        environment = self.environment
        done = subprocess.run(
            command, env=environment, check=True, stdin=subprocess.DEVNULL, capture_output=True
        )
        return done.stdout


def answer(megabytes: int, touched: int) -> str:
    """Return the line that a clone has to print."""
    pages = megabytes * 256 * touched // 1000
    return f"A {pages * (pages - 1) // 2}"


def await_text(path: Path, text: str, times: int = 1) -> None:
    """Wait until a file has the text, so many times."""
    until = time.monotonic() + LIMIT_S
    while path.read_text().count(text) < times:
        if time.monotonic() > until:
            raise SystemExit(f"criu_seeds.py: {path} has no {text}")
        time.sleep(0.0005)


def milliseconds(since: float) -> float:
    """Return the time that has passed."""
    return (time.monotonic() - since) * 1e3


def seed(options: list[str]) -> Case:
    """Return the case of a clone of a seed."""

    def measure(bed: Bed, megabytes: int, touched: int) -> tuple[float, float]:
        words = [str(bed.micro), str(megabytes), str(touched)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        parent = subprocess.Popen(words, cwd="/", start_new_session=True, **pipes)
        assert parent.stdout is not None
        assert parent.stdout.readline().startswith(b"READY")
        begun = time.monotonic()
        listen = ["--listen", "127.0.0.1"]
        made = bed.command("prepare", "--json", *listen, "--pid", str(parent.pid))
        prepared = milliseconds(begun)
        handle = json.loads(made)["handle"]
        parent.kill()
        parent.wait()
        begun = time.monotonic()
        resume = [bed.farfork, "resume", "--detach", handle, *options]
        silent = {"stderr": subprocess.DEVNULL}
        clone = subprocess.Popen(resume, cwd="/", env=bed.environment, **pipes, **silent)
        assert clone.stdin is not None
        assert clone.stdout is not None
        clone.stdin.write(b"g")
        clone.stdin.flush()
        right = answer(megabytes, touched).encode()
        # The command prints a pid before or after it.
        while (line := clone.stdout.readline()).strip() != right:
            if not line:
                raise SystemExit("criu_seeds.py: a clone of a seed has not answered")
        took = milliseconds(begun)
        clone.stdin.close()
        clone.stdout.read()
        clone.wait()
        bed.command("reclaim", "--wait", "0", handle)
        return prepared, took

    return measure


class Dumped:
    """A process and its images. Its input is a FIFO, its output a file."""

    def __init__(
        self,
        bed: Bed,
        words: list[str],
        *,
        is_lazy: bool = False,
        images: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.place = bed.make()
        self.images = images or self.place / "images"
        self.images.mkdir(exist_ok=True)
        self.output = self.place / "out"
        os.mkfifo(self.place / "in")
        # As long as it is open, what is written to it is kept.
        self.fifo = os.open(self.place / "in", os.O_RDWR)
        # Appended to, so that several restores write one after the other, and CRIU takes it longer.
        with self.output.open("a") as output:
            streams = {"stdin": self.fifo, "stdout": output, "stderr": subprocess.DEVNULL}
            self.parent = subprocess.Popen(
                words, cwd="/", start_new_session=True, env=environment, **streams
            )
        await_text(self.output, "READY")
        self.port = ["--address", "127.0.0.1", "--port", str(21000 + bed.count)]
        begun = time.monotonic()
        reader, writer = os.pipe()
        lazy = ["--lazy-pages", *self.port, "--status-fd", str(writer)] if is_lazy else []
        dump = [*bed.criu, "dump", "-t", str(self.parent.pid), *self.common("dump.log"), *lazy]
        self.processes = [subprocess.Popen(dump, cwd=self.images, pass_fds=[writer], **SILENT)]
        os.close(writer)
        # Its page server is ready, or it has ended.
        os.read(reader, 1)
        os.close(reader)
        if not is_lazy and self.processes[0].wait() != 0:
            raise SystemExit((self.images / "dump.log").read_text())
        self.took = milliseconds(begun)

    def common(self, log: str, images: Path | None = None) -> list[str]:
        """Return arguments that all commands of CRIU have."""
        return ["-D", str(images or self.images), "-o", log, *OPTIONS]

    def end(self) -> None:
        """End all processes, and remove the images."""
        for process in [*reversed(self.processes), self.parent]:
            process.kill()
            process.wait()
        os.close(self.fifo)
        subprocess.run(["rm", "-r", self.place], check=True)


def criu(*, is_lazy: bool) -> Case:
    """Return the case of a restore; lazily, pages come from the dumped process."""

    def measure(bed: Bed, megabytes: int, touched: int) -> tuple[float, float]:
        dumped = Dumped(bed, [str(bed.micro), str(megabytes), str(touched)], is_lazy=is_lazy)
        images = dumped.images
        os.write(dumped.fifo, b"g")
        begun = time.monotonic()
        if is_lazy:
            pages = [
                "lazy-pages",
                "--page-server",
                *dumped.port,
                "-D",
                str(images),
                "-o",
                "lazy.log",
            ]
            dumped.processes.append(subprocess.Popen([*bed.criu, *pages], cwd=images, **SILENT))
            while not (images / "lazy-pages.socket").exists():
                time.sleep(0.0005)
        restore = [*NAMESPACE, *bed.criu, "restore", *dumped.common("restore.log")]
        restore += ["--lazy-pages"] * is_lazy
        dumped.processes.append(subprocess.Popen(restore, cwd=images, **SILENT))
        await_text(dumped.output, answer(megabytes, touched))
        took = milliseconds(begun)
        dumped.end()
        return dumped.took, took

    return measure


CASES: dict[str, Case] = {
    "farfork, on demand": seed(["--no-prefetch"]),
    "farfork, adaptive": seed([]),
    "farfork, all before the start": seed(["--eager"]),
    "CRIU, images on a tmpfs": criu(is_lazy=False),
    "CRIU, post-copy": criu(is_lazy=True),
}


def main() -> None:
    """Measure all cases in turns, and print medians and least values."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with tempfile.TemporaryDirectory(prefix="ff-", dir="/dev/shm") as place:
        bed = Bed(Path(place))
        for megabytes in SIZES_MB:
            for touched in TOUCHED:
                seen: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
                # In turns: what disturbs one case disturbs all.
                for _ in range(rounds):
                    for name, measure in CASES.items():
                        seen[name].append(measure(bed, megabytes, touched))
                for name, pairs in seen.items():
                    show(f"{megabytes} MB, {touched // 10} %, {name}", pairs)
        bed.end()
    print(f"load at the end: {os.getloadavg()[0]:.1f}")


def show(name: str, pairs: list[tuple[float, float]]) -> None:
    """Print one line."""
    columns = [(statistics.median(column), min(column)) for column in zip(*pairs, strict=True)]
    words = [f"{median:8.1f} ({least:.1f})" for median, least in columns]
    print(f"{name:45} made {words[0]:>18} ms   to the answer {words[1]:>18} ms", flush=True)


if __name__ == "__main__":
    main()
