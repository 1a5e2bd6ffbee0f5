"""Builds the models of the sample functions: models FOLDER."""

import sys
from pathlib import Path

import bert
import cnn
import embed
import rnn

MODELS = {module.NAME: module.build for module in (bert, cnn, embed, rnn)}


def main(folder: Path) -> None:
    """Build each model in a folder of its own."""
    for name, build in MODELS.items():
        build(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
