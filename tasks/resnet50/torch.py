"""The ResNet in torch."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from suite import stream
from suite.tasks._nn.torch import BatchNorm2d
from suite.tasks.resnet50 import ResNet50
from suite.tasks.resnet50.architecture import Architecture, Block, Convolution

Tree = dict[str, Tensor]


def _convolution(conv: Convolution) -> nn.Conv2d:
    return nn.Conv2d(conv.inputs, conv.outputs, conv.kernel, conv.stride, conv.padding, bias=False)


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions around a shortcut."""

    def __init__(self, block: Block, group: int):
        super().__init__()
        first, second, third = block.body
        self.conv1, self.bn1 = _convolution(first), BatchNorm2d(first.outputs, group=group)
        self.conv2, self.bn2 = _convolution(second), BatchNorm2d(second.outputs, group=group)
        self.conv3, self.bn3 = _convolution(third), BatchNorm2d(third.outputs, group=group)
        self.downsample = nn.Sequential()
        if block.shortcut:
            self.downsample = nn.Sequential(
                _convolution(block.shortcut), BatchNorm2d(block.shortcut.outputs, group=group)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, 4 · width, H / stride, W / stride)."""
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet(nn.Module):
    """Images to class logits.

    Args:
        architecture: the network's sizes.
        smoothing: label smoothing ε.
    """

    def __init__(self, architecture: Architecture, *, smoothing: float = 0.0):
        super().__init__()
        self.classes, self.smoothing, self.depth = architecture.classes, smoothing, len(architecture.blocks)
        self.conv1 = _convolution(architecture.stem)
        self.bn1 = BatchNorm2d(architecture.width, group=architecture.group)
        for stage in range(self.depth):
            names = f"layer{stage + 1}."
            blocks = [b for b in architecture.bottlenecks() if b.name.startswith(names)]
            self.add_module(names[:-1], nn.Sequential(*(Bottleneck(block, architecture.group) for block in blocks)))
        self.fc = nn.Linear(architecture.features, architecture.classes)

    def forward(self, batch: Tree, carry: Tree | None = None, key: object = None) -> tuple[Tree, Tree]:
        """Logits (N, classes), and in training the target probabilities (N, classes) they are held to.

        With running mixup (`mix` in the batch) image and target are blended with the previous step's blend, which is
        the carry: x̃ᵗ = λ xᵗ + (1 - λ) x̃ᵗ⁻¹ (SP-NGD, Osawa et al. 2020, eq. 18-19).
        """
        x, outputs, carry = batch["image"], {}, carry or {}
        if self.training:
            target = functional.one_hot(batch["label"].long(), self.classes).to(x.dtype)
            target = (1.0 - self.smoothing) * target + self.smoothing / self.classes
            if "mix" in batch:
                mix = batch["mix"]
                x = torch.lerp(carry["image"], x, mix[:, None, None, None])
                target = torch.lerp(carry["target"], target, mix[:, None])
                carry = {"image": x, "target": target}
            outputs["target"] = target
        else:
            outputs |= {"label": batch["label"], "weight": batch["weight"]}  # what the score needs
        x = torch.relu(self.bn1(self.conv1(x)))
        x = functional.max_pool2d(x, 3, 2, 1)
        for stage in range(self.depth):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        outputs["logits"] = self.fc(x.mean((2, 3)))
        return outputs, carry

    def loss(self, outputs: Tree, batch: Tree) -> tuple[Tensor, Tensor]:
        """Weighted sum of cross-entropies, and the summed weight."""
        losses = functional.cross_entropy(outputs["logits"], outputs["target"], reduction="none")
        return (losses * batch["weight"]).sum(), batch["weight"].sum()

    def sample(self, outputs: Tree, key: np.ndarray, batch: Tree) -> Tree:
        """The outputs with targets drawn from the model's own distribution."""
        draws = torch.from_numpy(stream.uniform(np, key, "label", batch["index"].cpu().numpy())).to(outputs["logits"])
        cumulative = outputs["logits"].softmax(1).cumsum(1)
        label = (cumulative < draws[:, None]).sum(1).clamp(max=self.classes - 1)
        return outputs | {"target": functional.one_hot(label, self.classes).to(outputs["target"].dtype)}


def make(task: ResNet50) -> ResNet:
    """The task's model, its weights not yet set."""
    return ResNet(task.architecture, smoothing=task.smoothing)
