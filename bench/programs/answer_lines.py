"""Calls a function with each line that it reads, and prints each answer as a line.

usage: answer_lines.py FUNCTION

Both are JSON. It is what the function runtime does without its socket, for emulators that lack some
of what sockets have.
"""

import json
import sys

from farfork.loader import load


def main() -> None:
    """Load the function, and answer until there is nothing more to read."""
    function = load(sys.argv[1])
    for number, line in enumerate(sys.stdin):
        print(json.dumps(function.call(json.loads(line), str(number))), flush=True)


if __name__ == "__main__":
    main()
