"""Finds and runs the binary `farfork`."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[3]
_TIMEOUT_S = 120


class CommandError(RuntimeError):
    """A command failed; the message has the command and its error message."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class MissingError(RuntimeError):
    """Something required is missing; the message names it and how to get it."""


def find_binary() -> Path:
    """Return `$FARFORK_BIN`, or cargo's last build, or the one in PATH; or raise MissingError."""
    if given := os.environ.get("FARFORK_BIN"):
        candidates = [Path(given)]
    else:
        target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
        built = [target / profile / "farfork" for profile in ("release", "debug")]
        candidates = sorted(filter(Path.is_file, built), key=_age)
        if found := shutil.which("farfork"):
            candidates.append(Path(found))
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    raise MissingError("cannot find the binary farfork; run cargo build --release")


def _age(path: Path) -> float:
    return -path.stat().st_mtime


class Farfork:
    """The binary, with a run directory of its own and one pool."""

    def __init__(self, run_directory: Path) -> None:
        """Keep sockets, pins and, unless $FARFORK_POOL names one, the pool in `run_directory`."""
        self.binary = find_binary()
        self._log = run_directory / "farfork.log"
        run_directory.mkdir(parents=True, exist_ok=True)
        self.environment = {**os.environ, "FARFORK_RUN": str(run_directory)}

    def use_pool(self, path: Path) -> None:
        """Use this pool in all later calls."""
        self.environment["FARFORK_POOL"] = str(path)

    def popen(
        self,
        *arguments: object,
        words: IO[str],
        out: IO[str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> "subprocess.Popen[bytes]":
        """Start a command in the background, out of reach of Ctrl-C.

        Its output goes to the file `words`, its stdout to `out` if given.
        """
        return subprocess.Popen(
            [*prefix, str(self.binary), *map(str, arguments)],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=out or words,
            stderr=words,
            process_group=0,
        )

    def run(self, *arguments: object) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end, with any exit status."""
        # Not pipes: a detached clone inherits them and would keep them open. Its stderr is a
        # named file, so that the clone itself can be checkpointed.
        with tempfile.TemporaryFile("w+") as out, self._log.open("a+") as err:
            said_before = err.tell()
            process = subprocess.run(
                [str(self.binary), *map(str, arguments)],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                process_group=0,
                timeout=_TIMEOUT_S,
                check=False,
            )
            out.seek(0)
            err.seek(said_before)
            return subprocess.CompletedProcess(
                process.args, process.returncode, out.read(), err.read()
            )

    def do(self, *arguments: object) -> str:
        """Run a command; returns its output, or raises CommandError if it fails."""
        done = self.run(*arguments)
        if done.returncode != 0:
            call = " ".join(["farfork", *map(str, arguments)])
            said = done.stderr.strip() or done.stdout.strip() or "no output"
            message = f"{call}: exit status {done.returncode}: {said}"
            raise CommandError(message, done.returncode)
        return done.stdout

    def json(self, *arguments: object) -> Any:
        """Run a command with `--json`; returns its document, or raises CommandError."""
        return json.loads(self.do(*arguments, "--json"))
