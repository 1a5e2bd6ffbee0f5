"""OpenWhisk's REST interface, operation by operation, as its API description has it.

The description is `apiv1swagger.json` of OpenWhisk's controller: what can be asked for, which
statuses answer it, and what documents hold. Here are all of its operations on namespaces, actions
and activations with every status but 500, and 408, which the controller does not send (who waits
too long gets 202); and those on packages, triggers and rules, of which this platform has none, as
far as they can be asked without any. Where description and controller differ (what came of a call
is `response`, not `result`; logs are a list; times are numbers; an error has a `code`), clients
have to do with the controller, and so it is here.
"""

import http.client
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import fastjsonschema
import pytest
from served import PATIENCE_S, Platform

CODE = """
import time
def main(args):
    time.sleep(args.get("sleep", 0))
    print("called")
    return {"error": "asked to"} if args.get("fail") else {"args": args}
"""
EXEC = {"kind": "python:default", "code": CODE}
# An activation that never was.
NOBODY = "0" * 32
MOST_BYTES = 1 << 20

KEY_VALUES = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["key", "value"],
        "properties": {"key": {"type": "string", "minLength": 1}},
    },
}
NAMED = {
    "namespace": {"const": "guest"},
    "name": {"type": "string", "minLength": 1},
    "version": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
    "publish": {"type": "boolean"},
    "annotations": KEY_VALUES,
}
ID = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
LIMITS = {
    "type": "object",
    "required": ["timeout", "memory", "logs", "concurrency"],
    "additionalProperties": {"type": "integer"},
}
RESPONSE = {
    "type": "object",
    "required": ["status", "statusCode", "success", "result"],
    "properties": {
        "status": {
            "enum": [
                "success",
                "application error",
                "action developer error",
                "whisk internal error",
            ]
        },
        "statusCode": {"type": "integer", "minimum": 0, "maximum": 3},
        "success": {"type": "boolean"},
        "result": {"type": "object"},
    },
}
TIMES = {name: {"type": "integer", "minimum": 0} for name in ("start", "end", "duration")}
RAN = {"activationId": ID, "subject": {"type": "string", "minLength": 1}, **TIMES}


