"""Random bytes through the vDSO, as C libraries draw them that use it (glibc 2.41 and later).

The generator's state is memory of this process: a clone that inherited it would draw what its
siblings draw.
"""

import ctypes
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

_SYMBOL = b"__vdso_getrandom"
_AT_SYSINFO_EHDR = 33
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_HASH, _DT_STRTAB, _DT_SYMTAB = 4, 5, 6
_PARAMS = struct.Struct("<3I52x")  # size of the state, mmap's prot and flags
_STATE_OF_NOTHING = ctypes.c_size_t(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_Getrandom = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_uint,
    ctypes.c_void_p,
    ctypes.c_size_t,
)


def generator() -> Callable[[int], str] | None:
    """Return a function that draws so many bytes; None where the kernel has no such vDSO."""
    address = _find()
    if address is None:
        return None
    getrandom = _Getrandom(address)
    params = ctypes.create_string_buffer(_PARAMS.size)
    if getrandom(None, 0, 0, ctypes.addressof(params), _STATE_OF_NOTHING) != 0:
        return None
    size, prot, flags = _PARAMS.unpack(params.raw)
    state = _libc.mmap(None, ctypes.c_size_t(4096), prot, flags, -1, ctypes.c_long(0))
    assert state not in (None, ctypes.c_void_p(-1).value)

    def draw(count: int) -> str:
        buffer = ctypes.create_string_buffer(count)
        assert getrandom(ctypes.addressof(buffer), count, 0, state, size) == count
        return buffer.raw.hex()

    return draw


def _find() -> int | None:
    base = dict(struct.iter_unpack("<QQ", Path("/proc/self/auxv").read_bytes()))[_AT_SYSINFO_EHDR]
    headers = list(_program_headers(base))
    shift = base - next(header[3] for header in headers if header[0] == _PT_LOAD)
    dynamic = shift + next(header[3] for header in headers if header[0] == _PT_DYNAMIC)
    tags = dict(_dynamic(dynamic))
    for index in range(_words(shift + tags[_DT_HASH], "<II")[1]):
        symbol = shift + tags[_DT_SYMTAB] + index * 24
        name, value = _words(symbol, "<I4xQQ")[:2]
        if ctypes.string_at(shift + tags[_DT_STRTAB] + name) == _SYMBOL:
            return shift + value
    return None


def _program_headers(base: int) -> Iterator[tuple[int, ...]]:
    offset, size, count = _words(base + 32, "<Q14xHH")
    for index in range(count):
        yield _words(base + offset + index * size, "<IIQQ")


def _dynamic(address: int) -> Iterator[tuple[int, int]]:
    while (entry := _words(address, "<QQ"))[0] != 0:
        yield entry[0], entry[1]
        address += 16


def _words(address: int, layout: str) -> tuple[int, ...]:
    return struct.unpack(layout, ctypes.string_at(address, struct.calcsize(layout)))
