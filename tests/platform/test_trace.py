"""Calls of a platform are spans of traces, which their functions and the log know."""

import base64
import json
from typing import Any

import pytest
from served import Platform, annotation, await_true

SEEN = """
import os

def main(args):
    names = ("TRACEPARENT", "TRACESTATE", "__OW_TRACEPARENT")
    return {name: os.environ.get(name) for name in names}
"""
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = f"00-{TRACE}-00f067aa0ba902b7-01"


def call(platform: Platform, fields: dict[str, str], blocking: bool = True) -> Any:
    """Call the function with these header fields."""
    key = (platform.state / "guest.key").read_bytes().strip()
    headers = {"Authorization": f"Basic {base64.b64encode(key).decode()}", **fields}
    path = f"/api/v1/namespaces/_/actions/seen?blocking={str(blocking).lower()}"
    answer = platform.raw("POST", path, "{}", headers)
    assert answer.status in {200, 202}, answer
    return json.loads(answer.body)


@pytest.fixture
def seen(platform: Platform) -> Platform:
    platform.deploy("seen", SEEN)
    return platform


def test_a_call_continues_its_callers_trace(seen: Platform) -> None:
    reply = call(seen, {"traceparent": CALLER, "tracestate": "a=1"})
    result, parent = reply["response"]["result"], annotation(reply, "traceparent")
    version, trace, span, flags = parent.split("-")
    assert (version, trace, flags) == ("00", TRACE, "01")
    assert span != CALLER.split("-")[2]
    expected = {"TRACEPARENT": parent, "TRACESTATE": "a=1", "__OW_TRACEPARENT": parent}
    assert result == expected
    # Another call is another span, and has nothing of this one.
    other = call(seen, {})["response"]["result"]
    assert (TRACE in other["TRACEPARENT"], other["TRACESTATE"]) == (False, None)


def test_a_non_blocking_call_has_its_trace(seen: Platform) -> None:
    accepted = call(seen, {"traceparent": CALLER}, blocking=False)
    path = f"activations/{accepted['activationId']}"
    await_true(lambda: seen.ask("GET", path).status == 200, "the activation is there")
    reply = seen.ask("GET", path).body
    assert annotation(reply, "traceparent").split("-")[1] == TRACE
    assert reply["response"]["result"]["TRACEPARENT"] == annotation(reply, "traceparent")
