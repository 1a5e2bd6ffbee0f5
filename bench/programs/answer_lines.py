"""Answers the function runtime's requests as lines, without its socket.

usage: answer_lines.py FUNCTION

For emulators that lack some of what sockets have.
"""

import json
import os
import sys

from farfork.loader import load


def main() -> None:
    """Load the function, and answer until there is nothing more to read."""
    function = load(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        result = function.call(request["args"], request["id"])
        answer = {"id": request["id"], "ok": True, "result": result, "pid": os.getpid()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
