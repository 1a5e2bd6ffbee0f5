"""Makes a thumbnail of a photograph that is fetched (SeBS: thumbnailer)."""

from io import BytesIO
from typing import Any

from PIL import Image
from store import fetch, put

import farfork


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Fetch a JPEG, make 200 pixels of it, store them."""
    stages = farfork.Stages()
    with stages("download"):
        sent = fetch(args)
    with stages("processing"):
        image = Image.open(BytesIO(sent))
        image.thumbnail((200, 200), Image.Resampling.LANCZOS)
        made = BytesIO()
        image.save(made, "JPEG", quality=85)
    with stages("upload"):
        put(args, made.getvalue())
    return {"bytes": len(made.getvalue()), "size": list(image.size), "stages_us": stages.us()}
