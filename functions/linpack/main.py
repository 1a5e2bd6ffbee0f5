"""Solves systems of linear equations, as the LINPACK benchmark does."""

import time
from typing import Any

import numpy as np


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Solve `{"n"}` equations drawn by `{"seed"}`; return whether it is exact, and the speed."""
    n, seed = int(args.get("n", 200)), int(args.get("seed", 0))
    rng = np.random.default_rng(seed)
    matrix = rng.random((n, n)) - 0.5
    expected = np.ones(n)
    begun = time.perf_counter()
    solution = np.linalg.solve(matrix, matrix @ expected)
    elapsed = time.perf_counter() - begun
    operations = 2 * n**3 / 3 + 2 * n**2
    return {
        "is_exact": bool(np.allclose(solution, expected, atol=1e-6)),
        "n": n,
        "mflops": operations / elapsed / 1e6,
    }


def example(index: int) -> dict[str, Any]:
    """Return the arguments of call number `index` of the benchmark."""
    return {"n": 200, "seed": index}
