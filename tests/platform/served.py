"""A platform that serves, and a client of it, for tests of `farfork serve`."""

import base64
import http.client
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bed import pooled, why_not
from patience import PATIENCE_S, await_answer, await_end, await_true

from farfork.demo.command import Farfork

POOL_SIZE = "1G"
# So much of a log is shown with a failure.
LAST_WORDS = 20_000

COUNT = """
import os, time
print("loaded")
count = 0
time.sleep(0.2)

def main(args):
    global count
    count += 1
    time.sleep(args.get("sleep", 0))
    if args.get("raise"):
        raise KeyError("missing")
    if args.get("exit"):
        os._exit(3)
    print("hello", args.get("name"))
    pid = int(open("/proc/self/stat").read().split()[0])
    return {"count": count, "name": args.get("name"), "network": os.readlink("/proc/self/ns/net"),
            "pid": pid, "activation": os.environ["__OW_ACTIVATION_ID"],
            "mode": os.environ.get("SECRET_OF_THE_OPERATOR")}
"""


@dataclass(frozen=True)
class Answer:
    """What the gateway says."""

    status: int
    headers: dict[str, str]
    body: Any


class Platform:
    """A platform that serves."""

    process: "subprocess.Popen[bytes]"
    python = sys.executable

    def __init__(self, farfork: Farfork, state: Path, options: tuple[str, ...]) -> None:
        self.farfork = farfork
        self.state = state
        self.options = options
        self.address = ""

    def begin(self, listen: str) -> None:
        """Start it, where it may have served before, and wait until it serves."""
        call = [str(self.farfork.binary), "serve", "--state", str(self.state), "--listen", listen]
        call += ["--python", self.python, *self.options]
        environment = {**self.farfork.environment, "SECRET_OF_THE_OPERATOR": "x"}
        said = self.state / "said"
        with (self.state / "log").open("ab") as log, said.open("wb") as out:
            self.process = subprocess.Popen(
                call, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=log
            )

        def is_ready() -> bool:
            assert self.process.poll() is None, self.log()
            address = said.read_text().strip().removeprefix("http://")
            # Connections are refused where an earlier platform has served.
            self.address = address or self.address
            return address != ""

        try:
            await_true(is_ready, "it serves")
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End it in order, if it goes on."""
        self.process.terminate()
        try:
            await_end(self.process)
        finally:
            self.process.kill()
            self.process.wait()

    def ask(
        self, method: str, path: str, body: Any = None, key: str = "", namespace: str = "_"
    ) -> Answer:
        """Ask with a key, or that of the guest, on a connection of its own."""
        content = None if body is None else json.dumps(body)
        path = f"/api/v1/namespaces/{namespace}/{path}"
        answer = self.raw(method, path, content, self.authorization(key))
        return Answer(answer.status, answer.headers, json.loads(answer.body))

    def authorization(self, key: str = "") -> dict[str, str]:
        """Return the header that shows a key, or that of the guest."""
        shown = key.encode() or (self.state / "guest.key").read_bytes().strip()
        return {"Authorization": f"Basic {base64.b64encode(shown).decode()}"}

    def raw(
        self, method: str, path: str, content: str | None = None, headers: Any = None
    ) -> Answer:
        """Ask for anything; the answer's body is a text."""
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE_S)
        connection.request(method, path, content, headers or {})
        await_answer(connection)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return Answer(answer.status, dict(answer.getheaders()), text)

    def deploy(self, name: str, code: str, **limits: int) -> Answer:
        """Make an action, or change it."""
        body = {"exec": {"kind": "python:default", "code": code}, "limits": limits}
        return self.ask("PUT", f"actions/{name}?overwrite=true", body)

    def call(self, action: str, /, **args: Any) -> Answer:
        """Call an action and wait for its activation."""
        return self.ask("POST", f"actions/{action}?blocking=true", args)

    def good(self, action: str, /, **args: Any) -> Any:
        """Call an action that has to succeed."""
        answer = self.call(action, **args)
        assert answer.status == 200, answer
        return answer.body

    def instances(self) -> list[dict[str, Any]]:
        """Return the clones on the nodes."""
        listed: list[dict[str, Any]] = self.farfork.json("ps")
        return listed

    def log(self) -> str:
        """Return what it has written."""
        return (self.state / "log").read_text()


def start_kind(activation: Any) -> str:
    """Return how a call came to its instance; of clones alike whether a ghost had their image."""
    kind: str = annotation(activation, "startKind")
    return {"ghost": "clone"}.get(kind, kind)


def annotation(activation: Any, key: str) -> Any:
    (value,) = [one["value"] for one in activation["annotations"] if one["key"] == key] or [None]
    return value


@contextmanager
def open_place() -> Iterator[Path]:
    """Make a directory that users of functions may pass, and which none has of its own."""
    with tempfile.TemporaryDirectory(prefix="farfork-serve-", dir="/run") as place:
        Path(place).chmod(0o711)
        yield Path(place)


@contextmanager
def serving(
    farfork: Farfork,
    state: Path,
    *options: str,
    listen: str = "127.0.0.1:0",
    python: str = sys.executable,
) -> Iterator[Platform]:
    """Serve until the end."""
    state.mkdir(exist_ok=True)
    platform = Platform(farfork, state, options or ("--nodes", "2"))
    platform.python = python
    platform.begin(listen)
    try:
        yield platform
    except BaseException:
        # Shown with the failure: the directory goes with the test.
        print(f"the gateway's status: {platform.process.poll()}; its log ends with")
        print(platform.log()[-LAST_WORDS:])
        raise
    finally:
        platform.end()


@contextmanager
def deciding(
    policies: dict[str, Any], *options: str, pool_size: str = POOL_SIZE
) -> Iterator[Platform]:
    """Serve on one node, by these policies, and from a pool that is sound in the end."""
    if reason := why_not():
        pytest.skip(reason)
    with open_place() as place, pooled(place, pool_size) as farfork:
        (place / "policies").write_text(json.dumps(policies))
        options = ("--nodes", "1", "--policies", str(place / "policies"), *options)
        with serving(farfork, place / "state", *options) as platform:
            yield platform
        pool = farfork.environment["FARFORK_POOL"]
        assert farfork.do("pool", "check", pool) == "the pool is sound\n"
