"""Sentence embeddings: all-MiniLM-L6-v2 on the CPU through onnxruntime.

Slow to start (imports, a 90 MB model), quick to answer: what a clone is for. The
model is built by setup/python.sh; FARFORK_MODELS names another folder of models.
"""

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # no thread pool for single sentences

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

NAME = "all-MiniLM-L6-v2"
MAX_TOKENS = 256
THREADS = int(os.environ.get("FARFORK_EMBED_THREADS", "2"))

_MODELS = os.environ.get("FARFORK_MODELS") or Path(__file__).resolve().parents[2] / "build/models"
_FOLDER = Path(_MODELS) / NAME


def _open_session() -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.inter_op_num_threads = 1
    # Waiting threads sleep: many clones share a node, and spinning would cost each a core.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(
        str(_FOLDER / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )


def _open_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(_FOLDER / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding()
    return tokenizer


_session = _open_session()
_tokenizer = _open_tokenizer()


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Return `{"embeddings": [[384 numbers] per text], "tokens", "model"}` for `{"texts"}`."""
    texts = args.get("texts")
    if not texts or not isinstance(texts, list) or not all(isinstance(t, str) for t in texts):
        raise ValueError("texts is not a list of strings; give at least one")
    encodings = _tokenizer.encode_batch(texts)
    mask = np.array([encoding.attention_mask for encoding in encodings], np.int64)
    ids = np.array([encoding.ids for encoding in encodings], np.int64)
    (embeddings,) = _session.run(["embeddings"], {"ids": ids, "mask": mask})
    return {"embeddings": embeddings.tolist(), "tokens": int(mask.sum()), "model": NAME}


_WORDS = ["house", "water", "music", "winter", "window", "paper", "river", "stone"]


def example(index: int) -> dict[str, Any]:
    """Return the arguments of call number `index` of the benchmark; all have as many tokens."""
    first, second = _WORDS[index % 8], _WORDS[index // 8 % 8]
    return {"texts": [f"{first} is a word and {second} is one too, number {index % 10}"]}
