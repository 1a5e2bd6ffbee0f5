"""`python -m farfork.runtime FUNCTION.py|ZIP|DIR (--socket PATH | --listen-fd N) [--warm ...]`.

Exit status: 0 stopped by request, 1 the function failed to load or warm up, 2 usage error.
"""

import argparse
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from farfork.listener import Listener, ListenError
from farfork.loader import Function, LoadError, load
from farfork.runtime.server import Runtime


def main(argv: list[str] | None = None) -> int:
    """Load, warm up and serve a function; returns the exit status."""
    options = _parser().parse_args(argv)
    # onnxruntime's telemetry keeps a database, a thread and sockets open.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        listener = _listener(options)
        function = load(options.function)
        _warm(function, options.warm, options.warm_count)
    except (ListenError, LoadError) as error:
        return _fail(str(error))
    except Exception:
        return _fail(f"cannot load {options.function}:\n{traceback.format_exc()}")
    return _serve(function, listener)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m farfork.runtime", description="Serve a function on a Unix socket."
    )
    parser.add_argument("function", help="a .py file, a zip, or a folder")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--socket", metavar="PATH", help="listen on this path")
    where.add_argument("--listen-fd", metavar="N", type=int, help="listen on this open socket")
    parser.add_argument(
        "--warm",
        metavar="JSON|@FILE",
        type=_json_object,
        help="call the function with these arguments first",
    )
    parser.add_argument(
        "--warm-count",
        metavar="N",
        type=int,
        default=1,
        help="number of these calls (default: %(default)s)",
    )
    return parser


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"invalid JSON {text!r}: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value


def _listener(options: argparse.Namespace) -> Listener:
    if options.socket is not None:
        return Listener.bind(options.socket)
    return Listener.inherit(options.listen_fd)


def _warm(function: Function, args: dict[str, Any] | None, count: int) -> None:
    if args is not None:
        for index in range(count):
            function.call(args, f"warm-{index}")


def _serve(function: Function, listener: Listener) -> int:
    try:
        Runtime(function, listener).serve()
    except KeyboardInterrupt:
        return 130
    return 0


def _fail(reason: str) -> int:
    print(f"farfork.runtime: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
