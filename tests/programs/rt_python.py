"""CPython: threads that run on, a large dictionary, hashes, files, and new work afterwards."""

import ctypes
import gc
import hashlib
import os
import queue
import random
import sqlite3
import sys
import threading
import zlib


def fail(what, expected, seen):
    os.write(1, f"FAIL: {what}: expected {expected!r}, saw {seen!r}\n".encode())
    os._exit(1)


def check(what, expected, seen):
    if expected != seen:
        fail(what, expected, seen)


def serve(tasks, answers):
    """Runs until it is given None."""
    while (task := tasks.get()) is not None:
        answers.put((task, hashlib.sha256(str(task).encode()).hexdigest()))


def digest(table):
    return hashlib.sha256(repr(sorted(table.items())).encode()).hexdigest()


def allocate_and_drop():
    """Arenas and large blocks go back to the kernel, and calloc trusts what it gets."""
    for size in (1 << 16, 1 << 20, 1 << 24):
        check("fresh bytearray", size, bytearray(size).count(0))
        check("fresh ctypes array", bytes(size), bytes((ctypes.c_char * size)()))
    blocks = [bytearray([index % 255 + 1]) * 300_000 for index in range(100)]
    del blocks[::2]
    gc.collect()
    check("kept blocks", 50, sum(set(block) == {block[0]} for block in blocks))
    lists = [[index] * 100 for index in range(5_000)]
    check("lists", 5_000 * 100, sum(map(len, lists)))


def main():
    random.seed(1)
    table = {index: random.random() for index in range(30_000)}
    before = digest(table)
    packed = zlib.compress(repr(table).encode(), 1)
    database = sqlite3.connect(":memory:")
    database.execute("create table numbers (value integer)")
    database.executemany("insert into numbers values (?)", ((n,) for n in range(10_000)))
    tasks, answers = queue.Queue(), queue.Queue()
    threads = [threading.Thread(target=serve, args=(tasks, answers)) for _ in range(4)]
    for thread in threads:
        thread.start()
    state = random.getstate()
    pid = os.getpid()

    os.write(1, b"READY\n")
    if os.read(0, 1) == b"":
        fail("stdin", "one byte", "the end")

    check("pid", pid, os.getpid())
    check("dictionary", before, digest(table))
    check("compressed", before, digest(eval(zlib.decompress(packed))))
    check("random state", state, random.getstate())
    allocate_and_drop()
    for task in range(1000):
        tasks.put(task)
    for _ in range(1000):
        task, seen = answers.get(timeout=30)
        check("thread's answer", hashlib.sha256(str(task).encode()).hexdigest(), seen)
    for _ in threads:
        tasks.put(None)
    for thread in threads:
        thread.join(30)
        check("thread alive", False, thread.is_alive())
    check("sum", 49_995_000, database.execute("select sum(value) from numbers").fetchone()[0])
    import decimal  # an import that was not done before

    check("decimal", "0.3", str(decimal.Decimal("0.1") + decimal.Decimal("0.2")))
    check("/bin/true", 0, os.system("/bin/true"))
    print("PASS", flush=True)


if __name__ == "__main__":
    sys.exit(main())
