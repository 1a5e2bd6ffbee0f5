"""The report of `farfork bench tiering` as Markdown, figure by figure of CXLfork's paper."""

from typing import Any

import table

Row = dict[str, Any]

STARTS = {
    "cold": "cold start",
    "local-fork": "local fork",
    "criu": "CRIU restore",
    "clone-copy": "clone, all pages copied before it runs",
    "clone-moa": "clone, pages copied when touched (`moa`)",
    "clone-hybrid": "clone, accessed pages copied when touched (`hybrid`)",
    "clone-unprofiled": "clone, nothing known of its pages",
    "clone": "clone (`mow`)",
    "ghost-empty": "clone in an empty ghost",
    "ghost-attached": "clone in a pre-attached ghost",
    "warm": "warm, back to back",
    "warm-idle-10ms": "warm, idle 10 ms",
    "warm-unconnected-10ms": "warm, idle 10 ms, then connected to",
}
POLICIES = {"clone": "`mow`", "clone-hybrid": "`hybrid`", "clone-moa": "`moa`"}
CALLS = [
    "request to first instruction",
    "page faults of first call",
    "request to response",
    "warm call after it",
    "excess of first call",
    "local memory after one call",
]


def markdown(report: dict[str, Any]) -> str:
    """Return the whole page."""
    rows = {(row["case"], row["metric"]): row for row in report["rows"]}
    functions = list(dict.fromkeys(case.split("/")[0] for case, _ in rows if "/" in case))
    lines = ["# farfork bench tiering", "", table.machine(report), ""]
    if report["quick"]:
        lines += ["**A quick run: it shows that everything works, and decides little.**", ""]
    lines += ["## Goals", "", *table.goals(report["goals"]), ""]
    lines += ["## Every start", "", *_starts(rows, functions), ""]
    lines += ["![where the time of a first call goes](tiering-7.svg)", ""]
    lines += ["![local memory against that of a cold start](tiering-7b.svg)", ""]
    lines += ["## A bare wake-up", "", *_wake_ups(rows, functions), ""]
    lines += ["## Policies", "", *_policies(rows, functions), ""]
    lines += ["![calls and memory under each policy](tiering-8.svg)", ""]
    lines += ["How each case is measured, and what is not comparable: docs/benchmarks.md.", ""]
    for note in report["notes"]:
        lines += [note, ""]
    lines += ["## Everything", "", *table.everything(report["rows"]), ""]
    return "\n".join(lines)


def _table(heads: list[str], lines: list[list[str]]) -> list[str]:
    head = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    return head + [f"| {' | '.join(cells)} |" for cells in lines]


def _starts(rows: dict[tuple[str, str], Row], functions: list[str]) -> list[str]:
    lines = []
    for function in functions:
        for start, words in STARTS.items():
            cells = [table.cell(rows.get((f"{function}/{start}", metric))) for metric in CALLS]
            if any(cells):
                lines.append([function, words, *cells])
    return _table(["function", "start", *CALLS], lines)


def _wake_ups(rows: dict[tuple[str, str], Row], functions: list[str]) -> list[str]:
    columns = [
        ("bare-wake-up", "message to first instruction"),
        ("ghost-attached", "restore phase: wake-up"),
        ("ghost-attached", "request to first instruction"),
    ]
    heads = ["function", "bare wake-up", "the ghost's own wake-up", "request to first instruction"]
    lines = [
        [function, *(table.cell(rows.get((f"{function}/{start}", m))) for start, m in columns)]
        for function in functions
    ]
    return _table(heads, [line for line in lines if any(line[1:])])


def _policies(rows: dict[tuple[str, str], Row], functions: list[str]) -> list[str]:
    metrics = ["request to response", "warm call after it", "local memory after one call"]
    heads = ["function", "policy", "first call", "warm call", "local memory"]
    lines = []
    for function in functions:
        for start, words in POLICIES.items():
            cells = [table.cell(rows.get((f"{function}/{start}", metric))) for metric in metrics]
            if any(cells):
                lines.append([function, words, *cells])
    return _table(heads, lines)
