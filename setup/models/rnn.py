"""A character model of texts as an ONNX graph, fp32, with its real weights.

    ids [1, 40] int64, the last characters, 0 where there is none yet
      -> embedding of 100 -> two LSTM layers of 128
      -> all three side by side -> average weighted by attention -> linear layer, softmax
      -> probabilities [1, 465] float32 of the next character

Shapes, vocabulary and weights come with the package textgenrnn, which is not imported:
it wants TensorFlow.
"""

import importlib.metadata
from pathlib import Path

import h5py
import numpy as np
from graph import Graph, Weights, replace
from onnx import TensorProto

NAME = "textgenrnn"
LENGTH = 40
UNITS = 128
# Keras has a cell's gates as input, forget, cell, output; ONNX wants input, output, forget, cell.
GATES = [0, 3, 1, 2]


def read(file: Path) -> Weights:
    """Return the arrays of a Keras file of weights by the last two parts of their names."""
    found: Weights = {}

    def take(name: str, node: object) -> None:
        if isinstance(node, h5py.Dataset):
            found["/".join(name.split("/")[-2:]).removesuffix(":0")] = np.asarray(node)

    with h5py.File(file) as weights:
        weights.visititems(take)
    return found


def lstm(g: Graph, x: str, name: str, weights: Weights) -> str:
    """Add a layer over x [sequence, 1, inputs]. The weights are as cuDNN has them."""
    kernels = np.split(weights[f"{name}/kernel"], 4, axis=1)
    recurrent = np.split(weights[f"{name}/recurrent_kernel"], 4, axis=1)
    biases = np.split(weights[f"{name}/bias"], 8)
    parts = {
        # [inputs, units] in Keras, but filled from cuDNN's [units, inputs] as it lay in memory.
        "W": np.concatenate([kernels[gate].reshape(UNITS, -1) for gate in GATES]),
        "R": np.concatenate([recurrent[gate] for gate in GATES]),
        "B": np.concatenate([biases[half + gate] for half in (0, 4) for gate in GATES]),
    }
    constants = [
        g.constant(f"{name}.{part}", np.ascontiguousarray(value[None]))
        for part, value in parts.items()
    ]
    return g.op("Squeeze", g.op("LSTM", x, *constants, hidden_size=UNITS), g.ints(1))


def build(folder: Path) -> None:
    """Write model.onnx and vocabulary.json into `folder`."""
    files = {file.name: file for file in importlib.metadata.files("textgenrnn") or []}
    weights = read(Path(files["textgenrnn_weights.hdf5"].locate()))
    g = Graph({})
    table = g.constant("embedding", weights["embedding/embeddings"])
    embedded = g.op("Transpose", g.op("Gather", table, "ids"), perm=[1, 0, 2])
    first = lstm(g, embedded, "rnn_1", weights)
    second = lstm(g, first, "rnn_2", weights)
    joined = g.op("Concat", embedded, first, second, axis=2)
    joined = g.op("Transpose", joined, perm=[1, 0, 2])
    scores = g.op("MatMul", joined, g.constant("attention", weights["attention/attention_W"]))
    weighted = g.op("Mul", joined, g.op("Softmax", scores, axis=1))
    mean = g.op("ReduceSum", weighted, g.ints(1), keepdims=0)
    kernel, bias = (g.constant(part, weights[f"output/{part}"]) for part in ("kernel", "bias"))
    logits = g.op("Add", g.op("MatMul", mean, kernel), bias)
    shape = ["batch", len(weights["output/bias"])]
    model = g.model(
        NAME,
        {"ids": (TensorProto.INT64, [1, LENGTH])},
        {"probabilities": (g.op("Softmax", logits, axis=-1), shape)},
    )
    replace(folder / "model.onnx", model.SerializeToString())
    replace(folder / "vocabulary.json", files["textgenrnn_vocab.json"].read_binary())
