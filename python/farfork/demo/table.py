"""The results of the demonstration, as a table and as a document."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from farfork.demo.play import NODES, Measured


@dataclass(frozen=True)
class Row:
    """One way to start a process; medians where there are several."""

    case: str
    n: int
    start_ms: float
    first_answer_ms: float
    local_mb: float
    pool_shared_mb: float | None


def rows(seen: Measured) -> list[Row]:
    """Return cold start, local fork and clone."""
    forks, clones = seen.forks, seen.clones
    return [
        Row(
            "cold start",
            1,
            seen.cold_start_ms,
            seen.cold_answer_ms,
            _mb(seen.cold_local_bytes),
            None,
        ),
        Row(
            "local fork",
            len(forks),
            _median(forks, lambda child: child.start_ms),
            _median(forks, lambda child: child.answer_ms),
            _mb(_median(forks, lambda child: child.private_bytes)),
            None,
        ),
        Row(
            "clone",
            len(clones),
            _median(clones, lambda clone: clone.restore_ms),
            _median(clones, lambda clone: clone.answer_ms),
            _mb(_median(clones, lambda clone: clone.local_bytes)),
            _mb(_median(clones, lambda clone: clone.pool_bytes)),
        ),
    ]


def _median(items: Iterable[Any], value: Callable[[Any], float]) -> float:
    return statistics.median(map(value, items))


def _mb(count: float) -> float:
    return count / 1e6


def for_people(seen: Measured) -> str:
    """Return the table, its summary and how it was measured."""
    heads = ["", "start (ms)", "first answer (ms)", "local memory (MB)", "pool shared (MB)"]
    lines = [heads, *([row.case, *map(_number, _values(row))] for row in rows(seen))]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    table = "\n".join(_aligned(line, widths) for line in lines)
    return f"{table}\n\n{meaning(seen)}\n\n{_how(seen)}"


def _values(row: Row) -> list[float | None]:
    return [row.start_ms, row.first_answer_ms, row.local_mb, row.pool_shared_mb]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.2f}" if value < 10 else f"{value:,.0f}"  # noqa: PLR2004


def _aligned(line: list[str], widths: list[int]) -> str:
    first, *rest = line
    cells = [first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]
    return "  ".join(cells).rstrip()


def meaning(seen: Measured) -> str:
    """Return a summary of the table."""
    if seen.wrong:
        return "The figures are invalid, because there were wrong answers."
    cold, _, clone = rows(seen)
    faster = cold.first_answer_ms / clone.first_answer_ms
    return (
        f"{len(seen.clones)} clones on {len(NODES)} nodes, ready {clone.start_ms:.2f} ms after they"
        f" were asked for, gave the answers of a fresh process {faster:,.0f} times sooner than a"
        f" cold start, each with {clone.local_mb:.1f} MB of its own beside one image of"
        f" {_mb(seen.image_bytes):.0f} MB that all of them share."
    )


def _how(seen: Measured) -> str:
    return (
        "start: from exec until it listens, from fork() until the child runs, from the request\n"
        "until the clone's first instruction. first answer: from the same time until the answer\n"
        "(without the time of the command line). local memory: anonymous pages and page tables;\n"
        f"of a forked child, its private ones. fork() copies one of {seen.threads} threads, on\n"
        "the same machine only; a clone has all threads, on any node.\n"
        f"A warm call takes {seen.warm_call_ms:.1f} ms."
    )


def for_programs(seen: Measured) -> dict[str, Any]:
    """Return all figures, without the answers."""
    clones = [{k: v for k, v in asdict(clone).items() if k != "result"} for clone in seen.clones]
    return {
        "rows": [asdict(row) for row in rows(seen)],
        "meaning": meaning(seen),
        "clones": clones,
        "warm_call_ms": seen.warm_call_ms,
        "threads": seen.threads,
        "image_bytes": seen.image_bytes,
        "frozen_ms": seen.frozen_ms,
        "wrong": seen.wrong,
    }
