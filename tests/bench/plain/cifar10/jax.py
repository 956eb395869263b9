"""A ResNet of four basic blocks, width 12, 10 classes; images NHWC, filters HWIO, as jax likes them."""

from typing import Any

import jax
from jax import Array

from ..resnet50.jax import Tree, arranged, cross_entropy, unit


def loss(params: Any, state: Any, batch: Tree) -> tuple[Array, Any]:
    new: Any = {}
    x = batch["image"].transpose(0, 2, 3, 1)
    x = jax.nn.relu(unit(params, "conv1", x, new, state))
    for stage, stride in ((1, 1), (2, 2), (3, 2), (4, 2)):
        at = f"layer{stage}.0"
        y = jax.nn.relu(unit(params, f"{at}.conv1", x, new, state, stride))
        y = unit(params, f"{at}.conv2", y, new, state)
        x = jax.nn.relu(y + (unit(params, f"{at}.downsample.0", x, new, state, stride) if stride > 1 else x))
    logits = x.mean((1, 2)) @ params["fc"]["weight"] + params["fc"]["bias"]
    return cross_entropy(logits, batch["label"]), new


def make(values: Tree) -> Any:
    return *arranged(values), loss
