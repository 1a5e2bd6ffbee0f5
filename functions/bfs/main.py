"""Breadth-first search in a generated graph of 100,000 vertices and a million edges.

The graph is a preferential attachment graph (Barabasi and Albert, 1999), as networks of
people are; always the same.
"""

import hashlib
import itertools
import random
from typing import Any

import igraph

VERTICES = 100_000
EDGES_EACH = 10
SEED = 1999


def _generate() -> igraph.Graph:
    igraph.set_random_number_generator(random.Random(SEED))
    graph = igraph.Graph.Barabasi(VERTICES, EDGES_EACH)
    igraph.set_random_number_generator(random)
    return graph


_GRAPH = _generate()


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Return how many vertices lie how far from `{"source"}`, and a digest of the order."""
    source = int(args.get("source", 0))
    if not 0 <= source < VERTICES:
        raise ValueError(f"unknown vertex {source}; give 0 to {VERTICES - 1}")
    order, starts, _ = _GRAPH.bfs(source)
    digest = hashlib.sha256(b"".join(v.to_bytes(4, "little") for v in order)).hexdigest()
    levels = [b - a for a, b in itertools.pairwise(starts)]
    return {"levels": levels, "digest": digest}


def example(index: int) -> dict[str, Any]:
    """Return the arguments of call number `index` of the benchmark."""
    return {"source": 7919 * index % VERTICES}
