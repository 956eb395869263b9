"""Optimizers by themselves, without an engine: some updates of a few tensors, in float64 unless told otherwise."""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from suite.nodes import load_settings

SHAPES = {"matrix": (4, 3), "filter": (2, 3, 3, 2), "bias": (5,), "scale": ()}
STEPS = 10
BACKENDS = ("torch", "jax")
Tree = dict[str, Any]
Gradient = Callable[[Tree, int], Tree]


def draw(seed: int, shapes: dict[str, tuple[int, ...]] | None = None) -> Tree:
    """By name, as jax sorts its dictionaries."""
    drawn = {name: np.random.default_rng([seed, *name.encode()]) for name in shapes or SHAPES}
    return {name: np.asarray(drawn[name].normal(size=shape)) for name, shape in (shapes or SHAPES).items()}


def pulled(params: Tree, step: int) -> Tree:
    """Noise, and a pull that depends on where one is."""
    noise = draw(100 + step, {name: np.shape(value) for name, value in params.items()})
    return {name: noise[name] + value for name, value in params.items()}


def chosen(name: str, values: Tree) -> Any:
    """Return the settings of one of the suite's optimizers: these values, and the defaults of the others."""
    declared = load_settings(f"suite.optimizers.{name}")
    assert declared is not None
    return declared.given(values)


def specified(
    name: str, gradient: Gradient = pulled, edit: Tree | None = None, *, steps: int = STEPS, **hyper: Any
) -> Tree:
    """Parameters by the reference; `edit` replaces hyper-parameters halfway."""
    reference = importlib.import_module(f"suite.optimizers.{name}.reference")
    params, state = draw(0), reference.init(draw(0))
    for step in range(steps):
        hyper |= edit or {} if step == steps // 2 else {}
        params, state = reference.update(params, gradient(params, step), state, chosen(name, hyper), step=step)
    return params


def in_torch(
    make: Callable[[Tree], Any],
    gradient: Gradient = pulled,
    edit: Tree | None = None,
    *,
    steps: int = STEPS,
    start: Tree | None = None,
    kind: str = "float64",
) -> Tree:
    """Parameters by what `make` returns for a dictionary of them."""
    import torch

    dtype = getattr(torch, kind)
    begin = start or draw(0)
    params = {name: torch.nn.Parameter(torch.tensor(value, dtype=dtype)) for name, value in begin.items()}
    optimizer = make(params)
    for step in range(steps):
        for group in optimizer.param_groups:
            group.update(edit or {} if step == steps // 2 else {})
        for name, value in gradient({n: p.detach().numpy() for n, p in params.items()}, step).items():
            params[name].grad = torch.as_tensor(value, dtype=dtype)
        optimizer.step()
    return {name: parameter.detach().numpy() for name, parameter in params.items()}


def in_jax(
    make: Callable[[], Any],
    gradient: Gradient = pulled,
    edit: Tree | None = None,
    *,
    steps: int = STEPS,
    start: Tree | None = None,
    kind: str = "float64",
) -> Tree:
    """Parameters by the optax transformation that `make` returns."""
    import jax
    import jax.numpy as jnp
    import optax

    with jax.enable_x64(kind == "float64"):
        optimizer, params = make(), {name: jnp.asarray(value, kind) for name, value in (start or draw(0)).items()}
        state, update = optimizer.init(params), jax.jit(optimizer.update)
        for step in range(steps):
            if edit and step == steps // 2:
                state = state | {"hyper": state["hyper"] | {n: jnp.asarray(v, kind) for n, v in edit.items()}}
            at = gradient({name: np.asarray(value) for name, value in params.items()}, step)
            grads = {name: jnp.asarray(value, kind) for name, value in at.items()}
            updates, state = update(grads, state, params)
            params = optax.apply_updates(params, updates)
        return {name: np.asarray(value) for name, value in params.items()}


def decaying(params: Tree, decay: float) -> list[Tree]:
    """Two groups of parameters, as for an optimizer of torch's: matrices and filters, which decay, and the others."""
    decayed = [value for value in params.values() if value.ndim > 1]
    others = [value for value in params.values() if value.ndim < 2]
    return [{"params": decayed, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


def train(backend: str, name: str, *arguments: Any, hyper: Tree, **options: Any) -> Tree:
    """Parameters by one of the suite's optimizers in one backend."""
    make = importlib.import_module(f"suite.optimizers.{name}.{backend}").make
    if backend == "torch":
        return in_torch(lambda params: make(params.items(), **hyper), *arguments, **options)
    return in_jax(lambda: make(**hyper), *arguments, **options)


def gap(one: Tree, other: Tree) -> float:
    """Largest absolute difference over everything."""
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)
