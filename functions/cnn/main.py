"""Classifies a JPEG photograph: EfficientNet-lite0 with its real ImageNet weights.

The photographs are the two that the package scikit-learn carries; a call crops one of them.
"""

import importlib.metadata
import os
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image

THREADS = int(os.environ.get("FARFORK_CNN_THREADS", "2"))
SIDE = 224

_MODELS = os.environ.get("FARFORK_MODELS") or Path(__file__).resolve().parents[2] / "build/models"
_OPTIONS = onnxruntime.SessionOptions()
_OPTIONS.intra_op_num_threads = THREADS
_OPTIONS.inter_op_num_threads = 1
# Waiting threads sleep: many clones share a node, and spinning would cost each a core.
_OPTIONS.add_session_config_entry("session.intra_op.allow_spinning", "0")
_SESSION = onnxruntime.InferenceSession(
    str(Path(_MODELS) / "efficientnet-lite0/model.onnx"),
    _OPTIONS,
    providers=["CPUExecutionProvider"],
)


def _photographs() -> dict[str, bytes]:
    files = importlib.metadata.files("scikit-learn") or []
    found = [file for file in files if file.suffix == ".jpg"]
    return {file.stem: file.read_binary() for file in found}


_PHOTOGRAPHS = _photographs()


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Return the five likeliest of ImageNet's classes of a crop.

    The photograph is `{"photograph"}` (china or flower), the crop a square of `{"side"}`
    pixels around the middle, moved by `{"dx"}` and `{"dy"}`.
    """
    data = _PHOTOGRAPHS.get(str(args.get("photograph", "china")))
    if data is None:
        raise ValueError(f"unknown photograph; give one of {', '.join(sorted(_PHOTOGRAPHS))}")
    side, dx, dy = (int(args.get(name, 0)) for name in ("side", "dx", "dy"))
    image = Image.open(BytesIO(data)).convert("RGB")
    side = side or min(image.size)
    left, top = (image.width - side) // 2 + dx, (image.height - side) // 2 + dy
    crop = image.crop((left, top, left + side, top + side))
    pixels = np.asarray(crop.resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.float32)
    pixels = ((pixels - 127) / 128).transpose(2, 0, 1)[None]
    (logits,) = _SESSION.run(["logits"], {"image": np.ascontiguousarray(pixels)})
    shares = np.exp(logits[0] - logits[0].max())
    shares /= shares.sum()
    best = shares.argsort()[::-1][:5]
    return {"classes": best.tolist(), "shares": [round(float(shares[i]), 4) for i in best]}


def example(index: int) -> dict[str, Any]:
    """Return the arguments of call number `index` of the benchmark."""
    photograph = ("china", "flower")[index % 2]
    return {"photograph": photograph, "side": 300 + index % 100, "dx": index % 50, "dy": index % 20}
