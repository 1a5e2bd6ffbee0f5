"""Transforms a DNA sequence that is fetched into a line to draw (SeBS: dna-visualisation)."""

import json
from typing import Any

from squiggle import transform
from store import fetch, put

import farfork


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Fetch a sequence in FASTA, transform it, store the points as JSON."""
    stages = farfork.Stages()
    with stages("download"):
        text = fetch(args).decode()
    with stages("processing"):
        lines = [line.strip() for line in text.splitlines() if not line.startswith(">")]
        xs, ys = transform("".join(lines), method="squiggle")
        drawn = json.dumps({"x": list(map(float, xs)), "y": list(map(float, ys))}).encode()
    with stages("upload"):
        put(args, drawn)
    return {"points": len(xs), "bytes": len(drawn), "stages_us": stages.us()}
