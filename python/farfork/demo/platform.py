"""`python -m farfork.demo.platform [--seconds N]`: the platform with sample functions.

Exit status: 0 all answers were right, 1 one was wrong or the demonstration failed, 2 usage error.
"""

import argparse
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from farfork.demo import interrupts, traffic
from farfork.demo.command import ROOT, CommandError, Farfork, MissingError
from farfork.demo.play import pool
from farfork.demo.progress import Progress
from farfork.demo.traffic import FUNCTIONS, Sample, Traffic

USUAL_PORT = 3233
_SHORT_S = 20.0
_PATIENCE_S = 60
_ENDING_S = 30
_OTHERS = 0o005


def main(argv: list[str] | None = None) -> int:
    """Serve, deploy, call; returns the exit status."""
    options = _parser().parse_args(argv)
    if os.geteuid() != 0:
        return _fail("making containers for functions needs root; run it as root")
    if hidden := hidden_from_functions([Path(sys.prefix), Path(sys.base_prefix), ROOT]):
        print(f"farfork.demo.platform: skipped: {_advice(hidden)}", file=sys.stderr)
        return 0
    seconds = options.seconds
    if seconds is None and not sys.stdout.isatty():
        seconds = _SHORT_S
    interrupts.raise_once()
    try:
        seen = show(Progress(), seconds)
    except (CommandError, MissingError, OSError, RuntimeError) as error:
        return _fail(str(error))
    print(f"\n{traffic.for_people(seen)}")
    return _fail("; ".join(seen.wrong)) if seen.wrong else 0


def show(progress: Progress, seconds: float | None) -> traffic.Seen:
    """Run the platform; everything is cleaned up when this returns or raises."""
    samples = [Sample(name) for name in FUNCTIONS]
    with ExitStack() as stack:
        # Not below /tmp: functions have a private one.
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="farfork-demo-", dir="/run"))
        place = Path(name)
        place.chmod(0o711)
        with progress.step("starting the platform: a gateway and two emulated nodes"):
            farfork = stack.enter_context(pool(place))
            address = stack.enter_context(serving(farfork, place))
        key_file = place / "state/guest.key"
        calls = Traffic(address, key_file.read_text().strip())
        with progress.step(f"deploying {', '.join(FUNCTIONS)}"):
            whom = ["--url", f"http://{address}", "--key-file", key_file]
            for sample in samples:
                farfork.do("deploy", sample.file, "--name", sample.name, *whom)
        try:
            with progress.step("calling each until it is warm and has an image"):
                calls.warm(samples)
            _print_address(address, key_file, seconds)
            with progress.step("calling them, sometimes eight at once"):
                calls.run(samples, seconds)
        except KeyboardInterrupt:
            print("\n  shutting down", file=sys.stderr)
        interrupts.ignore()
        progress.cleaning_up()
    return calls.seen


def _print_address(address: str, key_file: Path, seconds: float | None) -> None:
    until = "until Ctrl-C" if seconds is None else f"for {seconds:.0f} s"
    print(
        f"""
  Dashboard, {until}:           http://{address}/
  Call a function yourself:     farfork invoke hello --param name Ada --result \\
                                    --url http://{address} --key-file {key_file}
""",
        file=sys.stderr,
    )


@contextmanager
def serving(farfork: Farfork, place: Path) -> Iterator[str]:
    """Serve while the context lasts, and yield the address."""
    state, said = place / "state", place / "said"
    state.mkdir()
    listen = ["--listen", f"127.0.0.1:{_port()}"]
    with said.open("w+") as out, (place / "log").open("w+") as log:
        arguments = ["serve", "--state", state, *listen, "--python", sys.executable]
        process = farfork.popen(*arguments, words=log, out=out)
        try:
            deadline = time.monotonic() + _PATIENCE_S
            while not (address := said.read_text().strip().removeprefix("http://")):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"cannot start the platform: {_last(place / 'log')}")
                time.sleep(0.05)
            yield address
        finally:
            process.terminate()
            try:
                process.wait(_ENDING_S)
            finally:
                process.kill()
                process.wait()


def _port() -> int:
    """Return the default port, or 0 if it is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", USUAL_PORT))
        except OSError:
            return 0
    return USUAL_PORT


def _last(log: Path) -> str:
    lines = log.read_text().splitlines()
    return lines[-1] if lines else "its log is empty"


def hidden_from_functions(needed: list[Path]) -> Path | None:
    """Return a directory on the way to what functions read that only root may traverse."""
    for path in needed:
        real = path.resolve()
        for directory in [real, *real.parents]:
            if directory.stat().st_mode & _OTHERS != _OTHERS:
                return directory
    return None


def _advice(hidden: Path) -> str:
    return (
        f"functions of the platform run as unprivileged users, which may not read {hidden}; "
        "put farfork's checkout where all users may read, as below /opt, or run chmod o+rx on it"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m farfork.demo.platform",
        description="Serve sample functions, call them, and show the platform's dashboard.",
    )
    words = "end after this time (default: until Ctrl-C on a terminal, else 20)"
    parser.add_argument("--seconds", type=float, metavar="N", help=words)
    return parser


def _fail(reason: str) -> int:
    print(f"farfork.demo.platform: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
