"""The figures of MITOSIS (Wei et al., OSDI '23) in kind: seeds beside warm starts and CRIU.

Usage: bench/seeds_figures.py [--rounds N] [--minutes M] [--quick] [--json] [PART...]

It runs as root, after setup/criu.sh and a build.

Parts: collect (what prepare takes, for ten functions), reply (the first reply of a process of
150 MB), phases (figures 4, 12, 14), touched (16, 17), prefetch (15), herds (13, 17), ladder (18),
crowd (10,000 children on five nodes).
Each subject is prepared, dumped or checkpointed; then a clone is started for each way. "Start" is
from the start of the command to the function's first line, "run" from there to its answer, which
must be that of a process that is not a clone. All nodes are this machine: pages come by TCP on the
loopback device (seeds, sealed; sshfs, plain), or by shared memory (seeds) where it says so. sshfs
is looked for in PATH and in SSHFS_ROOT, below which its packages were unpacked; without it CRIU's
remote images lie in a directory. The program is that of FARFORK_BIN, or of target/debug.

Each part is measured once, then all of them again, up to the number of rounds. With --minutes a
part is not begun again if it would not end in time, as far as its last round shows. --quick shows
that everything works, and decides little: a few functions, sizes and children.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import seeds_report
from criu_seeds import CASES, Bed
from seeds_report import note
from seeds_subjects import (
    PIPES,
    Seed,
    Subject,
    answer,
    both_criu,
    check,
    criu_herd,
    criu_places,
    end,
    function,
    memory_kib,
    micro,
    pool,
)


class Scale:
    """How much is measured."""

    def __init__(self, *, is_quick: bool) -> None:
        # The ten functions of CXLfork's table 1, and the eight of MITOSIS.
        ten = [
            "float",
            "linpack",
            "json",
            "pyaes",
            "chameleon",
            "html",
            "cnn",
            "rnn",
            "bfs",
            "bert",
        ]
        eight = ["hello", "compress", "json", "pyaes", "chameleon", "imageproc"]
        eight += ["pagerank", "cnn"]
        self.ten = ["json", "cnn"] if is_quick else ten
        self.functions = ["hello", "json"] if is_quick else eight
        self.long = [] if is_quick else ["json", "cnn"]
        self.micro_mb = (16,) if is_quick else (1, 16, 64, 256)
        self.shares = (100, 1000) if is_quick else (100, 300, 600, 900, 1000)
        self.prepares = 3 if is_quick else 9
        self.replies = 1 if is_quick else 7
        self.herd = 4 if is_quick else 16
        self.children, self.at_once = (100, 50) if is_quick else (10_000, 1_000)


def collect(bed: Bed, scale: Scale) -> None:
    """Measure prepares of a process one after the other: the fork, and all else."""
    for name in scale.ten:
        subject = function(name)
        parent = subject.ready()
        for _ in range(scale.prepares):
            words = ["prepare", "--json", "--tcp-only", "--listen", "127.0.0.1"]
            seed = json.loads(bed.command(*words, "--pid", str(parent.pid)))
            forked, frozen = seed["fork_us"] / 1e3, seed["frozen_us"] / 1e3
            note(
                "prepare",
                name,
                "of a process that runs",
                **{"fork_ms": forked, "collected while it stands still_ms": frozen - forked},
                **{"all but the fork_ms": seed["prepare_us"] / 1e3 - forked},
                memory_kib=seed["memory_bytes"] / 1024,
            )
            bed.command("reclaim", "--wait", "0", seed["handle"])
        end(parent)


# What is touched of it, in thousandths.
REPLY_MB, REPLY_TOUCHED = 150, 10


def reply(bed: Bed, scale: Scale) -> None:
    """Measure the first reply of a process, by seeds and by CRIU, which come in turns."""
    # So that the mount of all seeds is there, and the agent.
    CASES["farfork, adaptive"](bed, 1, 1000)
    # Ways that fail in the first turn are left out. Later turns count as a whole or not at all,
    # because goals compare what was measured in one turn.
    ways = list(CASES)
    for number in range(scale.replies):
        turn = {}
        for way in ways:
            try:
                turn[way] = CASES[way](bed, REPLY_MB, REPLY_TOUCHED)
            except SystemExit as failure:
                print(f"reply, {way}: {str(failure)[-300:]}", file=sys.stderr)
        if number == 0:
            ways = list(turn)
        if len(turn) < len(ways):
            continue
        for way, (made, replied) in turn.items():
            note("reply", f"micro-{REPLY_MB}M", way, made_ms=made, reply_ms=replied)


def phases(bed: Bed, scale: Scale) -> None:
    """Measure each phase of each way, for the functions and the C function."""
    subjects = [function(name) for name in scale.functions]
    subjects += [micro(bed, megabytes, 1000) for megabytes in scale.micro_mb]
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


def touched(bed: Bed, scale: Scale) -> None:
    """Measure copies on access beside copies before the start, by the share that is touched."""
    for share in scale.shares:
        subject = micro(bed, 64, share)
        for around in ("0", "1", "2", "6", "15", "eager"):
            seed = Seed(bed, subject)
            options = ["--eager"] if around == "eager" else ["--prefetch", around]
            note("16", subject.name, around, **seed.clone(*options))
            seed.end()


def prefetch(bed: Bed, scale: Scale) -> None:
    """Measure by the number of pages that come with each."""
    for name in scale.functions:
        subject = function(name)
        for around in ("0", "1", "2", "6", "15"):
            seed = Seed(bed, subject)
            note("15", name, around, **seed.clone("--prefetch", around))
            seed.end()


def errors_of(bed: Bed) -> Path:
    """Return the file with what herds say of errors."""
    return bed.place / "errors"


def await_answers(bed: Bed, subject: Subject, command: subprocess.Popen[bytes], count: int) -> None:
    """Wait until so many clones have given the right answer."""
    assert command.stdout is not None
    while count:
        line = command.stdout.readline().decode().strip()
        if line.startswith("A "):
            check(subject, "herd", line)
            count -= 1
        elif not line:
            why = errors_of(bed).read_text()[-500:]
            raise SystemExit(f"seeds_figures.py: a herd has ended: {why}")


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
    with errors_of(bed).open("ab") as errors:
        command = subprocess.Popen(resume, cwd="/", env=bed.environment, stderr=errors, **PIPES)
    assert command.stdin is not None
    command.stdin.write(b"g" * count)
    command.stdin.flush()
    await_answers(bed, subject, command, count)
    seconds = time.monotonic() - begun
    end(command)
    seed.end()
    return count / seconds


def herds(bed: Bed, scale: Scale) -> None:
    """Measure answers in a second: of warm processes, of clones of one seed, of CRIU's restores."""
    count = scale.herd
    for subject in [
        *map(function, scale.functions),
        *(micro(bed, 64, share) for share in scale.shares),
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
        with criu_places(bed) as places:
            for way, images, fetch in places:
                try:
                    per_s = criu_herd(bed, subject, count, images, fetch)
                except SystemExit as failure:
                    print(f"{subject.name}, {way}: {str(failure)[-300:]}", file=sys.stderr)
                    continue
                note("13", subject.name, way, per_s=per_s)


def ladder(bed: Bed, scale: Scale) -> None:
    """Measure what each part of the way saves, for a short and a long function."""
    for name in scale.long:
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
            # Agents and far processes keep the namespace for a while, and with it the address.
            subprocess.run(["ip", "link", "del", f"{name}v"], check=False)
            subprocess.run(["ip", "netns", "del", name], check=False)


def crowd(bed: Bed, scale: Scale) -> None:
    """Start many children of one seed on five nodes, some at a time."""
    nodes, children, at_once = 5, scale.children, scale.at_once
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
                environment = {**bed.environment, **run}
                with errors_of(bed).open("ab") as errors:
                    command = subprocess.Popen(
                        words, cwd="/", stderr=errors, env=environment, **PIPES
                    )
                commands.append(command)
            for command in commands:
                assert command.stdin is not None
                command.stdin.write(b"g" * each)
                command.stdin.flush()
            for command in commands:
                await_answers(bed, subject, command, each)
            for command in commands:
                end(command)
        seconds = time.monotonic() - begun
        note("crowd", subject.name, f"{nodes} nodes", seconds=seconds, per_s=children / seconds)
        seed.end()


PARTS: dict[str, Callable[[Bed, Scale], None]] = {
    "collect": collect,
    "reply": reply,
    "phases": phases,
    "touched": touched,
    "prefetch": prefetch,
    "herds": herds,
    "ladder": ladder,
    "crowd": crowd,
}


def measure(bed: Bed, scale: Scale, parts: list[str], rounds: int, until: float) -> None:
    """Measure the parts in turns."""
    took: dict[str, float] = {}
    for number in range(rounds):
        for part in parts:
            begun = time.monotonic()
            if begun + took.get(part, 0) > until:
                continue
            load = f"load {os.getloadavg()[0]:.1f}"
            print(f"seeds_figures.py: round {number + 1}, {part}, {load}", file=sys.stderr)
            PARTS[part](bed, scale)
            took[part] = time.monotonic() - begun
    seconds = ", ".join(f"{part} {s:.0f} s" for part, s in took.items())
    print(f"seeds_figures.py: the last round took: {seconds}", file=sys.stderr)


def main() -> None:
    """Measure, and print a report."""
    parser = argparse.ArgumentParser(description="MITOSIS's figures in kind.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="no further round after"
    )
    parser.add_argument("--quick", action="store_true", help="good for trying out only")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    scale = Scale(is_quick=options.quick)
    rounds = 1 if options.quick else options.rounds
    until = time.monotonic() + 60 * options.minutes
    started = seeds_report.machine()
    with tempfile.TemporaryDirectory(prefix="ff-", dir="/dev/shm") as place:
        bed = Bed(Path(place))
        try:
            measure(bed, scale, options.parts or list(PARTS), rounds, until)
        finally:
            report = seeds_report.report(bed.farfork, started, is_quick=options.quick)
            if options.json:
                print(json.dumps(report, indent=2), flush=True)
            else:
                print(seeds_report.markdown(report), flush=True)
            bed.end()


if __name__ == "__main__":
    main()
