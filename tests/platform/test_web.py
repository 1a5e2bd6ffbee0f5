"""Web actions of `farfork serve` as browsers see them: plain HTTP without a key."""

import http.client
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S, await_answer
from served import Platform, annotation

PAGE = """
def main(args):
    if args["__ow_path"] == "/old":
        return {"statusCode": 302, "headers": {"Location": "new?a=b"}}
    if "fail" in args:
        return {"error": {"statusCode": 404, "body": "<p>none</p>"}}
    if "raise" in args:
        raise KeyError("secret")
    print(args["__ow_method"], args["__ow_headers"]["host"])
    page = f"<h1>{args['greeting']} {args.get('name')}</h1>"
    return {"headers": {"Set-Cookie": ["a=1", "b=2"]}, "body": page}
"""

ECHO = """
import base64

def main(args):
    turned = base64.b64decode(args["__ow_body"])[::-1]
    return {
        "headers": {"Content-Type": "application/octet-stream", "X-Query": args["__ow_query"]},
        "body": base64.b64encode(turned).decode(),
    }
"""

BINARY = bytes(range(256)) * 256


def deploy(platform: Platform, source: Path, code: str, *options: object) -> str:
    """Deploy a function; its address, if it has one."""
    source.write_text(code)
    whom = ["--url", f"http://{platform.address}", "--key-file", platform.state / "guest.key"]
    lines = platform.farfork.do("deploy", source, *whom, *options).splitlines()
    return lines[1] if len(lines) > 1 else ""


def ask(
    platform: Platform, method: str, url: str, body: bytes | None = None, **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    """Send a request to a function's address; its answer and the answer's body."""
    path = url.removeprefix(f"http://{platform.address}")
    assert path.startswith("/api/v1/web/guest/default/"), url
    connection = http.client.HTTPConnection(platform.address, timeout=PATIENCE_S)
    connection.request(method, path, body, headers)
    await_answer(connection)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


def record(platform: Platform, answer: http.client.HTTPResponse) -> Any:
    """Return what its owner finds of the call that an answer comes of."""
    activation = answer.headers["X-OpenWhisk-Activation-Id"]
    return platform.ask("GET", f"activations/{activation}").body


def test_a_function_is_a_page(platform: Platform, tmp_path: Path) -> None:
    page = deploy(platform, tmp_path / "page.py", PAGE, "--web", "--param", "greeting", "Good day")
    assert page == f"http://{platform.address}/api/v1/web/guest/default/page"
    answer, content = ask(platform, "GET", f"{page}?name=J%C3%BCrgen")
    assert (answer.status, content.decode()) == (200, "<h1>Good day Jürgen</h1>")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers.get_all("Set-Cookie") == ["a=1", "b=2"]
    kept = record(platform, answer)
    assert (kept["namespace"], annotation(kept, "path")) == ("guest", "guest/page")
    assert kept["logs"][0].endswith(f"stdout: get {platform.address}")
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answer, content = ask(platform, "POST", page, b"name=Ada+L", **form)
    assert content.decode() == "<h1>Good day Ada L</h1>"
    answer, content = ask(platform, "GET", f"{page}/old")
    assert (answer.status, answer.headers["Location"], content) == (302, "new?a=b", b"")
    answer, content = ask(platform, "GET", f"{page}?fail=1")
    assert (answer.status, content) == (404, b"<p>none</p>")
    answer, content = ask(platform, "GET", f"{page}?greeting=none")
    assert (answer.status, b"final or reserved" in content) == (400, True)
    answer, content = ask(platform, "GET", f"{page}?raise=1")
    assert (answer.status, b"secret" in content) == (502, False)
    assert "KeyError" in record(platform, answer)["response"]["result"]["error"]


def test_a_raw_function_has_all_bytes_and_answers_with_bytes(
    platform: Platform, tmp_path: Path
) -> None:
    echo = deploy(platform, tmp_path / "echo.py", ECHO, "--web", "raw")
    answer, content = ask(
        platform, "PUT", f"{echo}.http?a=%20&b", BINARY, **{"Content-Type": "image/png"}
    )
    assert (answer.status, content == BINARY[::-1]) == (200, True)
    assert answer.headers["X-Query"] == "a=%20&b"
    assert answer.headers["Content-Type"] == "application/octet-stream"


@pytest.mark.parametrize("closed", ["false", "no"])
def test_a_function_is_open_until_it_is_closed(
    platform: Platform, tmp_path: Path, closed: str
) -> None:
    source = tmp_path / "door.py"
    assert deploy(platform, source, "def main(args): return {}", "--web", "no") == ""
    door = f"http://{platform.address}/api/v1/web/guest/default/door"
    assert ask(platform, "GET", door)[0].status == 404
    assert deploy(platform, source, "def main(args): return {}", "--web") == door
    assert ask(platform, "GET", door)[0].status == 204
    # What is not said stays as it is.
    assert deploy(platform, source, "def main(args): return {'body': 'new'}") == door
    assert ask(platform, "GET", door)[1] == b"new"
    assert deploy(platform, source, "def main(args): return {}", "--web", closed) == ""
    assert ask(platform, "GET", door)[0].status == 404
