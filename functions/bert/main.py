"""Classifies a text with BERT-base: the real vocabulary and shapes, generated weights.

No package carries BERT-base's weights, so its answers mean nothing; memory and work are
BERT-base's. functions/embed is a smaller model of the same kind with real weights.
"""

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # no thread pool for single sentences

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

MAX_TOKENS = 128
THREADS = int(os.environ.get("FARFORK_BERT_THREADS", "2"))

_MODELS = os.environ.get("FARFORK_MODELS") or Path(__file__).resolve().parents[2] / "build/models"
_FOLDER = Path(_MODELS) / "bert-base-generated"
_OPTIONS = onnxruntime.SessionOptions()
_OPTIONS.intra_op_num_threads = THREADS
_OPTIONS.inter_op_num_threads = 1
# Waiting threads sleep: many clones share a node, and spinning would cost each a core.
_OPTIONS.add_session_config_entry("session.intra_op.allow_spinning", "0")
_SESSION = onnxruntime.InferenceSession(
    str(_FOLDER / "model.onnx"), _OPTIONS, providers=["CPUExecutionProvider"]
)
_TOKENIZER = Tokenizer.from_file(str(_FOLDER / "tokenizer.json"))
_TOKENIZER.enable_truncation(MAX_TOKENS)
_TOKENIZER.no_padding()


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Return the shares of the two classes of `{"text"}`, and its tokens' number."""
    ids = _TOKENIZER.encode(str(args.get("text", ""))).ids
    tokens = np.array([ids], np.int64)
    (logits,) = _SESSION.run(["logits"], {"ids": tokens, "mask": np.ones_like(tokens)})
    shares = np.exp(logits[0] - logits[0].max())
    return {"shares": [round(float(s), 5) for s in shares / shares.sum()], "tokens": len(ids)}


_WORDS = "a clone reads what its parent wrote and writes what nobody else will read"


def example(index: int) -> dict[str, Any]:
    """Return the arguments of call number `index` of the benchmark."""
    words = _WORDS.split()
    return {"text": " ".join(words[(index + i) % len(words)] for i in range(8 + index % 24))}
