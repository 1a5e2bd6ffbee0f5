"""Profiles the four kinds of functions of the paper of elastic memory, with `farfork profile`.

usage: make.py FARFORK INTO GENOME [FUNCTION ...]

Inputs lie on an S3-compatible server on this machine, moto's, which this starts: the package
moto[server] has to be importable, here or in the folder $MOTO, and squiggle for `dna`. GENOME is a
FASTA file, such as the Escherichia coli of Debian's package bowtie-examples. Writes
INTO/FUNCTION.json.
"""

import importlib.metadata
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import igraph
from PIL import Image

HERE = Path(__file__).resolve().parent
# Sizes of inputs: vertices, pixels of a side, bases.
GRAPHS = (250, 1_000, 4_000)
PHOTOGRAPHS = (256, 512, 1024)
SEQUENCES = (1_000, 4_000, 16_000)
CALLS = "15"


def graph(vertices: int) -> bytes:
    """Return the edges of a preferential attachment graph, the same each time."""
    igraph.set_random_number_generator(random.Random(1998))
    edges = igraph.Graph.Barabasi(vertices, 10).get_edgelist()
    return "\n".join(f"{one} {other}" for one, other in edges).encode()


def photograph(side: int) -> bytes:
    """Return one of scikit-learn's photographs, enlarged."""
    files = importlib.metadata.files("scikit-learn") or []
    (found,) = [file for file in files if file.name == "china.jpg"]
    image = Image.open(BytesIO(found.read_binary())).convert("RGB")
    made = BytesIO()
    image.resize((side, side), Image.Resampling.BICUBIC).save(made, "JPEG", quality=90)
    return made.getvalue()


def sequence(genome: Path) -> Callable[[int], bytes]:
    """Return what makes inputs of the first bases of a genome."""
    lines = genome.read_text().splitlines()
    bases = "".join(line for line in lines if not line.startswith(">")).upper()
    clean = "".join(base for base in bases if base in "ACGT")
    return lambda count: f">first {count} bases\n{clean[:count]}\n".encode()


def put(url: str, data: bytes = b"") -> None:
    """Make a bucket, or an object that requests without a signature may read."""
    public = {"x-amz-acl": "public-read", "content-type": "application/octet-stream"}
    request = urllib.request.Request(url, data=data, method="PUT", headers=public)
    with urllib.request.urlopen(request):
        pass


def serve() -> tuple[subprocess.Popen[bytes], str]:
    """Start moto's server; return it and its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": os.environ.get("MOTO", "")}
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            put(f"{url}/inputs")
        except OSError:
            time.sleep(0.1)
        else:
            return server, url
    server.kill()
    raise SystemExit("make.py: moto's server does not answer")


def main() -> None:
    """Make the profiles."""
    farfork, into, genome, *only = sys.argv[1:]
    inputs: dict[str, tuple[Callable[[int], bytes], tuple[int, ...]]] = {
        "pagerank": (graph, GRAPHS),
        "thumbnailer": (photograph, PHOTOGRAPHS),
        "dna": (sequence(Path(genome)), SEQUENCES),
        "recognition": (photograph, PHOTOGRAPHS),
    }
    server, url = serve()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name in only or inputs:
                make, sizes = inputs[name]
                payloads = []
                for size in sizes:
                    data, key = make(size), f"{name}-{size}"
                    put(f"{url}/inputs/{key}", data)
                    file = Path(folder) / f"{key}.json"
                    args = {"endpoint": url, "bucket": "inputs", "key": key}
                    file.write_text(json.dumps({**args, "payload_bytes": len(data)}))
                    payloads += ["--payload", str(file)]
                command = [
                    farfork,
                    "profile",
                    str(HERE / f"{name}.py"),
                    *payloads,
                    "--json",
                ]
                command += ["--python", sys.executable, "--calls", CALLS]
                made = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
                (Path(into) / f"{name}.json").write_bytes(made)
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
