"""Unmodified functions on which partitioning could go wrong, each with parameters and a batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from small import SMALL_BATCHES, SMALL_TRANSFORMER

from suite import load
from suite.launch.job import make_task
from suite.settings import configure

RESNET50 = ["data=shapes", "width=4", "bn_group=2", "image_size=32", *SMALL_BATCHES]
BATCH, LENGTH, WIDTH, WORDS = 8, 6, 8, 20


@dataclass(frozen=True)
class Case:
    """A function with its parameters and the inputs of one step."""

    function: Callable[..., Array]
    params: Any
    inputs: tuple[Any, ...]


class Draw:
    """Random arrays, all from one seed."""

    def __init__(self, seed: int = 0):
        self.generator = np.random.default_rng(seed)

    def __call__(self, *shape: int, scale: float = 0.3) -> np.ndarray:
        return (scale * self.generator.standard_normal(shape)).astype(jnp.zeros(()).dtype)

    def ids(self, *shape: int) -> np.ndarray:
        return self.generator.integers(0, WORDS, shape).astype(np.int32)


def cross_entropy(logits: Array, targets: Array) -> Array:
    """Mean over all positions."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1).mean()


def swapped(draw: Draw) -> Case:
    """Two inputs of the same shape, read in the other order than they are passed."""

    def function(params: Any, first: Array, second: Array) -> Array:
        hidden = jnp.tanh(second @ params["a"])
        hidden = jnp.tanh((hidden * 2 + first) @ params["b"])
        return ((hidden - second) ** 2).mean()

    params = {"a": draw(WIDTH, WIDTH), "b": draw(WIDTH, WIDTH)}
    return Case(function, params, (draw(BATCH, WIDTH, scale=1.0), draw(BATCH, WIDTH, scale=1.0)))


def tied(draw: Draw) -> Case:
    """Make a model whose embedding is the head's weight, too, and is used once between."""

    def function(params: Any, ids: Array, targets: Array) -> Array:
        hidden = params["embed"][ids]
        hidden = jnp.tanh(hidden @ params["first"])
        hidden = hidden + jax.nn.softmax(hidden @ params["embed"].T) @ params["embed"]
        hidden = jnp.tanh(hidden @ params["second"])
        return cross_entropy(hidden @ params["embed"].T, targets)

    params = {"embed": draw(WORDS, WIDTH), "first": draw(WIDTH, WIDTH), "second": draw(WIDTH, WIDTH)}
    return Case(function, params, (draw.ids(BATCH, LENGTH), draw.ids(BATCH, LENGTH)))


def skipping(draw: Draw) -> Case:
    """A float value, an integer one and a mask from the start are used at the end; all stages read an input."""

    def function(params: Any, x: Array) -> Array:
        start = jnp.tanh(x @ params["layers"][0])
        order = jnp.argsort(x[:, :WIDTH], axis=1)
        mask = start > 0
        hidden = start
        for weight in params["layers"][1:]:
            hidden = jnp.tanh(hidden @ weight + 0.1 * x)
        hidden = jnp.where(mask, hidden, 0.5 * hidden) * start
        return (jnp.take_along_axis(hidden, order, 1) * jnp.arange(WIDTH)).mean()

    return Case(function, {"layers": [draw(WIDTH, WIDTH) for _ in range(6)]}, (draw(BATCH, WIDTH, scale=1.0),))


def forked(draw: Draw) -> Case:
    """Two branches of different lengths that join again, twice."""

    def function(params: Any, batch: dict[str, Array]) -> Array:
        hidden = batch["x"]
        for block in params:
            left = jnp.tanh(hidden @ block["left"])
            right = jax.nn.relu(hidden @ block["right"])
            hidden = left * jnp.tanh(right @ block["more"]) + hidden
        return ((hidden - batch["y"]) ** 2).sum(1).mean()

    params = [{name: draw(WIDTH, WIDTH) for name in ("left", "right", "more")} for _ in range(2)]
    return Case(function, params, ({"y": draw(BATCH, WIDTH), "x": draw(BATCH, WIDTH)},))


def dropout(draw: Draw) -> Case:
    """Keys are an input, split in the function and used in all layers; a fixed key draws a constant."""

    def function(params: Any, key: Array, x: Array) -> Array:
        hidden = x + jax.random.normal(jax.random.key(3), x.shape[1:], x.dtype)
        keys = jax.random.split(key, len(params))
        for weight, one in zip(params, keys, strict=True):
            hidden = jnp.tanh(hidden @ weight)
            hidden = jnp.where(jax.random.bernoulli(one, 0.8, hidden.shape), hidden / 0.8, 0)
        return (hidden**2).mean()

    return Case(function, [draw(WIDTH, WIDTH) for _ in range(4)], (jax.random.key(7), draw(BATCH, WIDTH, scale=1.0)))


def unread(draw: Draw) -> Case:
    """A parameter that nothing reads, an integer parameter, and arrays in the function."""
    table, shift = jnp.asarray(draw(LENGTH, WIDTH)), draw(WIDTH)

    def function(params: Any, ids: Array) -> Array:
        hidden = params["embed"][ids + params["offset"]] + table
        hidden = jnp.tanh(hidden @ params["first"]) + shift
        return (jnp.tanh(hidden @ params["second"]) ** 2).mean()

    params = {"embed": draw(WORDS + 1, WIDTH), "first": draw(WIDTH, WIDTH), "second": draw(WIDTH, WIDTH)}
    params |= {"offset": np.int32(1), "nowhere": draw(3)}
    return Case(function, params, (draw.ids(BATCH, LENGTH),))


