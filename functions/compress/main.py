"""Packs real text into a zip archive and unpacks it: the sources of Python's standard library.

One of the eight functions of MITOSIS (Wei et al., OSDI '23, section 7).
"""

import hashlib
import sysconfig
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

LARGEST_KIB = 16_384
_STAMP = (2000, 1, 1, 0, 0, 0)


def _sources() -> list[tuple[str, bytes]]:
    library = Path(sysconfig.get_path("stdlib"))
    return [(path.name, path.read_bytes()) for path in sorted(library.glob("*.py"))]


_SOURCES = _sources()


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Return the packed size and a digest of `{"kib"}` KiB of text from source `{"first"}` on."""
    kib, first = int(args.get("kib", 1024)), int(args.get("first", 0))
    if not 1 <= kib <= LARGEST_KIB:
        raise ValueError(f"cannot pack {kib} KiB; give 1 to {LARGEST_KIB}")
    packed, left, number = BytesIO(), kib << 10, first
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        while left > 0:
            name, source = _SOURCES[number % len(_SOURCES)]
            part = source[:left]
            archive.writestr(
                zipfile.ZipInfo(f"{number}/{name}", _STAMP), part, zipfile.ZIP_DEFLATED
            )
            left -= len(part)
            number += 1
    size, digest = 0, hashlib.sha256()
    with zipfile.ZipFile(packed) as archive:
        for name in archive.namelist():
            part = archive.read(name)
            size += len(part)
            digest.update(part)
    return {"bytes": size, "packed": packed.tell(), "digest": digest.hexdigest()}


def example(index: int) -> dict[str, Any]:
    """Return the arguments of call number `index` of the benchmark."""
    return {"kib": 1024, "first": index}
