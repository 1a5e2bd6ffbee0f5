"""BERT's encoder: embeddings, then layers of attention and feed-forward.

ids [batch, sequence] int64
  -> word + position + type embeddings, LayerNorm
  -> layers x (attention, feed-forward), each residual + LayerNorm
"""

from dataclasses import dataclass

import numpy as np
from graph import Graph, Weights


@dataclass(frozen=True)
class Size:
    """How large an encoder is."""

    layers: int
    hidden: int
    heads: int


def embed(g: Graph, weights: Weights) -> str:
    """Add the embeddings of `ids`; all tokens are of type 0."""
    words = g.op("Gather", g.weight("embeddings.word_embeddings.weight"), "ids")
    table = weights["embeddings.position_embeddings.weight"]
    table = table + weights["embeddings.token_type_embeddings.weight"][0]
    length = g.op("Gather", g.op("Shape", "ids"), g.ints(1))
    positions = g.op("Slice", g.constant("positions", table), g.ints(0), length, g.ints(0))
    return g.layer_norm(g.op("Add", words, positions), "embeddings.LayerNorm")


def encode(g: Graph, weights: Weights, size: Size, mask: str) -> str:
    """Add the whole encoder of `ids`; `mask` is 1 where a token counts, 0 where not."""
    bias = g.op("Mul", g.op("Sub", g.scalar(1), mask), g.scalar(-1e9))
    bias = g.op("Unsqueeze", bias, g.ints(1, 2))
    x = embed(g, weights)
    for layer in range(size.layers):
        name = f"encoder.layer.{layer}"
        x = feed_forward(g, attention(g, x, bias, size, f"{name}.attention"), name)
    return x


def attention(g: Graph, x: str, bias: str, size: Size, name: str) -> str:
    """Add self-attention; `bias` is 0 where a token counts, very negative where not."""
    query = heads(g, g.linear(x, f"{name}.self.query"), size, [0, 2, 1, 3])
    key = heads(g, g.linear(x, f"{name}.self.key"), size, [0, 2, 3, 1])
    value = heads(g, g.linear(x, f"{name}.self.value"), size, [0, 2, 1, 3])
    scale = g.scalar(1 / float(np.sqrt(size.hidden // size.heads)))
    scores = g.op("Add", g.op("Mul", g.op("MatMul", query, key), scale), bias)
    mixed = g.op("MatMul", g.op("Softmax", scores, axis=-1), value)
    mixed = g.op("Transpose", mixed, perm=[0, 2, 1, 3])
    mixed = g.op("Reshape", mixed, g.ints(0, 0, size.hidden))
    added = g.op("Add", g.linear(mixed, f"{name}.output.dense"), x)
    return g.layer_norm(added, f"{name}.output.LayerNorm")


def heads(g: Graph, x: str, size: Size, perm: list[int]) -> str:
    """Split the last axis into heads and permute [batch, sequence, head, size]."""
    split = g.op("Reshape", x, g.ints(0, 0, size.heads, size.hidden // size.heads))
    return g.op("Transpose", split, perm=perm)


def feed_forward(g: Graph, x: str, name: str) -> str:
    """Add the feed-forward half of a layer; its GELU is the exact one."""
    inner = g.linear(x, f"{name}.intermediate.dense")
    erf = g.op("Erf", g.op("Div", inner, g.scalar(float(np.sqrt(2)))))
    gelu = g.op("Mul", g.op("Mul", inner, g.op("Add", erf, g.scalar(1))), g.scalar(0.5))
    added = g.op("Add", g.linear(gelu, f"{name}.output.dense"), x)
    return g.layer_norm(added, f"{name}.output.LayerNorm")
