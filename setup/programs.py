"""Run test programs of the workspace side by side; the command line is for `cargo test`.

    python3 setup/programs.py [--at-once N] [--logs FOLDER] [--alone NAME]... CARGO ARGUMENTS
        [-- TEST ARGUMENTS]

Cargo builds the programs, and would run one after the other. Most of them wait for processes for
half of their time, and each has an end in which one last test waits. Here others run meanwhile.
Those that are named to run alone come before, one after the other. What a program
prints comes in one piece when it has ended, so that setup/summary.py reads it like cargo's, and
lies in FOLDER while it runs. A program that cannot start, or that is killed, has failed. The others
run all the same.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

SLOWEST = 20
LOGS = Path("build/test/programs")


class Program(NamedTuple):
    """A program with tests."""

    name: str
    path: str
    package: Path


class Run(NamedTuple):
    """A program that runs."""

    program: Program
    begun: float
    output: Path


class Ended(NamedTuple):
    """How a run ended, and what it took."""

    name: str
    # Negative: by which signal. None: it did not start.
    status: int | None
    seconds: float = 0.0
    processors: float = 0.0


def programs(messages: Iterable[str]) -> list[Program]:
    """Return the test programs among the messages of a build, in the order of their begin."""
    found = []
    for line in messages:
        message: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
        if message.get("executable") and message.get("profile", {}).get("test"):
            package = Path(message["manifest_path"]).parent
            target = message["target"]
            # Tests inside of a library or command have its name. Several packages have tests "it".
            inside = target["kind"] != ["test"]
            name = f"{target['name']} (unit tests)" if inside else target["name"]
            name = f"{package.name}/it" if name == "it" else name
            found.append(Program(name, message["executable"], package))
    return sorted(found)


def build(arguments: list[str]) -> list[Program]:
    """Build the programs. End with cargo's status if that fails."""
    call = [
        "cargo",
        "test",
        *arguments,
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]
    made = subprocess.run(call, stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode != 0:
        sys.exit(made.returncode)
    return programs(made.stdout.splitlines())


def begin(program: Program, output: Path, arguments: list[str]) -> tuple[int, Run]:
    """Start a program as cargo does. Return its pid, too."""
    deps = Path(program.path).parent
    libraries = [str(deps), str(deps.parent), os.environ.get("LD_LIBRARY_PATH", "")]
    environment = {
        **os.environ,
        "CARGO_MANIFEST_DIR": str(program.package),
        "LD_LIBRARY_PATH": ":".join(filter(None, libraries)),
    }
    begun = time.monotonic()
    with output.open("wb") as to:
        process = subprocess.Popen(
            [program.path, *arguments],
            cwd=program.package,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=to,
            stderr=subprocess.STDOUT,
        )
    # Waited for below, with what it used.
    process.returncode = 0
    return process.pid, Run(program, begun, output)


def end(run: Run, status: int, used: Any) -> Ended:
    """Print what a program has printed."""
    print(f"\n=== {run.program.name} ({run.program.path})", flush=True)
    sys.stdout.buffer.write(run.output.read_bytes())
    sys.stdout.flush()
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        how = f"signal {-code}" if code < 0 else f"status {code}"
        print(f"error: test program failed: {run.program.name}: {how}", flush=True)
    processors = used.ru_utime + used.ru_stime
    return Ended(run.program.name, code, time.monotonic() - run.begun, processors)


def run_all(waiting: list[Program], at_once: int, logs: Path, arguments: list[str]) -> list[Ended]:
    """Run all of them, in their order, so many at a time."""
    left = list(waiting)
    running: dict[int, Run] = {}
    ended: list[Ended] = []
    while left or running:
        while left and len(running) < at_once:
            program = left.pop(0)
            print(f"     Running {program.name} ({program.path})", flush=True)
            output = logs / f"{program.name.replace('/', '-')}-{len(left)}.log"
            try:
                pid, run = begin(program, output, arguments)
            except OSError as error:
                print(f"error: cannot start {program.name}: {error}", flush=True)
                ended.append(Ended(program.name, None))
                continue
            running[pid] = run
        if running:
            pid, status, used = os.wait4(-1, 0)
            if pid in running:
                ended.append(end(running.pop(pid), status, used))
    return ended


def run_apart(
    chosen: list[Program], alone: list[str], how: tuple[int, Path, list[str]]
) -> list[Ended]:
    """Run those that run alone, and then the others."""
    at_once, logs, arguments = how
    unknown = set(alone) - {program.name for program in chosen}
    if unknown:
        sys.exit(f"error: no such test programs: {', '.join(sorted(unknown))}")
    first = [program for program in chosen if program.name in alone]
    others = [program for program in chosen if program.name not in alone]
    return run_all(first, 1, logs, arguments) + run_all(others, at_once, logs, arguments)


def report(ended: list[Ended]) -> int:
    """Print which took longest, and which failed. Return the status of all of them."""
    print(f"\nThe slowest of {len(ended)} programs:")
    for one in sorted(ended, key=lambda one: one.seconds, reverse=True)[:SLOWEST]:
        print(f"{one.seconds:7.1f} s, processors {one.processors:7.1f} s: {one.name}")
    failed = [one.name for one in ended if one.status != 0]
    if failed:
        print(f"failed: {', '.join(failed)}")
    if not ended:
        print("error: no test programs were built")
    return 1 if failed or not ended else 0


def take_names(arguments: list[str]) -> list[str]:
    """Take the names of programs that run alone from the begin of the arguments."""
    names = []
    while name := option(arguments, "--alone", ""):
        names.append(name)
    return names


def option(arguments: list[str], name: str, otherwise: str) -> str:
    """Take an option from the begin of the arguments."""
    if arguments[:1] == [name] and len(arguments) > 1:
        arguments.pop(0)
        return arguments.pop(0)
    return otherwise


def main(arguments: list[str]) -> int:
    """Run what the command line names. Return 1 if a program fails."""
    at_once = int(option(arguments, "--at-once", "2"))
    logs = Path(option(arguments, "--logs", str(LOGS)))
    alone = take_names(arguments)
    split = arguments.index("--") if "--" in arguments else len(arguments)
    chosen = build(arguments[:split])
    logs.mkdir(parents=True, exist_ok=True)
    ended = run_apart(chosen, alone, (at_once, logs, arguments[split + 1 :]))
    return report(ended)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
