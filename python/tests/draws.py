"""Prints what COUNT twins of one warm process draw: draws.py FUNCTION renew|keep COUNT.

A program of its own: only the thread that calls clone3 goes on in a twin.
"""

import json
import multiprocessing.synchronize
import random
import ssl
import sys
from ctypes import CDLL, create_string_buffer
from typing import Any

import numpy as np
import twins

from farfork import identity
from farfork.loader import load

import _ssl  # isort: skip

libcrypto = CDLL(_ssl.__file__)
function = load(sys.argv[1])


def private_bytes() -> str:
    """Draw from OpenSSL's private generator, which makes keys."""
    buffer = create_string_buffer(8)
    assert libcrypto.RAND_priv_bytes(buffer, 8) == 1
    return buffer.raw.hex()


def draw() -> dict[str, Any]:
    """Draw from every source."""
    return {
        **function.call({}, None),
        "ssl_private": private_bytes(),
        "gauss": random.gauss(0, 1),
        "numpy_normal": np.random.standard_normal(),
        "semaphore_name": next(multiprocessing.synchronize.SemLock._rand),
    }


def renew_and_draw() -> dict[str, Any]:
    """Draw as a clone does."""
    identity.renew()
    return draw()


assert ssl.RAND_status()
draw()
identity.get_ready()
work = renew_and_draw if sys.argv[2] == "renew" else draw
json.dump([twins.twin(work) for _ in range(int(sys.argv[3]))], sys.stdout)
