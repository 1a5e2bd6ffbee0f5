"""Draws from every source of randomness a function may use.

Two clones of one warm process that answer alike in any of these share an identity.
"""

import os
import random
import secrets
import ssl
import tempfile
import uuid
from typing import Any

import numpy as np


def main(_args: dict[str, Any]) -> dict[str, Any]:
    """Return one draw from each source, as text or numbers."""
    return {
        "random": random.getrandbits(64),
        "numpy_random": np.random.bytes(8).hex(),
        "uuid1": str(uuid.uuid1()),
        "uuid4": str(uuid.uuid4()),
        "secrets": secrets.token_hex(8),
        "os_urandom": os.urandom(8).hex(),
        "ssl_rand_bytes": ssl.RAND_bytes(8).hex(),
        "tempfile_name": next(tempfile._get_candidate_names()),
    }
