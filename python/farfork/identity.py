"""Fresh identity for a clone: reseeds all generators that clones would share.

A clone starts with the same memory and the same pid as its siblings, so code that
detects forks by pid does not notice. `renew()` reseeds:

- `random`'s global generator and `numpy.random`'s legacy global one;
- `uuid.uuid1`: node, last timestamp, and libuuid's private state (bypassed);
- the name generators of `tempfile` and of `multiprocessing`'s semaphores;
- OpenSSL's generators (`ssl.RAND_bytes`, TLS keys), in every thread.

Not covered; a function that needs these distinct registers an after-restore hook:

- generators of the function itself (`random.Random()`, `default_rng()`);
- hash randomisation (`PYTHONHASHSEED`): fixed when the interpreter starts;
- generators inside C libraries with a copy of their own (a bundled OpenSSL);
- `multiprocessing`'s authkey, which processes must go on sharing.

`os.urandom`, `secrets`, `uuid.uuid4` and `random.SystemRandom` use the kernel's generator.
"""

import os
import sys
from typing import Any

_SEED_BYTES = 64
_MT19937_WORDS = 624
_MULTICAST_BIT = 1 << 40


def get_ready() -> None:
    """Import and set up before the checkpoint what `renew` needs in each clone."""
    if "_ssl" not in sys.modules and _libcrypto_is_mapped():
        import ssl  # noqa: F401, PLC0415 (hashlib alone maps libcrypto; its generators need this)
    # OpenSSL makes its primary generator at the first use, which writes 200 pages of tables.
    _renew_openssl()


def renew() -> None:
    """Reseed the generators of this process; also for children of os.fork()."""
    _renew_random()
    _renew_numpy()
    _renew_uuid()
    _renew_names()
    _renew_openssl()


def _loaded(name: str) -> Any:
    return sys.modules.get(name)


def _libcrypto_is_mapped() -> bool:
    try:
        with open("/proc/self/maps", "rb") as maps:
            return b"/libcrypto.so" in maps.read()
    except OSError:
        return True  # without /proc: one import too many does no harm


def _renew_random() -> None:
    if random := _loaded("random"):
        random.seed()


def _renew_numpy() -> None:
    random = _loaded("numpy.random")
    if random is None:
        return
    generator = random.get_bit_generator()
    if type(generator).__name__ == "MT19937":
        # numpy.random.seed() does the same but touches twice as many pages.
        key = _loaded("numpy").frombuffer(os.urandom(4 * _MT19937_WORDS), "uint32")
        random.set_state(("MT19937", key, _MT19937_WORDS))
    else:  # set by set_bit_generator()
        random.set_bit_generator(type(generator)())


def _renew_uuid() -> None:
    if uuid := _loaded("uuid"):
        # RFC 4122, 4.5: a random node has the multicast bit set. Clones on one
        # machine share its MAC address, and libuuid keeps node and clock in C.
        uuid._node = int.from_bytes(os.urandom(6), "big") | _MULTICAST_BIT
        uuid._last_timestamp = None
        uuid._generate_time_safe = None


def _renew_names() -> None:
    if tempfile := _loaded("tempfile"):
        tempfile._name_sequence = None  # recreated at the next name
    if semaphores := _loaded("multiprocessing.synchronize"):
        semaphores.SemLock._rand = type(semaphores.SemLock._rand)()


def _renew_openssl() -> None:
    if ssl := _loaded("_ssl"):
        # This reseeds the primary generator; each thread's public and private
        # ones see its new reseed count at their next draw and follow.
        ssl.RAND_add(os.urandom(_SEED_BYTES), float(_SEED_BYTES))
