"""Models of published sizes, without memory for their weights."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Shapes = Mapping[str, Any]  # the description of each parameter and buffer


def find_parameters(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter."""
    return {name: spec.shape for name, spec in shapes.items() if spec.kind == "parameter"}


def count_parameters(shapes: Shapes) -> int:
    return sum(int(np.prod(shape)) for shape in find_parameters(shapes).values())


def check_torch(make: Callable[[], Any], shapes: Shapes) -> Any:
    """Check that a model has the described parameters, in their order, and return it."""
    import torch

    with torch.device("meta"):
        model = make()
    found = [(name, tuple(value.shape)) for name, value in model.named_parameters()]
    assert found == list(find_parameters(shapes).items())
    return model


def make_images(count: int, side: int) -> dict[str, np.ndarray]:
    """Return a batch of black images."""
    image, number = np.zeros((count, 3, side, side), np.float32), np.arange(count, dtype=np.int32)
    return {"image": image, "label": np.zeros_like(number), "weight": np.ones(count, np.float32), "index": number}


def trace_jax(model: Any, shapes: Shapes, batch: dict[str, Any], *, train: bool = True, key: Any = None) -> Any:
    """Return the outputs and buffers that a model makes of the described values and a batch, as shapes."""
    import jax

    apply = _make_apply(model, train, key)
    return jax.eval_shape(apply, *_make_values(shapes), batch)


def count_gradients(model: Any, shapes: Shapes, batch: dict[str, Any], *, key: Any = None) -> int:
    """Return how many numbers the gradient of a model's loss has."""
    import jax

    apply = _make_apply(model, True, key)
    loss = lambda params, buffers, batch: model.loss(apply(params, buffers, batch)[0], batch)[0]  # noqa: E731
    grads = jax.eval_shape(jax.grad(loss), *_make_values(shapes), batch)
    return sum(int(np.prod(value.shape)) for value in grads.values())


def _make_apply(model: Any, train: bool, key: Any) -> Callable[..., Any]:
    """Return a function of parameters, buffers and a batch."""
    keep = lambda name, x, y: y  # noqa: E731
    return lambda params, buffers, batch: model.apply(params, buffers, {}, batch, train=train, key=key, tap=keep)[:2]


def _make_values(shapes: Shapes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return parameters and buffers in float32."""
    import jax

    values = {name: jax.ShapeDtypeStruct(spec.shape, np.float32) for name, spec in shapes.items()}
    params = find_parameters(shapes)
    return {n: v for n, v in values.items() if n in params}, {n: v for n, v in values.items() if n not in params}
