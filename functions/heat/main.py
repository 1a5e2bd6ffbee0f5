"""Heat that spreads over a plate: writes all of its data in every call.

The opposite of a model that is only read: two grids of 1024 by 1024 numbers, 16 MB, each
step of which reads one and writes the other.
"""

from typing import Any

import numpy as np

SIDE = 1024

_GRIDS = [np.zeros((SIDE, SIDE)), np.zeros((SIDE, SIDE))]


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Return warmth and hottest point after `{"steps"}`, with a spot at `{"x"}`, `{"y"}`."""
    steps, x, y = (int(args.get(name, 8)) for name in ("steps", "x", "y"))
    if not (0 <= x < SIDE and 0 <= y < SIDE and 0 < steps <= SIDE):
        raise ValueError(f"cannot heat {x}, {y} for {steps} steps on {SIDE} by {SIDE} points")
    now, then = _GRIDS
    for grid in _GRIDS:
        grid.fill(20.0)
    now[max(y - 8, 0) : y + 8, max(x - 8, 0) : x + 8] = 1000.0
    for _ in range(steps):
        inner = then[1:-1, 1:-1]
        np.add(now[:-2, 1:-1], now[2:, 1:-1], out=inner)
        inner += now[1:-1, :-2]
        inner += now[1:-1, 2:]
        inner *= 0.25
        now, then = then, now
    hottest = int(now.argmax())
    return {"mean": float(now.mean()), "hottest": [hottest % SIDE, hottest // SIDE]}


def example(index: int) -> dict[str, Any]:
    """Return the arguments of call number `index` of the benchmark."""
    return {"steps": 8, "x": 37 * index % SIDE, "y": 91 * index % SIDE}