def running(draw: Draw) -> Case:
    """Two layers that subtract a running mean; returns the loss's sum, its weight and the new means."""

    def function(params: Any, x: Array) -> Any:
        new: dict[str, Any] = {}
        for name, layer in (("a", "first"), ("b", "second")):
            hidden, mean = jnp.tanh(x @ params[name]), params[layer]["mean"]
            new[layer] = {"mean": 0.9 * mean + 0.1 * hidden.mean(0)}
            x = hidden - mean
        return (x**2).sum(), jnp.ones_like(x[:, 0]).sum(), new

    params = {"a": draw(WIDTH, WIDTH), "b": draw(WIDTH, WIDTH)}
    params |= {layer: {"mean": draw(WIDTH)} for layer in ("first", "second")}
    return Case(function, params, (draw(BATCH, WIDTH, scale=1.0),))


def residual(draw: Draw) -> Case:
    """A small ResNet with batch normalization."""

    def conv(x: Array, kernel: Array, stride: int = 1) -> Array:
        return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def norm(x: Array, scale: Array, shift: Array) -> Array:
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + shift

    def function(params: Any, images: Array, labels: Array) -> Array:
        x = conv(images, params["stem"])
        for block in params["blocks"]:
            y = jax.nn.relu(norm(conv(x, block["a"]), block["scale"], block["shift"]))
            x = jax.nn.relu(x + conv(y, block["b"]))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return cross_entropy(x.mean((1, 2)) @ params["head"], labels)

    blocks = [{"a": draw(3, 3, 4, 4), "b": draw(3, 3, 4, 4), "scale": 1 + draw(4), "shift": draw(4)} for _ in range(3)]
    params = {"stem": draw(3, 3, 3, 4), "blocks": blocks, "head": draw(4, WORDS)}
    return Case(function, params, (draw(BATCH, 6, 6, 3, scale=1.0), draw.ids(BATCH)))


def bert(draw: Draw, layers: int = 6) -> Case:
    """A BERT with tied embedding and a mask of padding, written plainly."""
    heads = 2

    def norm(x: Array, scale: Array, shift: Array) -> Array:
        mean = x.mean(-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(-1, keepdims=True)
        return (x - mean) / jnp.sqrt(variance + 1e-5) * scale + shift

    def function(params: Any, ids: Array, mask: Array, targets: Array) -> Array:
        x = params["embed"][ids] + params["positions"]
        bias = jnp.where(mask[:, None, None, :] > 0, 0.0, -1e9)

        def split(x: Array) -> Array:
            return x.reshape(*x.shape[:2], heads, WIDTH // heads).transpose(0, 2, 1, 3)

        for layer in params["layers"]:
            query, key, value = (split(x @ layer[name]) for name in ("query", "key", "value"))
            weights = jax.nn.softmax(query @ key.swapaxes(-1, -2) / np.sqrt(WIDTH // heads) + bias)
            mixed = (weights @ value).transpose(0, 2, 1, 3).reshape(x.shape)
            x = norm(x + mixed @ layer["out"], layer["scale1"], layer["shift1"])
            x = norm(x + jax.nn.gelu(x @ layer["up"]) @ layer["down"], layer["scale2"], layer["shift2"])
        return cross_entropy(x @ params["embed"].T, targets)

    def layer() -> dict[str, np.ndarray]:
        square = {name: draw(WIDTH, WIDTH) for name in ("query", "key", "value", "out")}
        wide = {"up": draw(WIDTH, 4 * WIDTH), "down": draw(4 * WIDTH, WIDTH)}
        return square | wide | {f"{name}{n}": draw(WIDTH) for name in ("scale", "shift") for n in (1, 2)}

    params = {
        "embed": draw(WORDS, WIDTH),
        "positions": draw(LENGTH, WIDTH),
        "layers": [layer() for _ in range(layers)],
    }
    mask = (draw(BATCH, LENGTH) > -0.4).astype(np.int32)
    return Case(function, params, (draw.ids(BATCH, LENGTH), mask, draw.ids(BATCH, LENGTH)))


def of_suite(name: str, options: list[str]) -> Case:
    """A task's own model with its loss, the key (seed, step) of its dropout, and a batch.

    BatchNorm's running statistics are not part of the loss.
    """
    config = configure.resolve([f"+task={name}", *(f"task.{option}" for option in options)])
    task = make_task(config)
    model: Any = load.load_half(config.task.module, "jax").make(task)
    shapes = task.shapes()
    arrays = {key: task.init(0, key) for key in shapes}
    params = {key: value for key, value in arrays.items() if shapes[key].kind == "parameter"}
    buffers = {key: value for key, value in arrays.items() if key not in params}

    def function(params: Any, key: Array, batch: dict[str, Array]) -> Array:
        outputs, _, _ = model.apply(params, buffers, {}, batch, train=True, key=key, tap=lambda name, x, y: y)
        return model.loss(outputs, batch)[0]

    return Case(function, params, (np.array([7, 0], np.uint32), task.batch("train", 0, 0, 0, 1)))


LARGE = {  # each takes seconds to trace
    "resnet50": lambda: of_suite("resnet50", RESNET50),
    "transformer": lambda: of_suite("transformer", [*SMALL_TRANSFORMER, "dropout=0.1"]),
}
CASES = {made.__name__: made for made in (swapped, tied, skipping, forked, dropout, unread, residual, bert)}