def document(*required: str, **properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has these, and perhaps others."""
    return {"type": "object", "required": list(required), "properties": properties}


BRIEF = document("namespace", "name", "version", "publish", **NAMED)
ACTION = document(
    *BRIEF["required"],
    "exec",
    "parameters",
    "annotations",
    "limits",
    **NAMED,
    exec=document("kind", kind={"type": "string", "pattern": "^[a-z]+(:.+)?$"}),
    parameters=KEY_VALUES,
    limits=LIMITS,
)
ACTIVATION = document(
    *BRIEF["required"],
    *RAN,
    "response",
    "logs",
    **NAMED,
    **RAN,
    response=RESPONSE,
    logs={"type": "array", "items": {"type": "string"}},
)
ACTIVATION_BRIEF = document(
    "namespace",
    "name",
    "version",
    "publish",
    "activationId",
    "start",
    **NAMED,
    **RAN,
    statusCode={"type": "integer"},
)
ERROR = document(
    "error", "code", error={"type": "string", "minLength": 1}, code={"type": ["string", "integer"]}
)
ACCEPTED = document("activationId", activationId=ID)
LOGS = document("logs", logs=ACTIVATION["properties"]["logs"])
RESULT = RESPONSE
ANY = {"type": "object"}


def array(items: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a list of these, of which there is at least one."""
    return {"type": "array", "items": items, "minItems": 1}


NONE = {"type": "array", "maxItems": 0}

Prepared = dict[str, str]


@dataclass(frozen=True)
class Case:
    """Something that is asked, and what has to answer it."""

    status: int
    method: str
    path: str
    schema: dict[str, Any]
    body: Any = None
    has_key: bool = True


PUT = {"exec": EXEC, "limits": {"memory": 128}}
CASES = [
    Case(200, "GET", "namespaces", {"type": "array", "items": {"const": "guest"}, "minItems": 1}),
    Case(200, "GET", "namespaces/{ns}/actions", array(BRIEF)),
    Case(200, "GET", "namespaces/{ns}/actions?limit=1&skip=0", {**array(BRIEF), "maxItems": 1}),
    Case(200, "GET", "namespaces/{ns}/actions/{action}", ACTION),
    Case(200, "GET", "namespaces/{ns}/actions/{action}?code=false", ACTION),
    Case(404, "GET", "namespaces/{ns}/actions/nobody", ERROR),
    Case(200, "PUT", "namespaces/{ns}/actions/made-new", ACTION, PUT),
    Case(200, "PUT", "namespaces/{ns}/actions/{action}?overwrite=true", ACTION, PUT),
    Case(409, "PUT", "namespaces/{ns}/actions/{action}", ERROR, PUT),
    Case(409, "PUT", "namespaces/{ns}/actions/{action}?overwrite=false", ERROR, PUT),
    Case(400, "PUT", "namespaces/{ns}/actions/wrong", ERROR, {"exec": {"kind": "cobol"}}),
    Case(413, "PUT", "namespaces/{ns}/actions/large", ERROR, "x" * (65 << 20)),
    Case(200, "DELETE", "namespaces/{ns}/actions/{gone}", ACTION),
    Case(404, "DELETE", "namespaces/{ns}/actions/nobody", ERROR),
    Case(202, "POST", "namespaces/{ns}/actions/{action}", ACCEPTED, {}),
    Case(202, "POST", "namespaces/{ns}/actions/{action}?blocking=false", ACCEPTED, {"a": 1}),
    Case(200, "POST", "namespaces/{ns}/actions/{action}?blocking=true", ACTIVATION, {"a": 1}),
    Case(
        200,
        "POST",
        "namespaces/{ns}/actions/{action}?blocking=true&result=true",
        document("args", args={"const": {"a": 1}}),
        {"a": 1},
    ),
    Case(
        202,
        "POST",
        "namespaces/{ns}/actions/{action}?blocking=true&timeout=100",
        ACCEPTED,
        {"sleep": 3},
    ),
    Case(502, "POST", "namespaces/{ns}/actions/{action}?blocking=true", ACTIVATION, {"fail": 1}),
    Case(404, "POST", "namespaces/{ns}/actions/nobody?blocking=true", ERROR, {}),
    Case(400, "POST", "namespaces/{ns}/actions/{action}?blocking=true", ERROR, [1]),
    Case(413, "POST", "namespaces/{ns}/actions/{action}", ERROR, {"large": "x" * (MOST_BYTES + 1)}),
    Case(200, "GET", "namespaces/{ns}/activations", array(ACTIVATION_BRIEF)),
    Case(200, "GET", "namespaces/{ns}/activations?limit=1", {**array(ANY), "maxItems": 1}),
    Case(200, "GET", "namespaces/{ns}/activations?docs=true", array(ACTIVATION)),
    Case(200, "GET", "namespaces/{ns}/activations?name={action}", array(ACTIVATION_BRIEF)),
    Case(200, "GET", "namespaces/{ns}/activations?name=nobody", NONE),
    Case(200, "GET", "namespaces/{ns}/activations?since=99999999999999", NONE),
    Case(200, "GET", "namespaces/{ns}/activations?upto=1", NONE),
    Case(200, "GET", "namespaces/{ns}/activations/{activation}", ACTIVATION),
    Case(200, "GET", "namespaces/{ns}/activations/{activation}/logs", LOGS),
    Case(200, "GET", "namespaces/{ns}/activations/{activation}/result", RESULT),
    Case(404, "GET", f"namespaces/{{ns}}/activations/{NOBODY}", ERROR),
    Case(404, "GET", f"namespaces/{{ns}}/activations/{NOBODY}/logs", ERROR),
    Case(404, "GET", f"namespaces/{{ns}}/activations/{NOBODY}/result", ERROR),
    *(
        Case(200, "GET", f"namespaces/{{ns}}/{what}", NONE)
        for what in ("packages", "triggers", "rules")
    ),
    *(
        Case(404, method, f"namespaces/{{ns}}/{what}/nobody", ERROR, {})
        for what in ("packages", "triggers", "rules")
        for method in ("GET", "DELETE")
    ),
]
# Every operation is refused without a key, and reveals nothing.
REFUSED = [
    Case(401, case.method, case.path, ERROR, {}, has_key=False)
    for case in CASES
    if case.status in {200, 202} and "?" not in case.path
]


def ids(case: Case) -> str:
    return f"{case.status} {case.method} {case.path.replace('namespaces/{ns}/', '')}"


@pytest.fixture(scope="module")
def prepared(platform: Platform) -> Prepared:
    """Make what is asked for."""
    for name in ("conforming", "gone"):
        assert platform.deploy(name, CODE, memory=128).status == 200
    made = platform.good("conforming", n=1)
    return {"action": "conforming", "gone": "gone", "activation": made["activationId"]}


Ask = Callable[[Case], tuple[int, Any, dict[str, str]]]


@pytest.fixture
def ask(platform: Platform, prepared: Prepared) -> Ask:
    def asked(case: Case) -> tuple[int, Any, dict[str, str]]:
        path = case.path.format(ns="_", **prepared)
        headers = platform.authorization() if case.has_key else {}
        body = None if case.body is None else json.dumps(case.body)
        connection = http.client.HTTPConnection(platform.address, timeout=PATIENCE_S)
        # A body that is too large is refused before all of it was read.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request(case.method, f"/api/v1/{path}", body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, json.loads(content), dict(answer.getheaders())

    return asked


@pytest.mark.parametrize("case", [*CASES, *REFUSED], ids=ids)
def test_the_interface_is_openwhisks(ask: Ask, case: Case) -> None:
    status, body, headers = ask(case)
    assert status == case.status, body
    fastjsonschema.compile(case.schema)(body)
    assert headers["content-type"].startswith("application/json")
    if case.method == "POST" and status in {200, 202, 502}:
        fastjsonschema.compile(ID)(headers["x-openwhisk-activation-id"])
    if status == 401:
        assert headers["www-authenticate"].startswith("Basic ")
