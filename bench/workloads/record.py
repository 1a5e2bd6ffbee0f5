"""Records which pages an invocation of a sample function touches, in order.

usage: bench/workloads/record.py [NAME ...]

Without names, the nine workloads of `farfork bench vm`. Each is one process: it imports the
function, answers sixteen calls, and is recorded during the next one, whose answer is checked
against a call in a process that is not recorded. Writes NAME.bin to crates/vm/minivmm/workloads:

     0  magic "farforkW"                    8
     8  version (1)                         4
    12  CRC-32C of what follows             4
    16  pages, accesses, bytes of runs      4 each
    28  runs of pages that are zeros or not, in turn, the first of zeros: LEB128
        accesses, in order of the first one to each page: LEB128 of the distance to the last page,
        zigzag, shifted by one, and in bit 0 whether it wrote

Pages are those that the process had when the recording began, in the order of their addresses,
then those that it got during the call. Needs root (userfaultfd), a C compiler, and the packages
of functions/.
"""

import argparse
import ctypes
import importlib.util
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "crates/vm/minivmm/workloads"
WORKLOADS = [
    "json",
    "html",
    "pyaes",
    "compress",
    "imageproc",
    "thumbnail",
    "pagerank",
    "bfs",
    "cnn",
]
WARM = 16
PAGE = 4096
MOST_AREAS = 8192
MOST_PAGES = 4 << 20
MOST_TOUCHED = 1 << 20
# State of a page that is there and zeros (record.c).
ZEROS = 2
MOST_OF_SEVEN_BITS = 0x7F
# One thread, and memory that is not given back during the call.
ENVIRONMENT = {
    "FARFORK_CNN_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "PYTHONHASHSEED": "0",
}


class Area(ctypes.Structure):
    """A mapping."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("start", "end", "protection", "is_file")]


class Recording(ctypes.Structure):
    """`struct recording` of record.c."""

    _fields_ = [
        ("is_over", ctypes.c_uint64),
        ("touched", ctypes.c_uint64),
        ("areas", ctypes.c_uint64),
        ("failed", ctypes.c_uint64),
        ("area", Area * MOST_AREAS),
        ("page", ctypes.c_uint64 * MOST_TOUCHED),
        ("state", ctypes.c_uint8 * MOST_PAGES),
    ]


def load(name: str) -> Any:
    """Import a function; return its module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"functions/{name}/main.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer_of(module: Any, index: int) -> str:
    """Call the function; return its answer."""
    return json.dumps(module.main(module.example(index)), sort_keys=True)


def elsewhere(module: Any, index: int) -> str:
    """Do the same in a child."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, answer_of(module, index).encode())
        os._exit(0)
    os.close(writer)
    text = b""
    while part := os.read(reader, 1 << 16):
        text += part
    os.close(reader)
    os.wait()
    return text.decode()


def crc32c(content: bytes) -> int:
    """Return the checksum by Castagnoli's polynomial."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def leb128(value: int) -> bytes:
    """Encode a number of any size."""
    out = bytearray()
    while value > MOST_OF_SEVEN_BITS:
        out.append(value & MOST_OF_SEVEN_BITS | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def fresh(areas: list[tuple[int, int]]) -> list[int]:
    """Return private pages without a file that are there and lie in none of these areas."""
    found = []
    with open("/proc/self/pagemap", "rb") as pagemap, open("/proc/self/maps") as maps:
        for line in maps.read().splitlines():
            span, rights, _, _, inode, name = (line + " -").split(None, 5)
            if rights[3] != "p" or inode != "0" or name.startswith("[v"):
                continue
            start, end = (int(part, 16) for part in span.split("-"))
            if any(start < last and first < end for first, last in areas):
                # Mappings grow at their ends; a part that was there is not counted again.
                inside = [area for area in areas if start < area[1] and area[0] < end]
                start = max(last for _, last in inside)
            if start >= end:
                continue
            pagemap.seek(start // PAGE * 8)
            entries = pagemap.read((end - start) // PAGE * 8)
            entries = struct.unpack(f"{len(entries) // 8}Q", entries)
            found += [start + i * PAGE for i, entry in enumerate(entries) if entry >> 62]
    return found


def encode(recording: Recording, grown: list[int]) -> tuple[bytes, str]:
    """Return the file, and a line about it."""
    touched = [recording.page[i] for i in range(recording.touched)]
    accessed = {page & -PAGE for page in touched}
    pages: list[tuple[int, bool]] = []
    number = 0
    for area in recording.area[: recording.areas]:
        for page in range(area.start, area.end, PAGE):
            state = recording.state[number] if number < MOST_PAGES else 0
            number += 1
            if state or page in accessed:
                pages.append((page, state == ZEROS or not (state or area.is_file)))
    pages += [(page, True) for page in grown]
    index = {page: i for i, (page, _) in enumerate(pages)}
    accesses = [(index[page & -PAGE], page & 1) for page in touched]
    accesses += [(index[page], 1) for page in grown]
    runs, is_zeros, length = b"", True, 0
    for _, zeros in pages:
        if zeros != is_zeros:
            runs += leb128(length)
            is_zeros, length = zeros, 0
        length += 1
    runs += leb128(length)
    steps, last = b"", 0
    for page, writes in accesses:
        distance = page - last
        zigzag = distance * 2 if distance >= 0 else -distance * 2 - 1
        steps += leb128(zigzag << 1 | writes)
        last = page
    rest = struct.pack("<3I", len(pages), len(accesses), len(runs)) + runs + steps
    zeros = sum(zeros for _, zeros in pages)
    line = (
        f"{len(pages)} pages, {zeros} zeros; {len(accesses)} touched, "
        f"{sum(writes for _, writes in accesses)} written first, {len(grown)} new"
    )
    return b"farforkW" + struct.pack("<2I", 1, crc32c(rest)) + rest, line


def record(name: str, library: str) -> None:
    """Record one function in this process."""
    module = load(name)
    for i in range(WARM):
        answer_of(module, i)
    expected = elsewhere(module, WARM)
    recorder = ctypes.CDLL(library)
    recorder.record_end.restype = ctypes.POINTER(Recording)
    begin, end = recorder.record_begin, recorder.record_end
    if failed := begin():
        sys.exit(
            f"cannot record {name}: step {failed} failed; run as root on a kernel with userfaultfd"
        )
    found = answer_of(module, WARM)
    recording = end().contents
    grown = fresh([(area.start, area.end) for area in recording.area[: recording.areas]])
    if found != expected:
        sys.exit(f"cannot record {name}: another answer than without recording")
    content, line = encode(recording, grown)
    OUT.mkdir(exist_ok=True)
    (OUT / f"{name}.bin").write_bytes(content)
    print(f"{name}: {line}; file of {len(content)} bytes", flush=True)
    # Parts of this process can be served by its child only.
    os._exit(0)


def main() -> None:
    """Record each function in a process of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", default=WORKLOADS, metavar="NAME")
    parser.add_argument("--library", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.library:
        record(args.names[0], args.library)
        return
    with tempfile.TemporaryDirectory() as directory:
        library = str(Path(directory) / "record.so")
        source = str(Path(__file__).with_name("record.c"))
        subprocess.run(
            ["cc", "-O2", "-shared", "-fPIC", "-fno-stack-protector", "-o", library, source],
            check=True,
        )
        for name in args.names:
            command = [sys.executable, __file__, "--library", library, name]
            subprocess.run(command, check=True, env=os.environ | ENVIRONMENT)


if __name__ == "__main__":
    main()
