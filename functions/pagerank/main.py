"""Ranks the vertices of a graph by PageRank (Brin and Page, 1998).

The graph is a preferential attachment graph (Barabasi and Albert, 1999), as networks of people are;
always the same for its number of vertices.
"""

import functools
import os
import random
from typing import Any

# Read by OpenMP when it is loaded. Many clones share a node, and threads that spin would cost each
# a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import igraph

SMALLEST, LARGEST = 100, 200_000
EDGES_EACH = 10
SEED = 1998


@functools.lru_cache(maxsize=1)
def _graph(vertices: int) -> igraph.Graph:
    igraph.set_random_number_generator(random.Random(SEED))
    graph = igraph.Graph.Barabasi(vertices, EDGES_EACH)
    igraph.set_random_number_generator(random)
    return graph


_graph(2_000)


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Return the ten first of `{"vertices"}` vertices, walks of which begin at `{"source"}`."""
    vertices, source = int(args.get("vertices", 2_000)), int(args.get("source", 0))
    if not SMALLEST <= vertices <= LARGEST:
        raise ValueError(f"cannot rank {vertices} vertices; give {SMALLEST} to {LARGEST}")
    if not 0 <= source < vertices:
        raise ValueError(f"unknown vertex {source}; give 0 to {vertices - 1}")
    ranks = _graph(vertices).personalized_pagerank(reset_vertices=[source], directed=False)
    best = sorted(range(vertices), key=lambda vertex: (-ranks[vertex], vertex))[:10]
    return {"best": best, "ranks": [round(ranks[vertex], 6) for vertex in best]}


def example(index: int) -> dict[str, Any]:
    """Return the arguments of call number `index` of the benchmark."""
    return {"vertices": 2_000, "source": 7919 * index % 2_000}
