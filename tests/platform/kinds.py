"""Functions of other kinds than Python, for tests of `farfork serve`."""

import base64
import io
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from served import Answer, Platform, start_kind

PROBE_JS = (Path(__file__).parent / "functions/probe.js").read_text()

# Speaks the action interface and no word more: it prints no ends, and ends each connection.
SERVER_PY = r"""#!/usr/bin/python3
import http.server, json, os, sys, time
count = 0
reply = None

class Calls(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        global count, reply
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/init":
            reply = body
            self.answer(200, {})
        elif self.path == "/run":
            count += 1
            args = body["value"]
            print("called", args.get("name"), flush=True)
            time.sleep(args.get("sleep", 0))
            self.answer(200, {"count": count, "name": args.get("name"), "init": reply,
                              "directory": os.getcwd(), "files": sorted(os.listdir(".")),
                              "environment": dict(os.environ), "run": sorted(body),
                              "status": open("/proc/self/status").read()})
        else:
            self.answer(404, {"error": "none"})

    def answer(self, status, document):
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words):
        pass

http.server.HTTPServer(("127.0.0.1", 8080), Calls).serve_forever()
"""

CALLS_BEFORE_IMAGE = 17


def encoded(content: bytes | str) -> str:
    """Return base64 of it."""
    return base64.b64encode(content.encode() if isinstance(content, str) else content).decode()


def archive(files: dict[str, str | bytes]) -> str:
    """Return a zip archive in base64."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as made:
        for name, text in files.items():
            made.writestr(name, text)
    return encoded(content.getvalue())


def deploy(
    platform: Platform, name: str, code: str, kind: str = "nodejs:default", **more: Any
) -> Answer:
    """Make an action, or change it; `main`, and limits."""
    executed = {"kind": kind, "code": code} | {
        key: more.pop(key) for key in ("main",) if key in more
    }
    body = {"exec": executed, "limits": more}
    return platform.ask("PUT", f"actions/{name}?overwrite=true", body)


def result(platform: Platform, name: str, /, **args: Any) -> Any:
    """Call an action that has to succeed; returns its result."""
    return platform.good(name, **args)["response"]["result"]


def clones_of(platform: Platform, name: str, /, **args: Any) -> list[Any]:
    """Call at once what has an image; returns activations of clones, two at least.

    Calls last until others have started. On a busy machine that takes longer than at first thought.
    """
    for sleep in (0.5, 1, 2, 4, 8):
        count = len(platform.instances()) + 3
        call = partial(platform.good, name, sleep=sleep, **args)
        with ThreadPoolExecutor(count) as pool:
            made = [one.result() for one in [pool.submit(call) for _ in range(count)]]
        clones = [one for one in made if start_kind(one) == "clone"]
        if len(clones) >= 2:
            return clones
    raise AssertionError(f"two clones of {name}: {platform.log()}")


def printed(activation: Any) -> list[str]:
    """Return the lines of its log, without when."""
    return [line.split("Z ", 1)[1] for line in activation["logs"]]
