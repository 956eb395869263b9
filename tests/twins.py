"""An optimizer with a refresh, by itself: either backend behind the same few names, in float64 by default."""

import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch

Tree = dict[str, np.ndarray]
COLLECTS = ("shampoo",)  # whose statistics of a step are taken before its refreshes


class Alone:
    """A reduction over one rank."""

    world, rank = 1, 0
    gather = staticmethod(lambda name, slices, owners, **how: slices)
    mine = staticmethod(lambda stack, owners: stack)


def draw(shapes: dict[str, tuple[int, ...]], seed: int) -> Tree:
    """By name, as jax sorts its dictionaries."""
    return {n: np.asarray(np.random.default_rng([seed, *n.encode()]).normal(size=s)) for n, s in shapes.items()}


def noisy(params: Tree, step: int) -> Tree:
    """A gradient that depends on where one is."""
    noise = draw({name: value.shape for name, value in params.items()}, 100 + step)
    return {name: noise[name] + value for name, value in params.items()}


class Torch:
    """Optimizer `name` in torch."""

    def __init__(self, name: str, params: Tree, kind: str = "float64", **hyper: Any):
        make = importlib.import_module(f"suite.optimizers.{name}.torch").make
        self.name = name
        self.named = {n: torch.nn.Parameter(torch.tensor(v, dtype=getattr(torch, kind))) for n, v in params.items()}
        self.optimizer = make(self.named.items(), **hyper)
        self.plan = self.optimizer.plan

    @property
    def state(self) -> Any:
        return self.optimizer.state[self.name]

    @property
    def params(self) -> Tree:
        return {name: parameter.detach().numpy().copy() for name, parameter in self.named.items()}

    def edit(self, **values: float) -> None:
        for group in self.optimizer.param_groups:
            group.update(values)

    def host(self, step: int) -> None:
        self.optimizer.host(step)

    def refresh(self, name: str, reduce: Any = Alone) -> None:
        self.optimizer.program(name, reduce=reduce)

    def place(self, stack: str, value: np.ndarray) -> None:
        """Put statistics into the state."""
        self.state["factor"][stack].copy_(torch.from_numpy(value))

    def count(self, steps: int) -> None:
        """Say how many updates there were."""
        self.state["steps"].fill_(steps)

    def collect(self, grads: Tree) -> None:
        """Take the gradient into the statistics, where that is not a part of `move`."""
        for name, parameter in self.named.items():
            parameter.grad = torch.as_tensor(grads[name], dtype=parameter.dtype)
        if self.name in COLLECTS:
            self.optimizer.collect()

    def move(self) -> None:
        """Update the parameters as the engine does."""
        self.optimizer.step(reduce=Alone)

    def update(self, grads: Tree) -> None:
        """A step without programs."""
        self.collect(grads)
        self.move()


class Jax:
    """Optimizer `name` in jax."""

    def __init__(self, name: str, params: Tree, kind: str = "float64", **hyper: Any):
        make = importlib.import_module(f"suite.optimizers.{name}.jax").make
        self.wide = kind == "float64"
        with jax.enable_x64(self.wide):
            self.tree = {name: jnp.asarray(value, kind) for name, value in params.items()}
            self.optimizer = make(shapes={name: value.shape for name, value in params.items()}, **hyper)
            self.state = self.optimizer.init(self.tree)
        self.plan = self.optimizer.plan
        self.program = jax.jit(lambda state, name: self.optimizer.program(name, state, reduce=Alone), static_argnums=1)
        self.compiled = jax.jit(functools.partial(self.optimizer.update, reduce=Alone))
        self.collects = jax.jit(self.optimizer.collect) if name in COLLECTS else lambda grads, state, params: state

    @property
    def params(self) -> Tree:
        return {name: np.asarray(value) for name, value in self.tree.items()}

    def edit(self, **values: float) -> None:
        with jax.enable_x64(self.wide):
            changed = {name: jnp.asarray(value, jnp.result_type(float)) for name, value in values.items()}
        self.state = self.state | {"hyper": self.state["hyper"] | changed}

    def host(self, step: int) -> None:
        with jax.enable_x64(self.wide):
            self.state = self.optimizer.host(self.state, step)

    def refresh(self, name: str) -> None:
        with jax.enable_x64(self.wide):
            self.state = self.program(self.state, name)

    def place(self, stack: str, value: np.ndarray) -> None:
        """Put statistics into the state."""
        with jax.enable_x64(self.wide):
            value = jnp.asarray(value, self.state["factor"][stack].dtype)
            self.state = self.state | {"factor": self.state["factor"] | {stack: value}}

    def count(self, steps: int) -> None:
        """Say how many updates there were."""
        self.state = self.state | {"steps": jnp.asarray(steps, self.state["steps"].dtype)}

    def collect(self, grads: Tree) -> None:
        """Take the gradient into the statistics, where that is not a part of `move`."""
        with jax.enable_x64(self.wide):
            self.grads = {name: jnp.asarray(grads[name], value.dtype) for name, value in self.tree.items()}
            self.state = self.collects(self.grads, self.state, self.tree)

    def move(self) -> None:
        """Update the parameters as the engine does."""
        with jax.enable_x64(self.wide):
            updates, self.state = self.compiled(self.grads, self.state, self.tree)
            self.tree = optax.apply_updates(self.tree, updates)

    def update(self, grads: Tree) -> None:
        """A step without programs."""
        self.collect(grads)
        self.move()
