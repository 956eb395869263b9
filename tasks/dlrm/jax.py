"""DLRM in jax: pure functions of flat parameter dictionaries with torch's shapes."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from suite import stream
from suite.tasks._nn.jax import Tap, Tree, linear
from suite.tasks.dlrm import DLRM
from suite.tasks.dlrm.architecture import Architecture


@dataclass(frozen=True)
class Model:
    """Features to the logit of a click; the twin of `suite.tasks.dlrm.torch.Model`."""

    architecture: Architecture

    def lookups(self, batch: Tree) -> Tree:
        """Return the rows of the tables that a batch needs."""
        return {"tables.weight": batch["ids"]}

    def apply(
        self, params: Tree, buffers: Tree, carry: Tree, batch: Tree, *, train: bool, key: Array | None, tap: Tap
    ) -> tuple[Tree, Tree, Tree]:
        """Outputs (logits (N,) of a click), and unchanged buffers and carry."""
        at, name = self.architecture, "tables.weight"
        rows = batch[f"{name}.rows"] if f"{name}.rows" in batch else params[name][batch["ids"]]
        rows = tap("tables", batch["ids"], rows)
        if max(at.hots) > 1:
            rows = jnp.stack([part.sum(1) for part in jnp.split(rows, np.cumsum(at.hots)[:-1], 1)], 1)

        def network(name: str, x: Array, *, last: bool) -> Array:
            count = len(at.networks[name]) - 1
            for number in range(count):
                x = linear(params, f"{name}.{number}", x, tap)
                x = jax.nn.relu(x) if last or number + 1 < count else x
            return x

        dense = network("bottom", batch["dense"], last=True)
        vectors = jnp.concatenate([dense[:, None], rows.astype(dense.dtype)], 1)  # (N, 27, width)
        if at.interaction == "cross":
            first = joined = vectors.reshape(len(dense), -1)
            for layer in range(at.cross_layers):
                down = linear(params, f"cross.{layer}.down", joined, tap)
                joined = first * linear(params, f"cross.{layer}.up", down, tap) + joined
        else:
            products = (vectors @ vectors.swapaxes(1, 2)).reshape(len(dense), -1)
            products = products.at[:, at.pairs].get(unique_indices=True)
            joined = jnp.concatenate([dense, products], 1)
        outputs = {"logit": network("top", joined, last=False)[:, 0], "label": batch["label"]}
        return outputs if train else outputs | {"weight": batch["weight"]}, buffers, carry

    def loss(self, outputs: Tree, batch: Tree) -> tuple[Array, Array]:
        """Weighted sum of log-losses, and the summed weight."""
        logit = outputs["logit"]
        losses = jnp.logaddexp(0.0, logit) - outputs["label"] * logit
        return (losses * batch["weight"]).sum(), batch["weight"].sum()

    def sample(self, outputs: Tree, key: Array, batch: Tree) -> Tree:
        """Return the outputs with clicks drawn from the model's own probabilities."""
        draws = stream.uniform(jnp, key, "label", batch["index"])
        return outputs | {"label": (draws < jax.nn.sigmoid(outputs["logit"])).astype(outputs["label"].dtype)}


def make(task: DLRM) -> Model:
    """Make the task's model."""
    return Model(task.architecture)
