"""Objects of an S3-compatible server, by plain HTTP: requests are not signed.

For servers on this machine that check no signatures, such as moto's. No SDK: its memory would be
most of a small function's.
"""

import urllib.request
from typing import Any

_TIMEOUT_S = 60


def _url(args: dict[str, Any], key: str) -> str:
    return f"{args['endpoint']}/{args['bucket']}/{key}"


def fetch(args: dict[str, Any]) -> bytes:
    """Return the object that the arguments name: `{"endpoint", "bucket", "key"}`."""
    with urllib.request.urlopen(_url(args, args["key"]), timeout=_TIMEOUT_S) as answer:
        data: bytes = answer.read()
    return data


def put(args: dict[str, Any], data: bytes) -> None:
    """Store the result beside the object."""
    request = urllib.request.Request(
        _url(args, args["key"] + ".out"),
        data=data,
        method="PUT",
        headers={"content-type": "application/octet-stream"},
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
        pass
