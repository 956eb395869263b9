"""BERT in jax: pure functions of a flat parameter dictionary with torch's shapes."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from suite import stream
from suite.tasks._nn.jax import (
    Tap,
    Tree,
    add_bias,
    attention,
    cross_entropies,
    draw_labels,
    dropout,
    find_type,
    layer_norm,
    linear,
    merge_heads,
    split_heads,
    widen_floats,
)
from suite.tasks._sparse.jax import linear as block_linear
from suite.tasks.bert import EPSILON, Bert
from suite.tasks.bert.architecture import Architecture


def _gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=True)  # as in Devlin et al.'s code


@dataclass(frozen=True)
class Network:
    """Corrupted sequences to logits; the twin of `suite.tasks.bert.torch.Network`."""

    sizes: Architecture
    next_weight: float

    def encode(self, params: Tree, buffers: Tree, batch: Tree, *, train: bool, key: Array | None, tap: Tap) -> Array:
        """Contextual vectors (N, T, width)."""
        sizes, visible = self.sizes, batch["visible"][:, None, None]
        sparsity, sparse = sizes.sparsity, sizes.sparse()

        def matrix(name: str, x: Array) -> Array:
            if sparsity:
                form = {"shape": sparse[name], "execution": sparsity.execution}
                return block_linear(params, buffers, name, x, tap, **form)
            return linear(params, name, x, tap)

        def drop(x: Array, name: str) -> Array:
            return dropout(x, sizes.dropout, key=key, name=name, index=batch["index"]) if train else x

        def norm(name: str, x: Array) -> Array:
            return layer_norm(params, name, x, eps=EPSILON)

        def lookup(name: str, rows: Array) -> Array:
            return tap(name, rows, params[f"{name}.weight"][rows].astype(kind))

        def attend(at: str, x: Array) -> Array:
            query, key, value = (
                split_heads(matrix(f"{at}.{name}", x), sizes.heads) for name in ("query", "key", "value")
            )
            masked = (lambda p: drop(p, f"{at}.attention")) if sizes.dropout else None
            seen = attention(query, key, value, visible, masked)
            return drop(matrix(f"{at}.out", merge_heads(seen)), f"{at}.out")

        def feed(at: str, x: Array) -> Array:
            return drop(matrix(f"{at}.down", _gelu(matrix(f"{at}.up", x))), f"{at}.down")

        tokens, kind = batch["tokens"], find_type(params)
        places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        x = params["word.weight"][tokens].astype(kind) + lookup("position", places)
        x = x + lookup("segment", batch["segment"])
        x = drop(x if sizes.pre_norm else norm("norm", x), "embeddings")
        for at in (f"encoder.{layer}" for layer in range(sizes.layers)):
            if sizes.pre_norm:
                x = x + attend(at, norm(f"{at}.norm1", x))
                x = x + feed(at, norm(f"{at}.norm2", x))
            else:
                x = norm(f"{at}.norm1", x + attend(at, x))
                x = norm(f"{at}.norm2", x + feed(at, x))
        return norm("norm", x) if sizes.pre_norm else x

    def apply(
        self, params: Tree, buffers: Tree, carry: Tree, batch: Tree, *, train: bool, key: Array | None, tap: Tap
    ) -> tuple[Tree, Tree, Tree]:
        """In training logits (N, P, V) and labels (N, P), and (N, 2), (N,) for pairs; in evaluation sums (N,)."""
        x = self.encode(params, buffers, batch, train=train, key=key, tap=tap)
        # in float32: rows without so many masked words name position 0 for the others, and the gradient adds them up
        y = jnp.take_along_axis(widen_floats(x), batch["position"][..., None], 1)
        y = layer_norm(params, "mlm.norm", _gelu(linear(params, "mlm.transform", y, tap)), eps=EPSILON)
        logits = add_bias(y @ params["word.weight"].astype(y.dtype).T, params["mlm.bias"])
        outputs = {"logits": logits, "label": batch["label"]}
        if self.sizes.next_sentence:
            pooled = jnp.tanh(linear(params, "pooler", x[:, 0], tap))
            outputs["next_logits"] = linear(params, "next_sentence", pooled, tap)
            outputs["next_label"] = batch["random_next"]
        return outputs if train else self._sums(outputs, batch), buffers, carry

    def _losses(self, outputs: Tree) -> Tree:
        """Cross-entropies: `mlm` (N, P), and `nsp` (N,) for pairs."""
        losses = {"mlm": cross_entropies(outputs["logits"], outputs["label"])}
        if "next_logits" in outputs:
            losses["nsp"] = cross_entropies(outputs["next_logits"], outputs["next_label"])
        return losses

    def loss(self, outputs: Tree, batch: Tree) -> tuple[Array, Array]:
        """Weighted sum of the losses, and the number of masked words; the quotient is BERT's loss."""
        losses, weight = self._losses(outputs), batch["weight"]
        hidden = batch["masked"] * weight[:, None]
        total = (losses["mlm"] * hidden).sum()
        if "nsp" in losses:
            total = total + self.next_weight * (losses["nsp"] * weight).sum()
        return total, hidden.sum()

    def _sums(self, outputs: Tree, batch: Tree) -> Tree:
        """Return the inputs of the score for each sample, (N,) each."""
        losses, masked = self._losses(outputs), batch["masked"]
        hits = (outputs["logits"].argmax(2) == outputs["label"]) * masked
        sums = {"weight": batch["weight"], "masks": masked.sum(1)}
        # a logit of -∞ may leave the loss finite
        mlm = jnp.where(jnp.isfinite(outputs["logits"]).all(2), losses["mlm"], jnp.nan)
        sums |= {"mlm_loss": (mlm * masked).sum(1), "mlm_hits": hits.sum(1)}
        if "nsp" in losses:
            sums["nsp_loss"] = jnp.where(jnp.isfinite(outputs["next_logits"]).all(1), losses["nsp"], jnp.nan)
            sums["nsp_hits"] = (outputs["next_logits"].argmax(1) == outputs["next_label"]).astype(masked.dtype)
        return sums

    def sample(self, outputs: Tree, key: Array, batch: Tree) -> Tree:
        """Return the outputs with both labels drawn from the model's own distributions."""
        count = outputs["label"].shape[1]
        index = batch["index"].astype(jnp.uint32)
        each = index[:, None] * jnp.uint32(count) + jnp.arange(count, dtype=jnp.uint32)
        drawn = outputs | {"label": draw_labels(outputs["logits"], stream.uniform(jnp, key, "label", each))}
        if "next_logits" in outputs:
            drawn["next_label"] = draw_labels(outputs["next_logits"], stream.uniform(jnp, key, "next_label", index))
        return drawn


def make(task: Bert) -> Network:
    """Make the task's model."""
    return Network(task.architecture, task.hidden_each)
