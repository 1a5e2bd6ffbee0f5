"""Runs a function for a profiler: one JSON document of arguments a line, one of results a line."""

import json
import os
import sys

from farfork.loader import load

out = os.fdopen(os.dup(1), "w")
# What the function prints is not an answer.
os.dup2(2, 1)
function = load(sys.argv[1])
print("{}", file=out, flush=True)
for line in sys.stdin:
    try:
        answer = {"result": function.call(json.loads(line), "profile")}
        text = json.dumps(answer)
    except Exception as error:
        text = json.dumps({"error": f"{type(error).__name__}: {error}"})
    print(text, file=out, flush=True)
