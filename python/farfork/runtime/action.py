r"""Serves one OpenWhisk action over HTTP: `python -m farfork.runtime.action [--port N]`.

    POST /init     {"value": {"name", "main", "code", "binary", "env"}}    once, first
    POST /run      {"value": {...}, "activation_id", "deadline", ...}      a result, or {"error"}
    POST /prepare                                                          farfork's own: see below
    POST /launch  {"confinement", "program", "arguments", ...}             farfork's own: see below

`/init` has optional extensions: `confinement`, which the process enters before it loads
anything (see farfork.runtime.confinement), `directory` to work in, and `folder`, with the
unpacked files of an archive, where it works then.
Both `/init` and `/launch` may name descriptors to `close` before that.

`/launch` comes instead of `/init`: the process enters its confinement and executes another
program (see farfork.runtime.launch), which serves an action of another kind.

Invariants:
- Environment and working directory are the same at the beginning of every activation.
- Connections are served one after the other. Without one the process blocks in
  accept(), where it is checkpointed. `/prepare` runs the before-checkpoint hooks,
  returns the ranges that the function declares hot, and closes its connection last.
- Status 200 means that the function has answered; 502 that its code failed, which its
  owner has to mend; 400, 403, 404, 411 and 413 that the request was invalid.
- Both streams have all that an activation printed, and END_OF_ACTIVATION, before its
  response is sent.
"""

import argparse
import base64
import binascii
import json
import os
import socket
import sys
import tempfile
import traceback
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from farfork import loader
from farfork.listener import Listener, ListenError
from farfork.protocol import Message
from farfork.runtime import process
from farfork.runtime.confinement import ConfinementError, enter
from farfork.runtime.kept import Kept
from farfork.runtime.launch import LaunchError, execute
from farfork.runtime.lifecycle import Lifecycle

_TRACE = ("traceparent", "tracestate")
END_OF_ACTIVATION = "XXX_THE_END_OF_A_WHISK_ACTIVATION_XXX"
MAX_BODY_BYTES = 64 << 20

Answer = tuple[HTTPStatus, Any]

# NaN is not JSON: strict readers would refuse the whole answer.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class CallError(ValueError):
    """A request was invalid; the message says why."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Action:
    """A process that serves one action."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._lifecycle = Lifecycle(listener)
        self._function: loader.Function | None = None
        self._environment = process.Environment()
        self._kept = Kept()
        self._connection: socket.socket | None = None
        self._is_over = False
        self._calls = {
            "/init": self._init,
            "/run": self._run,
            "/prepare": self._prepare,
            "/launch": self._launch,
        }

    def serve(self) -> None:
        """Answer requests until a launch replaces this server, or fails without its socket."""
        self._listener.start()
        while not self._is_over:
            with suppress(ConnectionAbortedError):
                self.serve_connection(self._listener.accept())

    def serve_connection(self, connection: socket.socket) -> None:
        """Answer the requests of a connection, until its end or `/prepare`; closes it."""
        with connection, suppress(OSError):  # a client that disconnects does no harm
            self._lifecycle.notice_clone()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connection = connection
            _Calls(connection, self)

    def answer(self, path: str, body: Message) -> Answer:
        """Return the answer to one request."""
        call = self._calls.get(path)
        if call is None:
            known = ", ".join(self._calls)
            return HTTPStatus.NOT_FOUND, {"error": f"unknown request {path}; use one of {known}"}
        try:
            return call(body)
        except CallError as error:
            return error.status, {"error": str(error)}

    @property
    def is_last(self) -> bool:
        """Whether no request may follow: the process waits for its checkpoint, or ends."""
        return self._lifecycle.is_prepared or self._is_over

    def _init(self, body: Message) -> Answer:
        self._require_new()
        value = _object(body, "value")
        _close(body.get("close"))
        folder = body.get("folder")
        directory = folder if folder is not None else body.get("directory")
        try:
            if confinement := _object(body, "confinement"):
                enter(confinement)
                # A clone would not have what the import system writes beside the code.
                sys.dont_write_bytecode = True
                os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
                self._kept.begin(None if directory is None else Path(_text(directory)))
            _set_environment(_object(value, "env"))
            if directory is not None:
                os.chdir(_text(directory))
            self._function = _load(value, folder)
            self._kept.end()
        except CallError:
            raise
        except ConfinementError as error:
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": str(error)}
        except (Exception, SystemExit) as error:
            print(traceback.format_exc(), file=sys.stderr)
            process.flush_output()
            reason = f"The action failed to initialize: {type(error).__name__}: {error}"
            return HTTPStatus.BAD_GATEWAY, {"error": reason}
        process.flush_output()
        process.keep_streams()
        self._environment = process.Environment()
        return HTTPStatus.OK, {"ok": True}

    def _launch(self, body: Message) -> Answer:
        self._require_new()
        assert self._connection is not None, "a request has a connection"
        _close(body.get("close"))
        try:
            if confinement := _object(body, "confinement"):
                enter(confinement)
            # First, so that clients that wait for the program do not connect to this server.
            self._is_over = True
            self._listener.close()
            execute(body, self._connection)
        except LaunchError as error:
            return HTTPStatus.BAD_GATEWAY, {"error": str(error)}
        except ConfinementError as error:
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": str(error)}
        except ValueError as error:
            raise CallError(HTTPStatus.BAD_REQUEST, str(error)) from error

    def _require_new(self) -> None:
        if self._function is not None:
            raise CallError(HTTPStatus.FORBIDDEN, "Cannot initialize the action more than once.")

    def _run(self, body: Message) -> Answer:
        if self._function is None:
            raise CallError(
                HTTPStatus.FORBIDDEN, "The action is not initialized: /init comes first."
            )
        args = _object(body, "value")
        self._environment.restore()
        variables = {f"__OW_{key.upper()}": body[key] for key in body if key != "value"}
        # OpenTelemetry finds the call's span by these names.
        variables |= {name.upper(): body[name] for name in _TRACE if body.get(name)}
        _set_environment(variables)
        answer = self._lifecycle.call(self._function, args, body.get("activation_id"))
        process.keep_streams()
        status, result = _result(answer)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                print(END_OF_ACTIVATION, file=stream, flush=True)
        return status, result

    def _prepare(self, _body: Message) -> Answer:
        if reason := self._kept.reason():
            return HTTPStatus.BAD_GATEWAY, {"ok": False, "error": reason}
        answer = self._lifecycle.prepare()
        return (HTTPStatus.OK if answer["ok"] else HTTPStatus.BAD_GATEWAY), answer


