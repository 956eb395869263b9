"""Autoencoder in jax: pure functions of flat parameter dictionaries with torch's shapes."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from suite import stream
from suite.tasks._nn.jax import Tap, Tree, linear, widen_floats
from suite.tasks.autoencoder import Autoencoder
from suite.tasks.autoencoder.architecture import Architecture


@dataclass(frozen=True)
class Model:
    """Images to their reconstruction; the twin of `suite.tasks.autoencoder.torch.Model`."""

    architecture: Architecture

    def apply(
        self, params: Tree, buffers: Tree, carry: Tree, batch: Tree, *, train: bool, key: Array | None, tap: Tap
    ) -> tuple[Tree, Tree, Tree]:
        """Outputs (`output` (N, pixels), or in evaluation each image's losses), buffers and carry."""
        x, at = batch["image"], self.architecture
        for name, _, _, relu in at.sequence:
            x = linear(params, name, x, tap)
            x = jax.nn.relu(x) if relu else x
        penalty = 0.5 * at.penalty * jnp.stack([jnp.vdot(v, v) for v in map(widen_floats, params.values())]).sum()
        if train:
            return {"output": x, "image": batch["image"], "penalty": penalty}, buffers, carry
        x = widen_floats(x)
        pixels = jax.nn.sigmoid(x) if at.loss == "bernoulli" else x
        error = ((pixels - batch["image"]) ** 2).mean(1)
        outputs = {"loss": self._losses(x, batch["image"]), "error": error, "weight": batch["weight"]}
        return outputs | {"penalty": jnp.broadcast_to(penalty, error.shape)}, buffers, carry

    def _losses(self, output: Array, image: Array) -> Array:
        """Summed over the pixels of each image, (N,)."""
        if self.architecture.loss == "bernoulli":
            return (jnp.logaddexp(0.0, output) - image * output).sum(1)
        return 0.5 * ((output - image) ** 2).sum(1)

    def loss(self, outputs: Tree, batch: Tree) -> tuple[Array, Array]:
        """Weighted sum of the images' losses, each with the penalty, and the summed weight."""
        weight = batch["weight"].sum()
        total = (self._losses(outputs["output"], outputs["image"]) * batch["weight"]).sum()
        return total + outputs["penalty"] * weight, weight

    def sample(self, outputs: Tree, key: Array, batch: Tree) -> Tree:
        """Return the outputs with images drawn from the model: Bernoulli pixels, or normal pixels of deviation 1."""
        output = outputs["output"]
        size = output.shape[1]
        place = batch["index"].astype(jnp.uint32)[:, None] * jnp.uint32(size) + jnp.arange(size, dtype=jnp.uint32)
        if self.architecture.loss == "bernoulli":
            image = (stream.uniform(jnp, key, "image", place) < jax.nn.sigmoid(output)).astype(output.dtype)
        else:
            image = jax.lax.stop_gradient(output) + stream.normal(jnp, key, "image", place)
        return outputs | {"image": image}


def make(task: Autoencoder) -> Model:
    """Make the task's model."""
    return Model(task.architecture)
