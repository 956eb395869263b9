"""The ResNet in jax: pure functions of flat parameter and buffer dictionaries; NHWC inside, torch's shapes outside."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from suite import stream
from suite.tasks._nn.jax import batch_norm, conv2d, cross_entropy, max_pool
from suite.tasks.resnet50 import ResNet50
from suite.tasks.resnet50.architecture import Architecture, Block, Convolution

Tree = dict[str, Array]
Tap = Callable[[str, Array, Array], Array]


@dataclass(frozen=True)
class ResNet:
    """Images to class logits; the twin of `suite.tasks.resnet50.torch.ResNet`."""

    architecture: Architecture
    smoothing: float = 0.0

    def apply(
        self, params: Tree, buffers: Tree, carry: Tree, batch: Tree, *, train: bool, key: Array | None, tap: Tap
    ) -> tuple[Tree, Tree, Tree]:
        """Outputs (logits, and in training target probabilities; (N, classes) each), new buffers, new carry."""
        new = dict(buffers)

        def unit(conv: Convolution, x: Array) -> Array:
            y = tap(conv.name, x, conv2d(x, params[f"{conv.name}.weight"], stride=conv.stride, padding=conv.padding))
            normalized, statistics = batch_norm(y, buffers, conv.norm, train=train, group=self.architecture.group)
            new.update(statistics)
            y = normalized * params[f"{conv.norm}.weight"] + params[f"{conv.norm}.bias"]
            return tap(conv.norm, normalized, y)

        def bottleneck(block: Block, x: Array) -> Array:
            first, second, third = block.body
            y = jax.nn.relu(unit(first, x))
            y = jax.nn.relu(unit(second, y))
            return jax.nn.relu(unit(third, y) + (unit(block.shortcut, x) if block.shortcut else x))

        x, outputs = batch["image"], {}
        if train:
            classes = self.architecture.classes
            target = jax.nn.one_hot(batch["label"], classes, dtype=x.dtype)
            target = (1.0 - self.smoothing) * target + self.smoothing / classes
            if "mix" in batch:  # running mixup, SP-NGD eq. 18-19
                mix = batch["mix"][:, None]
                x = carry["image"] + mix[..., None, None] * (x - carry["image"])
                target = carry["target"] + mix * (target - carry["target"])
                carry = {"image": x, "target": target}
            outputs["target"] = target
        else:
            outputs |= {"label": batch["label"], "weight": batch["weight"]}  # what the score needs
        x = x.transpose(0, 2, 3, 1)  # NCHW to NHWC
        x = max_pool(jax.nn.relu(unit(self.architecture.stem, x)), window=3, stride=2, padding=1)
        for block in self.architecture.bottlenecks():
            x = bottleneck(block, x)
        x = x.mean((1, 2))  # (N, features)
        outputs["logits"] = tap("fc", x, x @ params["fc.weight"].T + params["fc.bias"])
        return outputs, new, carry

    def loss(self, outputs: Tree, batch: Tree) -> tuple[Array, Array]:
        """Weighted sum of cross-entropies, and the summed weight."""
        losses = cross_entropy(outputs["logits"], outputs["target"])
        return (losses * batch["weight"]).sum(), batch["weight"].sum()

    def sample(self, outputs: Tree, key: Array, batch: Tree) -> Tree:
        """The outputs with targets drawn from the model's own distribution."""
        draws = stream.uniform(jnp, key, "label", batch["index"])
        cumulative = jnp.cumsum(jax.nn.softmax(outputs["logits"]), 1)
        classes = self.architecture.classes
        label = jnp.minimum((cumulative < draws[:, None]).sum(1), classes - 1)
        return outputs | {"target": jax.nn.one_hot(label, classes, dtype=outputs["target"].dtype)}


def make(task: ResNet50) -> ResNet:
    """The task's model."""
    return ResNet(task.architecture, task.smoothing)
