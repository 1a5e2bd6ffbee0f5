"""ONNX graphs, built node by node."""

import os
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17  # the first with LayerNormalization
IR_VERSION = 8
LAYER_NORM_EPSILON = 1e-12

Weights = dict[str, np.ndarray]
Shape = list[int | str]


class Graph:
    """Collects nodes and constants; every method returns the name of a tensor."""

    def __init__(self, weights: Weights) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self._weights = weights

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Add a node; the name of its first output."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, outputs: int, *inputs: str, **attributes: object) -> list[str]:
        """Add a node with several outputs."""
        names = [f"{kind}_{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names

    def constant(self, name: str, value: np.ndarray) -> str:
        """Add `value` under `name`, once."""
        self.constants.setdefault(name, value)
        return name

    def scalar(self, value: float) -> str:
        """Add a float32 scalar."""
        return self.constant(f"scalar_{value}", np.float32(value))

    def ints(self, *values: int) -> str:
        """Add a vector of int64."""
        return self.constant(f"ints_{values}", np.array(values, np.int64))

    def weight(self, name: str) -> str:
        """Add a weight as it is stored."""
        return self.constant(name, self._weights[name])

    def linear(self, x: str, name: str) -> str:
        """Add x W^T + b; W is stored [out, in]."""
        transposed = np.ascontiguousarray(self._weights[f"{name}.weight"].T)
        product = self.op("MatMul", x, self.constant(f"{name}.weight.T", transposed))
        return self.op("Add", product, self.weight(f"{name}.bias"))

    def layer_norm(self, x: str, name: str) -> str:
        """Add LayerNorm over the last axis."""
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=LAYER_NORM_EPSILON)

    def model(
        self, name: str, inputs: dict[str, tuple[int, Shape]], outputs: dict[str, tuple[str, Shape]]
    ) -> onnx.ModelProto:
        """Return the whole, checked: inputs by type and shape, float32 outputs by tensor."""
        made = [helper.make_tensor_value_info(n, kind, s) for n, (kind, s) in inputs.items()]
        wanted = []
        for output, (tensor, shape) in outputs.items():
            self.nodes.append(helper.make_node("Identity", [tensor], [output]))
            wanted.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, shape))
        constants = [numpy_helper.from_array(v, n) for n, v in self.constants.items()]
        graph = helper.make_graph(self.nodes, name, made, wanted, constants)
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)
        onnx.checker.check_model(model, full_check=True)
        return model


def replace(path: Path, data: bytes) -> None:
    """Write a file in one step, so that a build that is cut off leaves nothing half-made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_bytes(data)
    os.replace(unfinished, path)
