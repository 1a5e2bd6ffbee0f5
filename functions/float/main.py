"""Sines, cosines and square roots of numbers: arithmetic and nothing else."""

import math
from typing import Any


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Return `{"sum"}` over the first `{"n"}` numbers, from `{"start"}` on."""
    start, n = int(args.get("start", 0)), int(args.get("n", 20_000))
    if n < 1 or start < 0:
        raise ValueError(f"cannot sum {n} numbers from {start}; give n above 0 and start from 0")
    return {"sum": sum(math.sin(i) + math.cos(i) + math.sqrt(i) for i in range(start, start + n))}


def example(index: int) -> dict[str, Any]:
    """Return the arguments of call number `index` of the benchmark."""
    return {"start": 1000 * index, "n": 20_000}
