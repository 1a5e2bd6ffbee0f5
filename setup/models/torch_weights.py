"""Reads the weights of a model that PyTorch saved before version 1.6, without PyTorch.

Such a file is a row of pickles: a magic number, a version, a description of the machine,
the tensors by name, the keys of their storages; then each storage, a count and its numbers.
Only tensors are unpickled: anything else that a pickle asks for is an error.
"""

import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

MAGIC = 0x1950A86A20F9469CFC6C
Numbers = tuple[int, ...]
DTYPES = {"FloatStorage": np.float32, "LongStorage": np.int64}


class _Tensor:
    """A view of a storage that is read later."""

    def __init__(self, storage: str, offset: int, shape: Numbers, strides: Numbers) -> None:
        self.storage, self.offset, self.shape, self.strides = storage, offset, shape, strides


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.dtypes: dict[str, Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, shape, strides, *_: _Tensor(
                storage, offset, shape, strides
            )
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        raise pickle.UnpicklingError(
            f"{module}.{name} is not a tensor; the file does not contain weights"
        )

    def persistent_load(self, pid: Any) -> str:
        _, dtype, key, *_ = pid
        self.dtypes[key] = dtype
        return key


def load(path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of the file by name."""
    with path.open("rb") as file:
        if pickle.load(file) != MAGIC:
            raise ValueError(f"cannot read {path}: it is not a file of weights of this kind")
        pickle.load(file)
        pickle.load(file)
        unpickler = _Unpickler(file)
        tensors = unpickler.load()
        storages = {}
        for key in pickle.load(file):
            (count,) = struct.unpack("<q", file.read(8))
            dtype = np.dtype(unpickler.dtypes[key])
            storages[key] = np.frombuffer(file.read(count * dtype.itemsize), dtype)
    return {name: _view(tensor, storages) for name, tensor in tensors.items()}


def _view(tensor: _Tensor, storages: dict[str, np.ndarray]) -> np.ndarray:
    storage = storages[tensor.storage][tensor.offset :]
    strides = [stride * storage.itemsize for stride in tensor.strides]
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True)) + 1
    if tensor.shape and reach > len(storage):
        raise ValueError("a tensor reaches beyond its storage; the file is damaged")
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(storage, tensor.shape, strides))
