"""What a clone can reach of the pool that its image lies in: nothing but what it maps of its own.

Attacks by functions that run native code. All of them worked once, or are variants of those that
did.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kinds import SERVER_PY, archive, clones_of, deploy
from served import POOL_SIZE, Platform, annotation, await_true, deciding

SOURCE = Path(__file__).parent / "functions/neighbours.c"

IN_PYTHON = r"""
import ctypes, os, time

def attack(args):
    time.sleep(args.get("sleep", 0))
    if "images" not in args:
        return {}
    library = ctypes.CDLL(os.path.abspath("neighbours.so"))
    report = ctypes.create_string_buffer(1 << 16)
    library.attack(args["images"].encode(), report, ctypes.c_size_t(len(report)))
    return {"report": report.value.decode()}
"""

# It cannot call the library: that attacks when it is loaded.
IN_NODEJS = r"""
const fs = require("fs");
exports.main = async ({ images, sleep }) => {
  await new Promise((go) => setTimeout(go, 1000 * (sleep || 0)));
  if (!images) return {};
  fs.writeFileSync("/tmp/neighbours.of", images);
  try { process.dlopen({ exports: {} }, __dirname + "/neighbours.so"); } catch { }
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


# Ghosts wait with the image as soon as one could, and others without one.
POLICIES = {"ghosts": {"worth_us_per_mib_hour": 0}}


@pytest.fixture(scope="module")
def attacked() -> Iterator[Platform]:
    with deciding(POLICIES, pool_size=POOL_SIZE) as platform:
        yield platform


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    made = tmp_path_factory.mktemp("library") / "neighbours.so"
    call = ["cc", "-shared", "-fPIC", "-O1", "-pthread", "-o", str(made), str(SOURCE)]
    subprocess.run(call, check=True)
    return made.read_bytes()


def check(activation: Any) -> int:
    """Check that nothing was reached; return how often it was tried."""
    *grown, tried = activation["response"]["result"]["report"].splitlines()
    assert not grown, "\n".join(grown)
    return int(tried.removeprefix("tried "))


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
    attacked: Platform, library: bytes, kind: str, name: str, source: str
) -> None:
    function = kind.split(":", maxsplit=1)[0]
    images = attacked.farfork.environment["FARFORK_POOL"] + "/images/"
    code = archive({name: source, "neighbours.so": library})
    assert deploy(attacked, function, code, kind=kind, memory=256).status == 200
    # A runtime's first instance may be a clone of what all of its kind have in common.
    check(attacked.good(function, images=images))
    for _ in range(17):
        attacked.good(function)
    seen = set()

    def have_all_tried() -> bool:
        for one in clones_of(attacked, function, images=images):
            assert check(one) > 0
            seen.add(annotation(one, "startKind"))
        return seen == {"clone", "ghost"}

    await_true(have_all_tried, "clones from both kinds of ghosts")
