"""Prints what a function is asked in a benchmark, and what a fresh process answers.

usage: examples.py FUNCTION COUNT

One line of JSON for each of the first COUNT calls: {"args", "answer"}. The first call is made
twice; what differs between the two, as the time that it took, is left out of all answers.
"""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Load the function, ask it, print."""
    path, count = Path(sys.argv[1]), int(sys.argv[2])
    spec = importlib.util.spec_from_file_location("function", path / "main.py")
    assert spec
    assert spec.loader
    function = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(function)
    constant = _constant(function.main(function.example(0)), function.main(function.example(0)))
    for index in range(count):
        args = function.example(index)
        answer = {key: value for key, value in function.main(args).items() if key in constant}
        print(json.dumps({"args": args, "answer": answer}))


def _constant(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    return {key for key, value in one.items() if value == other[key]}


if __name__ == "__main__":
    main()
