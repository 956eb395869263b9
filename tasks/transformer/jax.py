"""Transformer in jax: pure functions of flat parameter dictionaries."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from suite import stream
from suite.tasks._nn.jax import (
    attention,
    draw_labels,
    dropout,
    find_type,
    layer_norm,
    linear,
    merge_heads,
    split_heads,
)
from suite.tasks.transformer import Translation
from suite.tasks.transformer.architecture import BOS, EPSILON, PAD, Architecture, encode_positions

Tree = dict[str, Array]
Tap = Callable[[str, Array, Array], Array]
Body = Callable[[str, Array], Array]  # a sub-layer's name and input to its output


@dataclass(frozen=True)
class Pass:
    """One pass through the network with its weights and dropout, which is off without a key."""

    architecture: Architecture
    params: Tree
    tap: Tap = lambda name, x, y: y
    key: Array | None = None
    index: Array | None = None

    def linear(self, name: str, x: Array) -> Array:
        """A linear layer."""
        return linear(self.params, name, x, self.tap)

    def drop(self, name: str, x: Array) -> Array:
        """Dropout of (N, …)."""
        if self.index is None:
            return x
        return dropout(x, self.architecture.dropout, key=self.key, name=name, index=self.index)

    def embed(self, table: int, words: Array, place: Array) -> Array:
        """Scaled embeddings plus positions (Vaswani et al. 2017, §3.4 and §3.5)."""
        name = self.architecture.tables[table]
        x = self.params[f"{name}.weight"][words].astype(find_type(self.params))
        x = self.tap(name, words, x) if self.architecture.tables.count(name) == 1 else x
        return x * self.architecture.width**0.5 + place.astype(x.dtype)

    def remember(self, name: str, x: Array) -> tuple[Array, Array]:
        """Keys and values (N, heads, S, d) of a memory (N, S, width)."""
        key, value = self.linear(f"{name}.key", x), self.linear(f"{name}.value", x)
        return split_heads(key, self.architecture.heads), split_heads(value, self.architecture.heads)

    def attend(self, name: str, x: Array, memory: tuple[Array, Array], allowed: Array) -> Array:
        """Attention of (N, T, width) to a memory where `allowed`, which broadcasts to (N, heads, T, S)."""
        query = split_heads(self.linear(f"{name}.query", x), self.architecture.heads)
        read = attention(query, *memory, allowed, lambda p: self.drop(f"{name}.probabilities", p))
        return self.linear(f"{name}.output", merge_heads(read))

    def feed_forward(self, name: str, x: Array) -> Array:
        """Two linear layers around a ReLU (Vaswani et al. 2017, eq. 2)."""
        inner = jax.nn.relu(self.linear(f"{name}.inner", x))
        return self.linear(f"{name}.outer", self.drop(f"{name}.inner", inner))

    def around(self, name: str, x: Array, body: Body) -> Array:
        """Return the residual connection around one sub-layer."""
        if self.architecture.norm == "pre":
            return x + self.drop(name, body(name, self.norm(f"{name}.norm", x)))
        return self.norm(f"{name}.norm", x + self.drop(name, body(name, x)))

    def norm(self, name: str, x: Array) -> Array:
        """A LayerNorm."""
        return layer_norm(self.params, name, x, eps=EPSILON)

    def encode(self, source: Array) -> Array:
        """Return the encoder's output (N, S, width)."""
        seen = _seen(source)
        x = self.drop("source", self.embed(0, source, self.positions(source.shape[1])))
        for own, feed_forward in self.architecture.stack("encoder"):
            x = self.around(own, x, lambda name, y: self.attend(name, y, self.remember(name, y), seen))
            x = self.around(feed_forward, x, self.feed_forward)
        return self.norm("encoder_norm", x) if self.architecture.norm == "pre" else x

    def decode(self, x: Array, read_own: Body, read_source: Body) -> Array:
        """Logits, from embedded words and the two ways of attending: to earlier words and to the source."""
        for own, source, feed_forward in self.architecture.stack("decoder"):
            x = self.around(own, x, read_own)
            x = self.around(source, x, read_source)
            x = self.around(feed_forward, x, self.feed_forward)
        x = self.norm("decoder_norm", x) if self.architecture.norm == "pre" else x
        output = self.architecture.tables[2]
        return self.linear(output, x) if output == "output" else x @ self.params[f"{output}.weight"].astype(x.dtype).T

    def positions(self, length: int) -> Array:
        """Sines and cosines of positions 0…length-1."""
        return jnp.asarray(encode_positions(length, self.architecture.width))


