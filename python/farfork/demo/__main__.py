"""`python -m farfork.demo [--json]`.

Exit status: 0 all answers were right, 1 one was wrong or the demonstration failed, 2 usage error.
"""

import argparse
import json
import os
import subprocess
import sys

from farfork.client import CallError, NoAnswerError
from farfork.demo import interrupts
from farfork.demo.command import CommandError, MissingError
from farfork.demo.nodes import NodeError
from farfork.demo.play import FUNCTION, play
from farfork.demo.progress import Progress
from farfork.demo.runtimes import StartError
from farfork.demo.table import for_people, for_programs

_FAILURES = (
    CallError,
    CommandError,
    MissingError,
    NoAnswerError,
    NodeError,
    OSError,
    StartError,
    subprocess.SubprocessError,
)
_INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Run the demonstration and print the table; returns the exit status."""
    options = _parser().parse_args(argv)
    if os.geteuid() != 0:
        return _fail("mounting a pool and making namespaces needs root; run it as root")
    interrupts.raise_once()
    print(f"farfork: a demonstration with {FUNCTION.name}, a sentence model", file=sys.stderr)
    try:
        seen = play(Progress())
    except KeyboardInterrupt:
        _fail("interrupted; everything was cleaned up")
        return _INTERRUPTED
    except _FAILURES as error:
        return _fail(str(error))
    if options.json:
        print(json.dumps(for_programs(seen), indent=2))
    else:
        print(f"\n{for_people(seen)}")
    return _fail("; ".join(seen.wrong)) if seen.wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m farfork.demo",
        description="Clone a warm sentence model to two emulated nodes and check the answers.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _fail(reason: str) -> int:
    print(f"farfork.demo: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
