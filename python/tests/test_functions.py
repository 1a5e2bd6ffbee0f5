"""The sample functions' answers are right, and the same in every process."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from types import ModuleType
from typing import Any

import pytest
from bed import LOCAL, NODES, Bed, Clone, Parent
from runtimes import ROOT

pytest.importorskip("onnxruntime", reason="the sample functions' packages are not installed")

USER = "test"  # whose images are
PALACE, DAISY = 698, 985  # of ImageNet's classes
FUNCTIONS = sorted(
    path.parent.name
    for path in ROOT.glob("functions/*/main.py")
    if "def example(" in path.read_text()
)


def load(name: str) -> ModuleType:
    path = ROOT / "functions" / name / "main.py"
    spec = importlib.util.spec_from_file_location(f"{name}_main", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(name: str, args: dict[str, Any]) -> dict[str, Any]:
    return load(name).main(args)


def test_float_matches_its_formula() -> None:
    of_0, of_1 = 1, 0.8414710 + 0.5403023 + 1
    assert answer("float", {"start": 0, "n": 2})["sum"] == pytest.approx(of_0 + of_1)


def test_linpack_solves_exactly() -> None:
    assert answer("linpack", {"n": 50, "seed": 1})["is_exact"]


def test_json_counts_the_regions_of_france() -> None:
    assert answer("json", {"country": "FR"})["count"] > 100


def test_pyaes_agrees_with_the_published_vector() -> None:
    module = load("pyaes")
    # FIPS 197, appendix C.3: the block cipher that counter mode is made of.
    cipher = module.pyaes.AES(bytes(range(32)))
    block = cipher.encrypt(bytes.fromhex("00112233445566778899aabbccddeeff"))
    assert bytes(block).hex() == "8ea2b7ca516745bfeafc49904b496089"
    assert module.main({"text": "t", "key": "k"}) != module.main({"text": "t", "key": "l"})


def test_chameleon_renders_every_cell() -> None:
    module = load("chameleon")
    page = module._TEMPLATE.render(table=[[1, 2], [3, 4]])
    assert [f"{cell} of 2" in page for cell in (1, 2, 3, 4)] == [True] * 4


def test_html_escapes_input() -> None:
    module = load("html")
    assert module.main({"country": "IS", "visitor": "<b>"})["title"] == "Iceland"
    with pytest.raises(ValueError, match="unknown country XX"):
        module.main({"country": "XX"})


def test_html_does_not_depend_on_the_order_of_sets() -> None:
    program = [sys.executable, ROOT / "bench/programs/examples.py", ROOT / "functions/html", "120"]
    pages = {
        subprocess.run(program, env={"PYTHONHASHSEED": seed}, stdout=PIPE, check=True).stdout
        for seed in "123"
    }
    assert len(pages) == 1


def test_cnn_knows_a_palace_and_a_flower() -> None:
    module = load("cnn")
    assert module.main({"photograph": "china"})["classes"][0] == PALACE
    assert module.main({"photograph": "flower"})["classes"][0] == DAISY


def test_rnn_writes_words() -> None:
    text = answer("rnn", {"prefix": "T", "seed": 1, "temperature": 0.2, "length": 80})["text"]
    assert "the" in text.lower().split()


def test_bfs_reaches_every_vertex_by_few_steps() -> None:
    module = load("bfs")
    levels = module.main({"source": 5})["levels"]
    assert (sum(levels), levels[0]) == (module.VERTICES, 1)
    assert len(levels) < 10


def test_bert_counts_tokens_as_its_vocabulary_does() -> None:
    found = answer("bert", {"text": "a clone reads"})
    assert (found["tokens"], sum(found["shares"])) == (5, pytest.approx(1, abs=1e-4))


def test_heat_spreads_from_the_spot() -> None:
    hottest = answer("heat", {"steps": 4, "x": 100, "y": 200})["hottest"]
    assert hottest == pytest.approx([100, 200], abs=8)


def test_compress_packs_what_it_is_asked_for() -> None:
    found = answer("compress", {"kib": 300, "first": 5})
    assert found["bytes"] == 300 << 10
    assert found["bytes"] / 8 < found["packed"] < found["bytes"] / 2
    with pytest.raises(ValueError, match="cannot pack 0 KiB"):
        answer("compress", {"kib": 0})


def test_imageproc_mirrors_twice_to_the_same() -> None:
    module = load("imageproc")
    image = module._PHOTOGRAPHS["flower"]
    steps = dict(module._STEPS)
    assert steps["mirrored"](steps["mirrored"](image)).tobytes() == image.tobytes()
    assert len(set(module.main({"side": 50}).values())) == len(steps)


def test_pagerank_agrees_with_walks_counted_by_hand() -> None:
    module = load("pagerank")
    found = module.main({"vertices": 300, "source": 200})
    graph = module._graph(300)
    ranks = [1 / 300] * 300
    for _ in range(200):
        spread = [rank / graph.degree(vertex) for vertex, rank in enumerate(ranks)]
        ranks = [0.85 * sum(spread[near] for near in graph.neighbors(v)) for v in range(300)]
        ranks[200] += 0.15
    assert found["ranks"] == pytest.approx([ranks[vertex] for vertex in found["best"]], abs=1e-5)
    assert found["ranks"] == pytest.approx(sorted(ranks, reverse=True)[:10], abs=1e-5)


def test_thumbnail_is_small() -> None:
    found = answer("thumbnail", {"side": 800, "to": 90})
    assert found["size"] == [90, 90]
    assert found["bytes"] * 10 < found["sent"]


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Compare answers but for how fast they were."""
    one, other = ({k: v for k, v in a.items() if k != "mflops"} for a in (one, other))
    return one == other


def in_every_way(bed: Bed, parent: Parent) -> Iterator[Clone]:
    """Start clones by every policy: from scratch, in empty ghosts, and in those with the image."""
    for tiering in ("mow", "moa", "hybrid", "copy"):
        policy = ["--tiering", tiering]
        for ghost in ([], ["--user", USER], ["--image", parent.image, *policy]):
            more = list(policy)
            if ghost:
                waits = bed.farfork.json("ghost", "start", *ghost)
                more += ["--ghost", waits["id"]]
            yield from bed.clones(parent.image, parent.listen_fd, more=more)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_clones_answer_as_a_fresh_process_wherever_and_however_they_start(
    bed: Bed, function: str
) -> None:
    path: Path = ROOT / "functions" / function
    example = load(function).example
    parent = bed.parent(path)
    fresh = bed.start(path)
    parent.client.run(example(0))
    clones = [bed.clones(parent.image, parent.listen_fd, node=node)[0] for node in (LOCAL, *NODES)]
    clones += in_every_way(bed, parent)
    for number, clone in enumerate([*clones, parent]):
        for request in (example(number), example(number + 7)):
            assert same(clone.client.run(request), fresh.client.run(request)), (clone, request)
