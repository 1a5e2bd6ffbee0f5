"""Writes the traces of `farfork bench porter`: bursty calls of ten functions.

usage: bench/traces/generate.py

Each trace is drawn from its own seed and has the columns of the Azure Functions trace of 2021:
app, func, end_timestamp, duration; times are seconds, and a call comes at its end less its
duration. The data set itself is not here. It is followed in kind; the figures are chosen:

- how often functions are called differs by orders of magnitude (Shahrad et al., ATC '20): the n-th
  of them 1/n times as often as the first, which function is the n-th is drawn for each trace;
- calls come in bursts, as CXLfork's evaluation has it (section 7.2): gaps have a gamma
  distribution, and a coefficient of variation that is drawn for each function from 2 to 6.
- durations are medians of warm calls of these functions, one thread each (docs/results/tiering.md).

The rate is what keeps two processors busy for LOAD of their time if every call is warm.
"""

import csv
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
SEEDS = range(1, 7)
SPAN_S = 24.0
LOAD = 0.35
PROCESSORS = 2
WARM_MS = {
    "float": 6.49,
    "linpack": 2.60,
    "json": 18.1,
    "pyaes": 10.6,
    "chameleon": 2.50,
    "html": 31.9,
    "cnn": 34.0,
    "rnn": 35.9,
    "bfs": 168.0,
    "bert": 128.0,
}


def main() -> None:
    """Write all of them."""
    for seed in SEEDS:
        with (HERE / f"bursts-{seed}.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["app", "func", "end_timestamp", "duration"])
            writer.writerows(rows(seed))


def rows(seed: int) -> list[tuple[str, str, str, str]]:
    """Return the calls of one trace, in the order in which they end."""
    chance = np.random.default_rng(seed)
    names = chance.permutation(list(WARM_MS))
    popularity = 1 / np.arange(1, len(names) + 1)
    work_s = np.array([WARM_MS[name] / 1000 for name in names])
    rates = popularity * LOAD * PROCESSORS / (popularity @ work_s)
    calls = [
        (time + duration, name, duration)
        for name, rate, duration in zip(names, rates, work_s, strict=True)
        for time in arrivals(chance, rate)
    ]
    return [("bench", name, f"{end:.6f}", f"{took:.6f}") for end, name, took in sorted(calls)]


def arrivals(chance: np.random.Generator, rate: float) -> list[float]:
    """Return when calls come, as many in a second as the rate says, in bursts."""
    shape = 1 / chance.uniform(2, 6) ** 2
    # Begun long before, so that the beginning is like any other time.
    gaps = chance.gamma(shape, 1 / (rate * shape), size=int(40 * SPAN_S * rate) + 10_000)
    times = np.cumsum(gaps) - 10 * SPAN_S
    return [float(time) for time in times if 0 <= time < SPAN_S]


if __name__ == "__main__":
    main()
