"""Results, packages, workers and streams of Python functions, as OpenWhisk has them."""

import base64
import io
import json
import sys
import zipfile
from typing import Any

import pytest
from served import Platform

CASES = {
    "list": "return [1, {'a': 2}]",
    "huge": "return {'x': 10 ** 400, 'y': 2 ** 64 + 1}",
    "deep": "result = {}\n    for _ in range(110): result = {'a': result}\n    return result",
    "deeper": "result = {}\n    for _ in range(130): result = {'a': result}\n    return result",
    "surrogate": "return {'x': chr(0xd800)}",
    "astral": "return {'x': chr(0x1f600)}",
    "text": "return 'x'",
    "error": "return {'error': 10 ** 400}",
}
CLOSES = """
import os
def main(args):
    for fd in args["fds"]:
        os.close(fd)
    print("printed")
    return {"fds": args["fds"]}
"""
POOL = """
import multiprocessing
def square(x):
    return x * x
def main(args):
    with multiprocessing.get_context(args["how"]).Pool(2) as pool:
        return {"squares": pool.map(square, range(3)), "name": square.__module__}
"""
POOL_LATER = POOL.replace("import multiprocessing\n", "").replace(
    "def main(args):", "def main(args):\n    import multiprocessing"
)


def archive(files: dict[str, str]) -> str:
    """Return a zip in base64."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as zipped:
        for name, text in files.items():
            zipped.writestr(name, text)
    return base64.b64encode(content.getvalue()).decode()


def put(platform: Platform, name: str, code: str, *, binary: bool = False, **limits: int) -> None:
    """Make or change a function."""
    body = {"exec": {"kind": "python:default", "code": code, "binary": binary}, "limits": limits}
    assert platform.ask("PUT", f"actions/{name}?overwrite=true", body).status == 200


def response(platform: Platform, name: str, args: Any = None) -> dict[str, Any]:
    answer = platform.ask("POST", f"actions/{name}?blocking=true", args or {})
    found: dict[str, Any] = answer.body["response"]
    return found


@pytest.fixture(scope="module")
def results(platform: Platform) -> dict[str, dict[str, Any]]:
    """Return the response of each case, twice the same."""
    found = {}
    for name, body in CASES.items():
        put(platform, f"gives-{name}", f"def main(args):\n    {body}\n")
        found[name] = response(platform, f"gives-{name}")
        assert response(platform, f"gives-{name}") == found[name]
    return found


def test_results_are_what_the_function_returned(results: dict[str, Any]) -> None:
    assert results["list"]["result"] == [1, {"a": 2}]
    assert results["huge"]["result"] == {"x": 10**400, "y": 2**64 + 1}
    assert results["astral"]["result"] == {"x": "\U0001f600"}
    levels, inner = 0, results["deep"]["result"]
    while inner:
        levels, inner = levels + 1, inner["a"]
    assert levels == 110
    assert all(results[name]["status"] == "success" for name in ("list", "huge", "astral", "deep"))
    assert results["error"]["status"] == "application error"


def test_what_cannot_be_a_result_has_its_reason(results: dict[str, Any]) -> None:
    for name, words in [
        ("deeper", "nested deeper than 120 levels"),
        ("surrogate", "not Unicode"),
        ("text", "main returned str; return a dict or a list"),
    ]:
        assert results[name]["status"] == "action developer error"
        assert words in results[name]["result"]["error"], name


def test_a_list_is_a_web_response(platform: Platform) -> None:
    body = {
        "exec": {"kind": "python:default", "code": f"def main(args):\n    {CASES['list']}\n"},
        "annotations": [{"key": "web-export", "value": True}],
    }
    assert platform.ask("PUT", "actions/web-list?overwrite=true", body).status == 200
    answer = platform.raw("GET", "/api/v1/web/guest/default/web-list.json")
    assert (answer.status, json.loads(answer.body)) == (200, [1, {"a": 2}])


@pytest.mark.parametrize("fds", [[1], [2], [1, 2], [0, 1, 2]])
def test_a_function_that_closes_its_streams_goes_on(platform: Platform, fds: list[int]) -> None:
    put(platform, "closes", CLOSES)
    for _ in range(3):
        assert response(platform, "closes", {"fds": fds})["result"] == {"fds": fds}


@pytest.mark.parametrize("how", ["spawn", "forkserver", "fork"])
@pytest.mark.parametrize("code", [POOL, POOL_LATER], ids=["at-load", "later"])
@pytest.mark.parametrize("is_archive", [False, True])
def test_workers_find_the_function(
    platform: Platform, how: str, code: str, is_archive: bool
) -> None:
    text = archive({"__main__.py": code}) if is_archive else code
    put(platform, "pools", text, binary=is_archive, timeout=20_000)
    result = response(platform, "pools", {"how": how})["result"]
    assert result == {"squares": [0, 1, 4], "name": "farfork_function_pools"}


def test_packages_of_a_virtual_environment_come_first(platform: Platform) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = f"virtualenv/lib/{version}/site-packages"
    main = "import json, os, own\ndef main(args):\n"
    main += "    return {'own': own.X, 'json': json.__file__, 'at': os.environ['VIRTUAL_ENV']}"
    files = {"__main__.py": main, f"{packages}/own.py": "X = 7\n"}
    put(platform, "with-packages", archive(files), binary=True)
    result = response(platform, "with-packages")["result"]
    assert result["own"] == 7
    assert result["at"].endswith("/virtualenv")
    files = {"__main__.py": main, "virtualenv/lib/python2.7/site-packages/own.py": ""}
    put(platform, "with-packages", archive(files), binary=True)
    error = response(platform, "with-packages")["result"]["error"]
    assert "python2.7" in error
    assert version in error
