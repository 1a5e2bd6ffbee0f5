"""Serves a function like farfork.runtime, but every connection by a child of os.fork().

usage: fork_server.py FUNCTION LISTEN_FD CALLS_JSON

What a local fork is compared with: the same function, loaded and called as often, its objects
frozen as before a checkpoint, and a fresh identity in each child as in each clone. A fork drops
all threads but one, so the function must work in one thread.
"""

import gc
import json
import os
import signal
import socket
import sys

from farfork import identity
from farfork.listener import Listener
from farfork.loader import load
from farfork.protocol import LineBuffer, decode, encode
from farfork.runtime import Runtime

READ_BYTES = 1 << 16


def main() -> None:
    """Load, make the calls, then fork for every connection."""
    path, fd, calls = sys.argv[1:]
    function = load(path)
    for index, args in enumerate(json.loads(calls)):
        function.call(args, f"warm-{index}")
    listener = Listener.inherit(int(fd))
    runtime = Runtime(function, listener)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    identity.get_ready()
    gc.collect()
    gc.freeze()
    listener.start()
    while True:
        connection = listener.accept()
        if os.fork() == 0:
            identity.renew()
            _serve(runtime, connection)
            os._exit(0)
        connection.close()


def _serve(runtime: Runtime, connection: socket.socket) -> None:
    lines = LineBuffer()
    while data := connection.recv(READ_BYTES):
        for line in lines.feed(data):
            connection.sendall(encode(runtime.handle(decode(line))))


if __name__ == "__main__":
    main()
