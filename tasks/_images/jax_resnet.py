"""ResNets in jax: pure functions of flat parameter and buffer dictionaries."""

from dataclasses import dataclass

import jax
from jax import Array

from suite.tasks._images.jax import Classifier
from suite.tasks._images.resnet import Architecture, Convolution
from suite.tasks._nn.jax import Tap, Tree, batch_norm, conv2d, linear, max_pool


@dataclass(frozen=True)
class ResNet(Classifier):
    """Images to class logits; the twin of `suite.tasks._images.torch_resnet.ResNet`."""

    architecture: Architecture

    def logits(
        self, params: Tree, buffers: Tree, x: Array, *, train: bool, key: Array | None, index: Array, tap: Tap
    ) -> tuple[Array, Tree]:
        """(N, S, S, 3) images to (N, classes) logits, and new running statistics; nothing is random."""
        new: Tree = {}

        def unit(conv: Convolution, x: Array) -> Array:
            y = tap(conv.name, x, conv2d(x, params[f"{conv.name}.weight"], stride=conv.stride, padding=conv.padding))
            normalized, statistics = batch_norm(y, buffers, conv.norm, train=train, group=self.architecture.group)
            new.update(statistics)
            y = normalized * params[f"{conv.norm}.weight"] + params[f"{conv.norm}.bias"]
            return tap(conv.norm, normalized, y.astype(normalized.dtype))

        x = jax.nn.relu(unit(self.architecture.stem, x))
        x = x if self.architecture.small else max_pool(x, window=3, stride=2, padding=1)
        for block in self.architecture.residuals():
            *first, last = block.body
            y = x
            for conv in first:
                y = jax.nn.relu(unit(conv, y))
            x = jax.nn.relu(unit(last, y) + (unit(block.shortcut, x) if block.shortcut else x))
        return linear(params, "fc", x.mean((1, 2)), tap), new
