"""The server of a function that is a program of its own, begun in a container that is as new.

`farfork bench porter` puts this behind a first line that names the interpreter, and before a last
one that has it serve a function's code. It is farfork's action server in all that it answers and
prints, so that little but the start differs from functions of the kind `python`: programs are
connected to anew for each call.
"""

import os

from farfork.listener import Listener
from farfork.protocol import Message
from farfork.runtime.action import Action, Answer

# As farfork.runtime.action does before it serves.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


class _Program(Action):
    """An action server that has its code: a program is told none."""

    def __init__(self, listener: Listener, code: str) -> None:
        super().__init__(listener)
        self._code = code

    def answer(self, path: str, body: Message) -> Answer:
        if path == "/init":
            body = {**body, "value": {**body.get("value", {}), "code": self._code}}
        return super().answer(path, body)


def _serve(code: str) -> None:
    """Serve `code` where programs that speak the action interface are looked for."""
    _Program(Listener.bind_tcp("127.0.0.1", 8080), code).serve()
