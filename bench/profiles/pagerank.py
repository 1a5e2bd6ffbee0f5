"""Ranks the vertices of a graph that is fetched as a list of edges (SeBS: graph-pagerank)."""

import os
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import igraph
import numpy as np
from store import fetch, put

import farfork


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Fetch the edges, rank the vertices, store the ranks."""
    stages = farfork.Stages()
    with stages("download"):
        text = fetch(args)
    with stages("processing"):
        edges = np.array(text.split(), dtype=np.int32).reshape(-1, 2)
        graph = igraph.Graph(edges=edges, directed=False)
        ranks = np.asarray(graph.pagerank())
        best = ranks.argsort()[::-1][:10].tolist()
    with stages("upload"):
        put(args, ranks.tobytes())
    return {"best": best, "vertices": graph.vcount(), "stages_us": stages.us()}
