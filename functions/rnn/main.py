"""Writes headlines character by character: textgenrnn's LSTM with its real weights."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

LENGTH = 40  # characters that the model sees
START = "<s>"
MOST = 200

_MODELS = os.environ.get("FARFORK_MODELS") or Path(__file__).resolve().parents[2] / "build/models"
_FOLDER = Path(_MODELS) / "textgenrnn"
_NUMBERS: dict[str, int] = json.loads((_FOLDER / "vocabulary.json").read_text("utf-8"))
_CHARACTERS = {number: character for character, number in _NUMBERS.items()}
_OPTIONS = onnxruntime.SessionOptions()
_OPTIONS.intra_op_num_threads = 1
_OPTIONS.inter_op_num_threads = 1
_SESSION = onnxruntime.InferenceSession(
    str(_FOLDER / "model.onnx"), _OPTIONS, providers=["CPUExecutionProvider"]
)


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Return `{"text"}` that begins with `{"prefix"}`; `{"seed"}` draws, `{"length"}` is the most.

    `{"temperature"}` above 0 makes it bolder.
    """
    length = min(int(args.get("length", 40)), MOST)
    temperature = float(args.get("temperature", 0.5))
    rng = np.random.default_rng(int(args.get("seed", 0)))
    text = [START, *str(args.get("prefix", ""))]
    while len(text) <= length:
        character = _CHARACTERS.get(_next(text, temperature, rng), START)
        if character == START:
            break
        text.append(character)
    return {"text": "".join(text[1:])}


def _next(text: list[str], temperature: float, rng: np.random.Generator) -> int:
    known = [_NUMBERS.get(character, 0) for character in text][-LENGTH:]
    ids = np.array([[0] * (LENGTH - len(known)) + known], np.int64)
    (shares,) = _SESSION.run(["probabilities"], {"ids": ids})
    scores = np.log(shares[0].astype(np.float64) + 1e-9) / max(temperature, 1e-3)
    weights = np.exp(scores - scores.max())
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def example(index: int) -> dict[str, Any]:
    """Return the arguments of call number `index` of the benchmark."""
    return {"prefix": "ABCDEFGHIJKLMNOPRSTW"[index % 20], "seed": index, "length": 40}
