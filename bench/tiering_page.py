"""The report of `farfork bench tiering` as Markdown, figure by figure of CXLfork's paper."""

from typing import Any

import table

Row = dict[str, Any]
Rows = dict[tuple[str, str], Row]

STARTS = {
    "cold": "cold start",
    "local-fork": "local fork",
    "criu": "CRIU restore",
    "clone-copy": "clone, all pages copied before it runs",
    "clone-moa": "clone, pages copied when touched (`moa`)",
    "clone-hybrid": "clone, accessed pages copied when touched (`hybrid`)",
    "clone": "clone (`mow`)",
    "ghost-empty-copy": "clone in an empty ghost, all pages copied before it runs",
    "ghost-empty": "clone in an empty ghost",
    "ghost-attached": "clone in a pre-attached ghost",
    "warm": "warm, back to back",
    "warm-idle-10ms": "warm, idle 10 ms",
    "warm-unconnected-10ms": "warm, idle 10 ms, then connected to",
}
POLICIES = {"clone": "`mow`", "clone-hybrid": "`hybrid`", "clone-moa": "`moa`"}
SHARES = ["never touched", "only read", "written", "of the parent's written pages, written again"]
# Functions that are not in the table that the paper's means are of.
OTHERS = {"heat", "embed"}
PAPER = ["72.2 %", "23 %", "4.8 %", "over 95 %"]
HERDS = {
    "herd-by-1-thread": "one thread starts them",
    "herd-by-2-threads": "two threads, one pool",
    "herd-by-2-threads-from-2-pools": "two threads, a pool each",
    "herd-in-empty-ghosts": "two threads, in containers that wait",
    "herd-in-attached-ghosts": "two threads, in containers that have the image",
    "herd": "the whole herd, two threads, one pool",
    "whole-herd-in-empty-ghosts": "the whole herd, two threads, in containers that wait",
}
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
    functions = list(dict.fromkeys(case.split("/")[0] for case, _ in rows))
    lines = ["# farfork bench tiering", "", table.machine(report), ""]
    if report["quick"]:
        lines += ["**A quick run: it shows that everything works, and decides little.**", ""]
    lines += ["## Goals", "", *table.goals(report["goals"]), ""]
    lines += ["## What calls touch", "", *_shares(rows, functions), ""]
    lines += ["![shares of memory](tiering-1.svg)", ""]
    lines += ["## Containers", "", *_containers(rows, functions), ""]
    lines += ["![container creation and state initialisation](tiering-6.svg)", ""]
    lines += ["## Every start", "", *_starts(rows, functions), ""]
    lines += ["![where the time of a first call goes](tiering-7.svg)", ""]
    lines += ["![local memory against that of a cold start](tiering-7b.svg)", ""]
    lines += ["## A bare wake-up", "", *_wake_ups(rows, functions), ""]
    lines += ["## Policies", "", *_policies(rows, functions), ""]
    lines += ["![calls and memory under each policy](tiering-8.svg)", ""]
    lines += ["## Herds", "", *_herds(rows), ""]
    lines += ["How each case is measured, and what is not comparable: docs/benchmarks.md.", ""]
    for note in report["notes"]:
        lines += [note, ""]
    lines += ["## Everything", "", *table.everything(report["rows"]), ""]
    return "\n".join(lines)


def _table(heads: list[str], lines: list[list[str]]) -> list[str]:
    head = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    return head + [f"| {' | '.join(cells)} |" for cells in lines]


def _shares(rows: Rows, functions: list[str]) -> list[str]:
    lines = []
    for words, case in [("one call", "access-of-one-call"), ("all calls", "access-of-all-calls")]:
        found = {f: [rows.get((f"{f}/{case}", share)) for share in SHARES] for f in functions}
        shown = {function: cells for function, cells in found.items() if any(cells)}
        for function, cells in shown.items():
            size = rows.get((f"{function}/access-of-all-calls", "footprint"))
            lines.append([function, words, table.cell(size), *map(table.cell, cells)])
        of_table = [cells for function, cells in shown.items() if function not in OTHERS]
        means = [_mean([cell for cell in column if cell]) for column in zip(*of_table, strict=True)]
        lines.append([f"mean of the {len(of_table)} of Table 1", words, "", *means])
    lines.append(["CXLfork's paper", "", "", *PAPER])
    return _table(["function", "after", "footprint", *SHARES], lines)


def _mean(column: list[Row]) -> str:
    values = [row["median"] for row in column]
    return table.show(sum(values) / len(values), "%") if values else ""


def _containers(rows: Rows, functions: list[str]) -> list[str]:
    metrics = ["container creation", "excess of first call", "warm call after it"]
    heads = ["function", "container creation", "state initialisation", "warm call after it"]
    lines = [
        [function, *(table.cell(rows.get((f"{function}/container", m))) for m in metrics)]
        for function in functions
    ]
    return _table(heads, [line for line in lines if any(line[1:])])


def _herds(rows: Rows) -> list[str]:
    lines = [
        [case, words, *(table.cell(rows.get((case, metric))) for metric in _HERD_METRICS)]
        for function in dict.fromkeys(case.split("/")[0] for case, _ in rows)
        for case, words in ((f"{function}/{name}", words) for name, words in HERDS.items())
    ]
    heads = ["case", "", *_HERD_METRICS]
    return _table(heads, [line for line in lines if any(line[2:])])


_HERD_METRICS = [
    "clones that answered",
    "clones",
    "alive at once",
    "time per clone that answered",
    "local memory before the first call",
    "of it page tables",
    "of it shared with the template",
    "local memory of its init",
    "of the init's shared with the template",
    "kernel memory",
]


def _starts(rows: Rows, functions: list[str]) -> list[str]:
    lines = []
    for function in functions:
        for start, words in STARTS.items():
            cells = [table.cell(rows.get((f"{function}/{start}", metric))) for metric in CALLS]
            if any(cells):
                lines.append([function, words, *cells])
    return _table(["function", "start", *CALLS], lines)


def _wake_ups(rows: Rows, functions: list[str]) -> list[str]:
    columns = [
        ("bare-wake-up", "message to first instruction"),
        ("bare-wake-up-again", "message to first instruction"),
        ("ghost-attached", "restore phase: wake-up"),
        ("ghost-attached", "request to first instruction"),
        ("ghost-attached", "request to the message that wakes it"),
    ]
    heads = ["function", "bare wake-up", "right after it", "the ghost's own wake-up"]
    heads += ["message to first instruction", "before it: request to the message"]
    lines = [
        [function, *(table.cell(rows.get((f"{function}/{start}", m))) for start, m in columns)]
        for function in functions
    ]
    return _table(heads, [line for line in lines if any(line[1:])])


def _policies(rows: Rows, functions: list[str]) -> list[str]:
    metrics = ["request to response", "warm call after it", "local memory after one call"]
    heads = ["function", "policy", "first call", "warm call", "local memory"]
    lines = []
    for function in functions:
        for start, words in POLICIES.items():
            cells = [table.cell(rows.get((f"{function}/{start}", metric))) for metric in metrics]
            if any(cells):
                lines.append([function, words, *cells])
    return _table(heads, lines)