@dataclass(frozen=True)
class Transformer:
    """Sources and the translations so far to logits of the next words; the twin of its namesake in torch.py.

    Attributes:
        architecture: the network's sizes.
        smoothing: label smoothing ε.
        longest: most words of a generated translation.
    """

    architecture: Architecture
    smoothing: float
    longest: int

    def apply(
        self, params: Tree, buffers: Tree, carry: Tree, batch: Tree, *, train: bool, key: Array | None, tap: Tap
    ) -> tuple[Tree, Tree, Tree]:
        """In training, logits (N, T, vocabulary) and the targets; in evaluation, each sentence's loss."""
        target = batch["target"]
        net = Pass(self.architecture, params, tap, key if train else None, batch["index"])
        memory, seen = net.encode(batch["source"]), _seen(batch["source"])
        length = target.shape[1]
        earlier = jnp.tril(jnp.ones((length, length), bool))
        previous = jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=BOS)
        logits = net.decode(
            net.drop("target", net.embed(1, previous, net.positions(length))),
            lambda name, y: net.attend(name, y, net.remember(name, y), earlier),
            lambda name, y: net.attend(name, y, net.remember(name, memory), seen),
        )
        if train:
            smoothing = jnp.full_like(batch["weight"], self.smoothing)
            return {"logits": logits, "target": target, "smoothing": smoothing}, buffers, carry
        words = target != PAD
        # a logit of -∞ may leave the loss finite
        losses = jnp.where(jnp.isfinite(logits).all(2), -_picked(_log_softmax(logits), target), jnp.nan) * words
        outputs = {"loss": losses.sum(1), "words": words.sum(1), "weight": batch["weight"], "index": batch["index"]}
        return outputs, buffers, carry

    def loss(self, outputs: Tree, batch: Tree) -> tuple[Array, Array]:
        """Smoothed cross-entropy summed over words, and the number of words."""
        each, share = _log_softmax(outputs["logits"]), outputs["smoothing"][:, None]
        weight = batch["weight"][:, None] * (batch["target"] != PAD)
        picked = _picked(each, outputs["target"])
        return -(((1.0 - share) * picked + share * each.mean(-1)) * weight).sum(), weight.sum()

    def sample(self, outputs: Tree, key: Array, batch: Tree) -> Tree:
        """Return the outputs with words drawn from the model's own distribution, and no smoothing."""
        logits = outputs["logits"]
        place = batch["index"][:, None].astype(jnp.uint32) * jnp.uint32(logits.shape[1])
        draws = stream.uniform(jnp, key, "words", place + jnp.arange(logits.shape[1], dtype=jnp.uint32))
        drawn = draw_labels(logits, draws).astype(outputs["target"].dtype)
        return outputs | {"target": drawn, "smoothing": jnp.zeros_like(outputs["smoothing"])}

    def encode(self, params: Tree, batch: Tree) -> Tree:
        """Return the search's state before its first word: keys and values of every attention of the decoder."""
        net = Pass(self.architecture, params)
        memory, state = net.encode(batch["source"]), {"seen": _seen(batch["source"])}
        for own, source, _ in self.architecture.stack("decoder"):
            state[f"{source}.key"], state[f"{source}.value"] = net.remember(source, memory)
            like = state[f"{source}.key"]
            room = (*like.shape[:2], self.longest, like.shape[3])  # the same shape for every word
            state[f"{own}.key"], state[f"{own}.value"] = jnp.zeros(room, like.dtype), jnp.zeros(room, like.dtype)
        return state

    def decode_step(self, params: Tree, state: Tree, rows: Array, token: Array, position: Array) -> tuple[Array, Tree]:
        """Log-probabilities (R, vocabulary) of the next word after each row's token, and the new state."""
        net, state = Pass(self.architecture, params), {name: value[rows] for name, value in state.items()}
        written = jnp.arange(self.longest) <= position

        def own(name: str, y: Array) -> Array:
            for part, value in zip(("key", "value"), net.remember(name, y), strict=True):
                at = f"{name}.{part}"
                state[at] = lax.dynamic_update_slice_in_dim(state[at], value, position, 2)
            return net.attend(name, y, (state[f"{name}.key"], state[f"{name}.value"]), written)

        def source(name: str, y: Array) -> Array:
            return net.attend(name, y, (state[f"{name}.key"], state[f"{name}.value"]), state["seen"])

        place = lax.dynamic_slice_in_dim(net.positions(self.longest), position, 1)
        logits = net.decode(net.embed(1, token[:, None], place), own, source)
        return _log_softmax(logits[:, 0]), state


def _seen(source: Array) -> Array:
    return (source != PAD)[:, None, None, :]


def _log_softmax(logits: Array) -> Array:
    """In at least float32."""
    return jax.nn.log_softmax(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)))


def _picked(values: Array, words: Array) -> Array:
    return jnp.take_along_axis(values, words[..., None].astype(jnp.int32), 2)[..., 0]


def make(task: Translation) -> Transformer:
    """Make the task's model."""
    return Transformer(task.architecture, task.smoothing, task.longest)
