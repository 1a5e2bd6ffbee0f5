"""What functions/random draws, the C library's and the vDSO's getrandom, and which hooks ran."""

import ctypes
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import farfork

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))

import vdso  # noqa: E402 (the tests' folder is in the path now)

spec = importlib.util.spec_from_file_location("draws", HERE.parents[3] / "functions/random/main.py")
assert spec
assert spec.loader
draws = importlib.util.module_from_spec(spec)
spec.loader.exec_module(draws)

libc = ctypes.CDLL(None)
from_vdso = vdso.generator()
events: list[str] = []
for name in ("first", "second"):
    farfork.before_checkpoint(events.append, f"before {name}")
    farfork.after_restore(events.append, f"after {name}")


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Return `{"draws", "events"}`; ends the process with status `exit` if that is given."""
    if "exit" in args:
        os._exit(args["exit"])
    buffer = ctypes.create_string_buffer(8)
    assert libc.getrandom(buffer, ctypes.c_size_t(8), 0) == len(buffer.raw)
    all_draws = {**draws.main({}), "libc_getrandom": buffer.raw.hex()}
    if from_vdso:
        all_draws["vdso_getrandom"] = from_vdso(8)
    return {"draws": all_draws, "events": events}
