"""Makes a small JPEG of a large one, as a service for photographs does.

The photographs are the two that the package scikit-learn carries, enlarged to the size that is
asked for.
"""

import functools
import hashlib
import importlib.metadata
from io import BytesIO
from typing import Any

from PIL import Image

LARGEST_SIDE = 8192


@functools.lru_cache(maxsize=2)
def _photograph(name: str, side: int) -> bytes:
    """Return the JPEG that a user would send."""
    files = importlib.metadata.files("scikit-learn") or []
    found = {file.stem: file for file in files if file.suffix == ".jpg"}
    if name not in found:
        raise ValueError(f"unknown photograph {name}; give one of {', '.join(sorted(found))}")
    image = Image.open(BytesIO(found[name].read_binary())).convert("RGB")
    sent = BytesIO()
    image.resize((side, side), Image.Resampling.BICUBIC).save(sent, "JPEG", quality=90)
    return sent.getvalue()


_photograph("china", 1024)


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Return size and digest of a thumbnail of `{"to"}` pixels of a photograph of `{"side"}`."""
    side, to = int(args.get("side", 1024)), int(args.get("to", 200))
    if not 1 <= to <= side <= LARGEST_SIDE:
        raise ValueError(
            f"cannot make {to} pixels of {side}; give 1 <= to <= side <= {LARGEST_SIDE}"
        )
    sent = _photograph(str(args.get("photograph", "china")), side)
    image = Image.open(BytesIO(sent))
    image.thumbnail((to, to), Image.Resampling.LANCZOS)
    made = BytesIO()
    image.save(made, "JPEG", quality=85)
    digest = hashlib.sha256(image.tobytes()).hexdigest()
    return {"sent": len(sent), "bytes": made.tell(), "size": list(image.size), "digest": digest}


def example(index: int) -> dict[str, Any]:
    """Return the arguments of call number `index` of the benchmark."""
    return {"photograph": ("china", "flower")[index % 2], "side": 1024, "to": 100 + index % 100}
