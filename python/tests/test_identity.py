"""A hundred clones of one process draw a hundred different values from each source."""

import ctypes
import json
import os
import random
import ssl
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import twins
from runtimes import ROOT

from farfork import identity
from farfork.runtime import renew

CLONES = 100
FROM_THE_KERNEL = {"uuid4", "secrets", "os_urandom"}
needs_root = pytest.mark.skipif(not twins.allowed(), reason="clones with our pid need root")


def draws(mode: str, count: int) -> dict[str, list[Any]]:
    program = Path(__file__).with_name("draws.py")
    command = [sys.executable, program, ROOT / "functions/random", mode, str(count)]
    answers = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    by_source = {name: [answer[name] for answer in answers] for name in answers[0]}
    by_source["uuid1_node"] = [uuid.UUID(text).node for text in by_source["uuid1"]]
    return by_source


@needs_root
def test_clones_differ_in_every_source() -> None:
    for name, values in draws("renew", CLONES).items():
        assert len(set(values)) == CLONES, name


@needs_root
def test_without_renewal_clones_repeat_each_other() -> None:
    """Else the test above could not fail: what is renewed must be equal without it."""
    repeated = {name for name, values in draws("keep", 3).items() if len(set(values)) == 1}
    everything = set(draws("keep", 1))
    assert repeated == everything - FROM_THE_KERNEL - {"uuid1"}


@needs_root
def test_a_fork_child_can_renew_itself() -> None:
    random.seed(7)
    assert twins.twin(lambda: (renew(), random.random())[1]) != random.Random(7).random()


def test_uuid1_node_is_marked_as_random() -> None:
    for _ in range(32):  # by chance, half of all nodes have the bit
        identity.renew()
        assert uuid.uuid1().node & (1 << 40)


def test_uuid1_forgets_its_parents_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clones on a machine whose clock is behind would all go on from one timestamp."""
    future = uuid.uuid1().time + 10**12
    monkeypatch.setattr(uuid, "_last_timestamp", future, raising=False)
    identity.renew()
    assert uuid.uuid1().time < future


def test_a_replaced_numpy_generator_is_renewed_too() -> None:
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        identity.renew()
        assert np.random.random() != np.random.Generator(np.random.PCG64(1)).random()
        assert type(np.random.get_bit_generator()).__name__ == "PCG64"
    finally:
        np.random.set_bit_generator(before)


def test_openssl_renews_in_threads_that_draw_later() -> None:
    """Each thread has generators of its own; only the primary one can be reached."""
    asks: Queue[bool] = Queue()
    counts: Queue[int] = Queue()

    def draw_when_asked() -> None:
        while asks.get():
            ssl.RAND_bytes(8)
            counts.put(reseed_count())

    thread = threading.Thread(target=draw_when_asked)
    thread.start()

    def count_after_draw() -> int:
        asks.put(True)
        return counts.get(timeout=10)

    first = count_after_draw()
    assert count_after_draw() == first
    identity.renew()
    assert count_after_draw() > first
    asks.put(False)
    thread.join()


def test_get_ready_imports_ssl() -> None:
    """Hashlib maps libcrypto without the module that can reseed it."""
    code = "import hashlib, sys; from farfork import identity; identity.get_ready(); "
    code += "print('_ssl' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout == "True\n"


def test_ready_makes_the_generators_of_openssl() -> None:
    """Otherwise each clone writes them to pages of its own, which a fork makes countable."""

    def faults_of_renewal(ready: str) -> int:
        code = f"""
import hashlib, os, resource, ssl
from farfork import identity

faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
{ready}
if os.fork() == 0:
    before = faults()
    identity.renew()
    print(faults() - before, flush=True)
    os._exit(0)
os.wait()
"""
        run = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE)
        return int(run.stdout)

    is_made, is_not = faults_of_renewal("identity.get_ready()"), faults_of_renewal("")
    assert is_made < is_not * 2 / 3, (is_made, is_not)


def test_renewal_imports_nothing() -> None:
    code = "import sys; from farfork import identity; identity.get_ready(); "
    code += "before = set(sys.modules); identity.renew(); print(set(sys.modules) - before)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout == "set()\n"


class _Param(ctypes.Structure):
    """OSSL_PARAM of <openssl/core.h>."""

    _fields_ = [
        ("key", ctypes.c_char_p),
        ("data_type", ctypes.c_uint),
        ("data", ctypes.c_void_p),
        ("data_size", ctypes.c_size_t),
        ("return_size", ctypes.c_size_t),
    ]


def reseed_count() -> int:
    """Return how often this thread's public generator was reseeded."""
    import _ssl  # noqa: PLC0415

    libcrypto = ctypes.CDLL(_ssl.__file__)
    libcrypto.RAND_get0_public.restype = ctypes.c_void_p
    libcrypto.RAND_get0_public.argtypes = [ctypes.c_void_p]
    libcrypto.EVP_RAND_CTX_get_params.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    count = ctypes.c_uint()
    unsigned_integer = 2
    address, size = ctypes.addressof(count), ctypes.sizeof(count)
    params = (_Param * 2)(_Param(b"reseed_counter", unsigned_integer, address, size, 0))
    assert libcrypto.EVP_RAND_CTX_get_params(libcrypto.RAND_get0_public(None), params) == 1
    return count.value


def test_the_environment_stays() -> None:
    before = dict(os.environ)
    identity.renew()
    assert dict(os.environ) == before
