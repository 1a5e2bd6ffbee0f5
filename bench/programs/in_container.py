"""The server of a function that is a program of its own, started in a new container.

`farfork bench porter` puts a first line with the interpreter before this, and a last line that
serves a function's code after it. The server answers and prints like farfork's action server. Only
the start differs from functions of the kind `python`, and each call uses a new connection.
"""

import os

from farfork.listener import Listener
from farfork.protocol import Message
from farfork.runtime.action import Action, Answer

# As farfork.runtime.action does before it serves.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


class _Program(Action):
    """An action server with its own code: a program gets none in `/init`."""

    def __init__(self, listener: Listener, code: str) -> None:
        super().__init__(listener)
        self._code = code

    def answer(self, path: str, body: Message) -> Answer:
        if path == "/init":
            body = {**body, "value": {**body.get("value", {}), "code": self._code}}
        return super().answer(path, body)


def _serve(code: str) -> None:
    """Serve `code` at the address of programs with the action interface."""
    _Program(Listener.bind_tcp("127.0.0.1", 8080), code).serve()
