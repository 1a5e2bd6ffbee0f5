"""Filters a photograph: blurs, sharpens, finds edges, turns and mirrors it.

One of the eight functions of MITOSIS (Wei et al., OSDI '23, section 7). The photographs are the two
that the package scikit-learn carries.
"""

import hashlib
import importlib.metadata
from io import BytesIO
from typing import Any

from PIL import Image, ImageFilter, ImageOps

LARGEST_SIDE = 4096
_STEPS = [
    ("blur", lambda image: image.filter(ImageFilter.GaussianBlur(3))),
    ("sharp", lambda image: image.filter(ImageFilter.UnsharpMask())),
    ("edges", lambda image: image.filter(ImageFilter.FIND_EDGES)),
    ("turned", lambda image: image.rotate(30)),
    ("mirrored", ImageOps.mirror),
    ("equal", ImageOps.equalize),
]


def _photographs() -> dict[str, Image.Image]:
    files = importlib.metadata.files("scikit-learn") or []
    found = [file for file in files if file.suffix == ".jpg"]
    return {file.stem: Image.open(BytesIO(file.read_binary())).convert("RGB") for file in found}


_PHOTOGRAPHS = _photographs()


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Return digests of the pixels after each filter of the photograph of `{"side"}` pixels."""
    photograph = _PHOTOGRAPHS.get(str(args.get("photograph", "china")))
    if photograph is None:
        raise ValueError(f"unknown photograph; give one of {', '.join(sorted(_PHOTOGRAPHS))}")
    side = int(args.get("side", 640))
    if not 1 <= side <= LARGEST_SIDE:
        raise ValueError(f"cannot make an image of {side} pixels a side; give 1 to {LARGEST_SIDE}")
    image = photograph.resize((side, side), Image.Resampling.BICUBIC)
    made = {name: step(image).tobytes() for name, step in _STEPS}
    return {name: hashlib.sha256(pixels).hexdigest() for name, pixels in made.items()}


def example(index: int) -> dict[str, Any]:
    """Return the arguments of call number `index` of the benchmark."""
    return {"photograph": ("china", "flower")[index % 2], "side": 300 + index % 100}
