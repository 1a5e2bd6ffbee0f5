"""Runs the binary `farfork`, and finds it."""

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
    """A command failed; the message holds the call and what it said."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class MissingError(RuntimeError):
    """Something that has to be there is not; the message names it and the way to get it."""


def find_binary() -> Path:
    """Return `$FARFORK_BIN`, or what cargo built last, or what is in PATH; or MissingError."""
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
    raise MissingError("looking for the binary farfork: none here; run cargo build --release")


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
        """Let every later call mean this pool."""
        self.environment["FARFORK_POOL"] = str(path)

    def popen(
        self,
        *arguments: object,
        words: IO[str],
        out: IO[str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> "subprocess.Popen[bytes]":
        """Start a call that goes on; Ctrl-C does not reach it.

        What it says is in the file `words`, or what it says on stdout in `out`.
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
        """Run a call to its end, whatever its exit status."""
        # Not pipes: a detached clone inherits them and would keep them open. And what it
        # inherits as stderr has a name, so that it can be checkpointed in its turn.
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
        """Run a call that has to succeed; returns what it printed, or raises CommandError."""
        done = self.run(*arguments)
        if done.returncode != 0:
            call = " ".join(["farfork", *map(str, arguments)])
            said = done.stderr.strip() or done.stdout.strip() or "it said nothing"
            message = f"{call}: exit status {done.returncode}: {said}"
            raise CommandError(message, done.returncode)
        return done.stdout

    def json(self, *arguments: object) -> Any:
        """Run a call with `--json`; returns its document, or raises CommandError."""
        return json.loads(self.do(*arguments, "--json"))
