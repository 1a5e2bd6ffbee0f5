"""What a function can reach beside its own image: nothing.

Attacks by functions that run native code, once in each process: a clone has another start time than
its parent. The secret is that of another namespace's function, whose image lies in the same pool.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kinds import CALLS_BEFORE_IMAGE, SERVER_PY, archive, clones_of, deploy
from served import POOL_SIZE, Platform, annotation, await_true, deciding

SOURCE = Path(__file__).parent / "functions/neighbours.c"
HEADERS = Path(__file__).parents[2] / "tests/programs"
# What the bytes of the secret are given with, so that who looks for it does not have it.
MASK = 0xA5

IN_PYTHON = r"""
import ctypes, os, time

attacked = None

def attack(args):
    global attacked
    time.sleep(args.get("sleep", 0))
    started = open("/proc/self/stat").read().rsplit(") ", 1)[1].split()[19]
    if "images" not in args or attacked == started:
        return {}
    attacked = started
    path = os.path.abspath("neighbours.so")
    library = ctypes.CDLL(path)
    report = ctypes.create_string_buffer(1 << 16)
    asked = [args["images"], args["masked"], path]
    library.attack(*[one.encode() for one in asked], report, ctypes.c_size_t(len(report)))
    return {"report": report.value.decode()}
"""

# It cannot call the library: that attacks when it is loaded.
IN_NODEJS = r"""
const fs = require("fs");
let attacked = null;
exports.main = async ({ images, masked, sleep }) => {
  await new Promise((go) => setTimeout(go, 1000 * (sleep || 0)));
  const started = fs.readFileSync("/proc/self/stat", "utf8").split(") ").pop().split(" ")[19];
  if (!images || attacked === started) return {};
  attacked = started;
  const library = __dirname + "/neighbours.so";
  fs.writeFileSync("/tmp/neighbours.of", [images, masked, library].join("\n"));
  try { process.dlopen({ exports: {} }, library); } catch { }
  return { report: fs.readFileSync("/tmp/neighbours.report", "utf8") };
};
"""

ANSWER = 'self.answer(200, attack(body["value"]) if self.path == "/run" else {})'
IN_A_PROGRAM = "".join(
    [
        "#!/usr/bin/python3\n",
        IN_PYTHON,
        SERVER_PY.split("\n", 1)[1].replace('if self.path == "/init":', f"{ANSWER}\n        if 0:"),
    ]
).replace("self.answer(404", "0 and self.answer(404")

# Keeps the secret in megabytes of its memory.
KEEPER = f"""
SECRET = bytes(one ^ {MASK} for one in bytes.fromhex("MASKED")) * (4 << 15)

def main(args):
    return {{"bytes": len(SECRET)}}
"""


# Ghosts wait with the image as soon as one could, and others without one.
POLICIES = {"ghosts": {"worth_us_per_mib_hour": 0}}


class Attacked:
    """A platform with a secret: another namespace's, in an image."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        secret = os.urandom(32)
        self.masked = bytes(one ^ MASK for one in secret).hex()
        self.images = Path(platform.farfork.environment["FARFORK_POOL"], "images")
        state = ("--state", str(platform.state))
        made = platform.farfork.json("keys", "create", "others", *state)["made"]
        self._key = f"{made['user']}:{made['secret']}"
        self._ask(
            "PUT", "actions/keeper", {"exec": {"kind": "python:default", "code": self.keeper}}
        )

        def is_in_an_image() -> bool:
            self._ask("POST", "actions/keeper?blocking=true")
            return any(secret in path.read_bytes() for path in self.images.iterdir())

        await_true(is_in_an_image, "the secret is in an image")

    @property
    def keeper(self) -> str:
        """The code of a function that keeps the secret."""
        return KEEPER.replace("MASKED", self.masked)

    @property
    def args(self) -> dict[str, str]:
        """What an attacker gets."""
        return {"images": f"{self.images}/", "masked": self.masked}

    def _ask(self, method: str, path: str, body: Any = None) -> None:
        answer = self.platform.ask(method, path, body, self._key)
        assert answer.status == 200, answer


@pytest.fixture(scope="module")
def attacked() -> Iterator[Attacked]:
    with deciding(POLICIES, pool_size=POOL_SIZE) as platform:
        yield Attacked(platform)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    made = tmp_path_factory.mktemp("library") / "neighbours.so"
    call = ["cc", "-shared", "-fPIC", "-O1", "-pthread", "-D_GNU_SOURCE", "-Wl,-z,now"]
    subprocess.run([*call, "-I", HEADERS, "-o", made, SOURCE], check=True)
    return made.read_bytes()


def look(activation: Any) -> tuple[list[str], dict[str, int]]:
    """Return what was reached, and how many attempts did what."""
    *reached, tried = activation["response"]["result"]["report"].splitlines()
    counts = [part.rsplit(" ", 1) for part in tried.split(", ")]
    return reached, {word: int(count) for word, count in counts}


def check(activation: Any) -> dict[str, int]:
    """Check that nothing was reached by attempts that could tell; return their counts."""
    reached, counts = look(activation)
    assert not reached, "\n".join(reached)
    # Some take their own code away.
    assert counts["read"] > 0.8 * counts["tried"] > 0, counts
    return counts


@pytest.mark.parametrize(
    ("kind", "name", "source"),
    [
        ("python:default", "__main__.py", IN_PYTHON.replace("def attack", "def main")),
        pytest.param(
            "nodejs:default",
            "index.js",
            IN_NODEJS,
            marks=pytest.mark.skipif(not shutil.which("node"), reason="node is not installed"),
        ),
        ("blackbox", "exec", IN_A_PROGRAM),
    ],
)
def test_a_function_reaches_no_other_image(
    attacked: Attacked, library: bytes, kind: str, name: str, source: str
) -> None:
    platform, function = attacked.platform, kind.split(":", maxsplit=1)[0]
    code = archive({name: source, "neighbours.so": library})
    assert deploy(platform, function, code, kind=kind, memory=256).status == 200
    # A runtime's first instance may be a clone of what all of its kind have in common.
    check(platform.good(function, **attacked.args))
    for _ in range(CALLS_BEFORE_IMAGE):
        platform.good(function)
    seen = set()

    def have_all_tried() -> bool:
        for one in clones_of(platform, function, **attacked.args):
            counts = check(one)
            # Growing succeeds, and shows nothing: there the file of the image ends.
            assert counts["past the end"] > 10, (counts, annotation(one, "startKind"))
            seen.add(annotation(one, "startKind"))
        return seen == {"clone", "ghost"}

    await_true(have_all_tried, "clones from both kinds of ghosts")


def test_the_attacks_find_a_secret_that_can_be_reached(attacked: Attacked, library: bytes) -> None:
    source = attacked.keeper.split("def main")[0] + IN_PYTHON.replace("def attack", "def main")
    code = archive({"__main__.py": source, "neighbours.so": library})
    kind = {"kind": "python:default", "memory": 256}
    assert deploy(attacked.platform, "betrayed", code, **kind).status == 200
    for _ in range(CALLS_BEFORE_IMAGE):
        attacked.platform.good("betrayed")
    for one in clones_of(attacked.platform, "betrayed", **attacked.args):
        reached, _ = look(one)
        for way in ("nothing", "grow far"):
            assert any(way in line and "has the secret" in line for line in reached), reached