class _Calls(BaseHTTPRequestHandler):
    """The requests on one connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # a response is sent as one packet

    def __init__(self, connection: socket.socket, action: Action) -> None:
        self._action = action
        super().__init__(connection, ("", 0), action)  # type: ignore[arg-type]

    def do_POST(self) -> None:
        try:
            body = self._body()
        except CallError as error:
            self.close_connection = True  # the beginning of the next request is not known
            self._send(error.status, {"error": str(error)})
            return
        status, answer = self._action.answer(self.path, body)
        self.close_connection |= self._action.is_last
        self._send(status, answer)

    def _body(self) -> Message:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise CallError(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing.")
        if int(length) > MAX_BODY_BYTES:
            reason = f"The body is longer than {MAX_BODY_BYTES} bytes."
            raise CallError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
        text = self.rfile.read(int(length))
        try:
            body = json.loads(text or b"{}")
        except (ValueError, RecursionError) as error:
            raise CallError(HTTPStatus.BAD_REQUEST, f"The body is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise CallError(HTTPStatus.BAD_REQUEST, "The body is not a JSON object.")
        return body

    def _send(self, status: HTTPStatus, answer: Any) -> None:
        content = _encode(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_words: object) -> None:
        """Print nothing: output is the action's log."""


def _load(value: Message, folder: Any) -> loader.Function:
    name, main, code = (value.get(key) for key in ("name", "main", "code"))
    name = _text(name or "action")
    # `main` is the default; without a name, a handler is found, too.
    main = None if main in {None, "", "main"} else _text(main)
    if folder is not None:
        return loader.load(_text(folder), main, name)
    if not isinstance(code, str) or not code:
        raise CallError(HTTPStatus.BAD_REQUEST, "Missing main/no code to execute.")
    if not value.get("binary"):
        return loader.load_text(name, code, main)
    try:
        content = base64.b64decode(code, validate=True)
    except binascii.Error as error:
        raise CallError(HTTPStatus.BAD_REQUEST, f"The code is not base64: {error}") from error
    with tempfile.NamedTemporaryFile(prefix="farfork-action-", suffix=".zip") as archive:
        archive.write(content)
        archive.flush()
        return loader.load(archive.name, main)


def _result(answer: Message) -> Answer:
    """Return status and body for the answer of a call."""
    if not answer["ok"]:
        print(answer.get("trace", answer["error"]), file=sys.stderr)
        reason = "An error has occurred while invoking the action (see logs for details): "
        return HTTPStatus.BAD_GATEWAY, {"error": f"{reason}{answer['error']}"}
    try:
        _encode(answer["result"])
    except (TypeError, ValueError, RecursionError) as error:
        return HTTPStatus.BAD_GATEWAY, {"error": f"The action's result is not JSON: {error}"}
    return HTTPStatus.OK, answer["result"]


def _close(descriptors: Any) -> None:
    """Close what the operator's server had open for others."""
    for descriptor in descriptors or []:
        with suppress(OSError):
            os.close(int(descriptor))


def _object(message: Message, key: str) -> Message:
    value = message.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise CallError(HTTPStatus.BAD_REQUEST, f"{key} is not a JSON object.")
    return value


def _set_environment(variables: Message) -> None:
    try:
        os.environ.update({name: _text(value) for name, value in variables.items()})
    except ValueError as error:
        reason = f"Cannot set the environment: {error}."
        raise CallError(HTTPStatus.BAD_REQUEST, reason) from error


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def main(argv: list[str] | None = None) -> int:
    """Listen and serve; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m farfork.runtime.action", description="Serve an action over HTTP."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8080, help="TCP port (default: %(default)s)")
    options = parser.parse_args(argv)
    # onnxruntime's telemetry keeps a database, a thread and sockets open.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        Action(Listener.bind_tcp(options.host, options.port)).serve()
    except ListenError as error:
        print(f"farfork.runtime.action: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
