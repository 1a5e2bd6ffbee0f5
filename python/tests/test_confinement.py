"""Giving up privileges, seen from the process that has done it."""

import base64
import json
import os
import struct
import subprocess
import sys
from typing import Any

import pytest

BPF_RETURN, ALLOW, ERRNO = 0x06, 0x7FFF0000, 0x00050000
BPF_LOAD, BPF_JUMP_EQUAL, SYS_UNSHARE = 0x20, 0x15, 272
# Lets all calls by but unshare.
STEPS = [
    (BPF_LOAD, 0, 0, 0),
    (BPF_JUMP_EQUAL, 0, 1, SYS_UNSHARE),
    (BPF_RETURN, 0, 0, ERRNO | 38),
    (BPF_RETURN, 0, 0, ALLOW),
]
FILTER = base64.b64encode(b"".join(struct.pack("=HBBI", *step) for step in STEPS)).decode()
DOCUMENT = {"user": 2_000_000_123, "group": 2_000_000_123, "open_files": 99, "filter": FILTER}
DOCUMENT["processes"] = 77

ENTER = """
import ctypes, json, os, resource, sys, threading
from farfork.runtime.confinement import ConfinementError, enter

beside = threading.Event()
seen = {}
def other():
    beside.wait()
    seen["other"] = [line for line in open("/proc/thread-self/status") if "Seccomp:" in line]
thread = threading.Thread(target=other)
thread.start()
try:
    enter(json.loads(sys.argv[1]))
except ConfinementError as error:
    seen["error"] = str(error)
beside.set()
thread.join()
libc = ctypes.CDLL(None, use_errno=True)
seen |= {"ids": os.getresuid() + os.getresgid(), "groups": os.getgroups(),
         "files": resource.getrlimit(resource.RLIMIT_NOFILE),
         "processes": resource.getrlimit(resource.RLIMIT_NPROC),
         "own": os.access("/proc/self/mem", 4),
         "unshare": (libc.unshare(0), ctypes.get_errno())}
print(json.dumps(seen))
"""


def enter(document: dict[str, Any], *wrapper: str) -> dict[str, Any]:
    call = [*wrapper, sys.executable, "-c", ENTER, json.dumps(document)]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root has privileges to give up")


@needs_root
def test_all_threads_become_the_user_and_have_the_filter() -> None:
    seen = enter(DOCUMENT)
    assert "error" not in seen, seen
    assert seen["ids"] == [DOCUMENT["user"]] * 6
    assert (seen["groups"], seen["files"]) == ([], [99, 99])
    assert seen["processes"] == [77, 77]
    assert seen["own"], "its files in /proc are its own"
    assert seen["unshare"] == [-1, 38]
    assert seen["other"] == ["Seccomp:\t2\n"]


@needs_root
@pytest.mark.parametrize(
    "wrong",
    [
        {"filter": base64.b64encode(b"no filter").decode()},
        {"filter": "!"},
        {"user": "nobody"},
        {"user": -1},
    ],
)
def test_a_failed_confinement_is_reported(wrong: dict[str, Any]) -> None:
    assert "cannot give up privileges" in enter(DOCUMENT | wrong)["error"]


@needs_root
def test_who_has_no_right_to_become_another_is_told() -> None:
    seen = enter(DOCUMENT, "setpriv", "--bounding-set", "-setuid", "--inh-caps", "-setuid")
    assert "cannot give up privileges" in seen["error"]
    assert seen["ids"][0] == 0
