"""The report of `bench/seeds_figures.py`; nothing is measured."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import seeds_report


@pytest.fixture(autouse=True)
def samples() -> Iterator[None]:
    """Begin without samples, and leave none."""
    seeds_report.SAMPLES.clear()
    yield
    seeds_report.SAMPLES.clear()


def test_intervals_use_the_ranks_of_the_tables() -> None:
    # Those of crates/tools/bench/src/stats.rs.
    for count, rank in [(6, 1), (8, 1), (9, 2), (10, 2), (15, 4), (20, 6), (25, 8), (50, 18)]:
        values = [float(value) for value in range(count, 0, -1)]
        assert seeds_report.interval(values) == [rank, count + 1 - rank]
    assert seeds_report.interval([1, 2, 3, 4, 5]) is None


def test_goals_need_the_whole_interval() -> None:
    for times in [4, 6, 20]:
        of_functions = {f"{seeds_report.COLLECTED}_ms": float(times)}
        for shift in range(9):
            moved = {name: value + shift * 0.2 for name, value in of_functions.items()}
            seeds_report.note("prepare", f"of {times} ms", "of a process that runs", **moved)
    for shift in range(6):
        seeds_report.note("reply", "micro", "farfork, adaptive", made_ms=1, reply_ms=9 + shift / 10)
        seeds_report.note("reply", "micro", "CRIU, post-copy", made_ms=1, reply_ms=100 + shift)
    verdicts = [goal["verdict"] for goal in seeds_report.goals()]
    assert verdicts == ["undecided", "missed", "missed", "met", "met"]


def test_a_page_has_a_table_for_each_value() -> None:
    for way, start_ms in [("cold", 30), ("Caching", 0.1)]:
        for function in ("hello", "json"):
            seeds_report.note("12", function, way, start_ms=start_ms, memory_kib=2000)
    seeds_report.note("crowd", "micro", "5 nodes", seconds=19, per_s=528)
    report = {
        "machine": seeds_report.machine(),
        "version": "1",
        "quick": False,
        "notes": ["One."],
        "goals": seeds_report.goals(),
        "rows": seeds_report.rows(),
    }
    page = seeds_report.markdown(report)
    assert "| start, to the first line | hello | json |" in page
    assert "| cold | 30.0 ms | 30.0 ms |" in page
    assert "| Caching | 100 us | 100 us |" in page
    assert "| memory | hello | json |" in page
    assert "| Caching | 2.05 MB | 2.05 MB |" in page
    assert "| 5 nodes | 528 1/s |" in page
