"""Classifies a photograph that is fetched (SeBS: image-recognition), with EfficientNet-lite0.

The paper's network is ResNet50, whose weights no package registry that we know has.
"""

import os
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image
from store import fetch, put

import farfork

SIDE = 224

_MODELS = os.environ.get("FARFORK_MODELS") or Path(__file__).resolve().parents[2] / "build/models"
_OPTIONS = onnxruntime.SessionOptions()
_OPTIONS.intra_op_num_threads = 1
_OPTIONS.inter_op_num_threads = 1
_SESSION = onnxruntime.InferenceSession(
    str(Path(_MODELS) / "efficientnet-lite0/model.onnx"),
    _OPTIONS,
    providers=["CPUExecutionProvider"],
)


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Fetch a JPEG, classify it, store the classes."""
    stages = farfork.Stages()
    with stages("download"):
        sent = fetch(args)
    with stages("preprocessing"):
        image = Image.open(BytesIO(sent)).convert("RGB")
        pixels = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.float32)
        pixels = np.ascontiguousarray(((pixels - 127) / 128).transpose(2, 0, 1)[None])
    with stages("inference"):
        (logits,) = _SESSION.run(["logits"], {"image": pixels})
        best = logits[0].argsort()[::-1][:5].tolist()
    with stages("upload"):
        put(args, str(best).encode())
    return {"classes": best, "stages_us": stages.us()}
