"""Part of a classifier around its network, in jax; images are NHWC inside a network, torch's shapes outside."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from suite import stream
from suite.tasks._nn.jax import Tap, Tree, draw_labels, soft_cross_entropies


@dataclass(frozen=True)
class Classifier(ABC):
    """Images to class logits; a subclass defines `logits`. The twin of `suite.tasks._images.torch.Classifier`."""

    architecture: Any
    smoothing: float = 0.0

    @abstractmethod
    def logits(
        self, params: Tree, buffers: Tree, x: Array, *, train: bool, key: Array | None, index: Array, tap: Tap
    ) -> tuple[Array, Tree]:
        """(N, S, S, 3) images to (N, classes) logits, and the buffers that have changed."""

    def apply(
        self, params: Tree, buffers: Tree, carry: Tree, batch: Tree, *, train: bool, key: Array | None, tap: Tap
    ) -> tuple[Tree, Tree, Tree]:
        """Outputs (logits, and in training target probabilities; (N, classes) each), new buffers, new carry."""
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
            outputs |= {"label": batch["label"], "weight": batch["weight"]}  # inputs of the score
        x = x.transpose(0, 2, 3, 1)  # NCHW to NHWC
        outputs["logits"], new = self.logits(params, buffers, x, train=train, key=key, index=batch["index"], tap=tap)
        return outputs, buffers | new, carry

    def loss(self, outputs: Tree, batch: Tree) -> tuple[Array, Array]:
        """Weighted sum of cross-entropies, and the summed weight."""
        losses = soft_cross_entropies(outputs["logits"], outputs["target"])
        return (losses * batch["weight"]).sum(), batch["weight"].sum()

    def sample(self, outputs: Tree, key: Array, batch: Tree) -> Tree:
        """Return the outputs with targets drawn from the model's own distribution."""
        label = draw_labels(outputs["logits"], stream.uniform(jnp, key, "label", batch["index"]))
        return outputs | {"target": jax.nn.one_hot(label, self.architecture.classes, dtype=outputs["target"].dtype)}
