"""K-FAC by itself, driven by given statistics: either backend behind the same few names, in float64 by default."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
import twins

from suite.contract import Layer
from suite.optimizers.kfac.jax import kfac
from suite.optimizers.kfac.torch import KFAC

Tree = dict[str, np.ndarray]
LINEAR = {"fc": Layer("linear", ("fc.weight", "fc.bias"))}
SHAPES = {"fc.weight": (2, 3), "fc.bias": (2,)}  # A is 4 by 4, G 2 by 2
EVERY_STEP = {"factor_interval": 1, "inverse_interval": 1}
HYPER: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.0, **EVERY_STEP}  # where a test gives no others


class Alone(twins.Alone):
    """A reduction over one rank."""

    exact = staticmethod(lambda values: values)
    to_owners = staticmethod(lambda name, stack, owners, symmetric: stack)


def factor(size: int, seed: int = 0) -> np.ndarray:
    """A positive definite matrix."""
    rows = np.random.default_rng([size, seed]).normal(size=(3 * size, size))
    return rows.T @ rows / len(rows)


def statistics(seed: int = 0) -> Tree:
    """Of the layer in LINEAR."""
    return {"fc/in": factor(4, seed), "fc/out": factor(2, seed)}


class Torch:
    """K-FAC in torch."""

    def __init__(self, kind: str = "float64", layers: Any = LINEAR, shapes: Any = SHAPES, **hyper: Any):
        self.kind = getattr(torch, kind)
        made = twins.draw(shapes, 0)
        self.named = {name: torch.nn.Parameter(torch.tensor(value, dtype=self.kind)) for name, value in made.items()}
        self.optimizer = KFAC(self.named.items(), layers=layers, **(HYPER | hyper))
        self.plan = self.optimizer.plan

    @property
    def state(self) -> Any:
        """Return what belongs to no single parameter, as tensors."""
        return self.optimizer.state["kfac"]

    @property
    def params(self) -> Tree:
        """A copy."""
        return {name: value.detach().numpy().copy() for name, value in self.named.items()}

    def facts(self) -> dict[str, int]:
        """Return the optimizer's counts."""
        return self.optimizer.facts()

    def inverse(self, side: str) -> np.ndarray:
        """A damped inverse."""
        key, row = self.plan.buckets.place[side]
        return np.asarray(self.state["inverse"][key][row])

    def prepare(self, found: Tree) -> None:
        """Begin with these statistics."""
        self.optimizer.prepare(self._given(found), reduce=Alone)

    def refresh(self, step: int, found: Tree, reduce: Any = Alone) -> None:
        """Prepare an update: take statistics in where some are due, then invert them."""
        self.optimizer.host(step)
        if self.plan.phase(step):
            wanted = {name: value for name, value in found.items() if name in self.plan.now(step)}
            self.optimizer.absorb(self._given(wanted), reduce=reduce)
        for name in self.plan.programs(step):
            self.optimizer.program(name, reduce=reduce)

    def update(self, grads: Tree) -> None:
        """Change the parameters."""
        for name, parameter in self.named.items():
            parameter.grad = torch.as_tensor(grads[name], dtype=self.kind)
        self.optimizer.step(reduce=Alone)

    def _given(self, found: Tree) -> dict[str, torch.Tensor]:
        return {name: torch.as_tensor(value, dtype=self.kind) for name, value in found.items()}


class Jax:
    """K-FAC in jax."""

    def __init__(self, kind: str = "float64", layers: Any = LINEAR, shapes: Any = SHAPES, **hyper: Any):
        self.kind = kind
        self.tree: Any
        self.optimizer: Any
        self.state: Any
        with self._mode():
            self.tree = {name: jnp.asarray(value, kind) for name, value in twins.draw(shapes, 0).items()}
            self.optimizer = kfac(layers=layers, shapes=shapes, **(HYPER | hyper))
            self.state = self.optimizer.init(self.tree)
        self.plan = self.optimizer.plan
        made = self.optimizer
        self.absorb = jax.jit(lambda state, found: made.absorb(found, state, reduce=Alone))
        self.program = jax.jit(lambda state, name: made.program(name, state, reduce=Alone), static_argnums=1)
        self.compiled = jax.jit(functools.partial(made.update, reduce=Alone))

    def _mode(self) -> Any:
        return jax.enable_x64(self.kind == "float64")

    @property
    def params(self) -> Tree:
        """A copy."""
        return {name: np.asarray(value) for name, value in self.tree.items()}

    def facts(self) -> dict[str, int]:
        """Return the optimizer's counts."""
        return self.optimizer.facts(self.state)

    def inverse(self, side: str) -> np.ndarray:
        """A damped inverse."""
        key, row = self.plan.buckets.place[side]
        return np.asarray(self.state["inverse"][key][row])

    def prepare(self, found: Tree) -> None:
        """Begin with these statistics."""
        with self._mode():
            self.state = self.optimizer.prepare(self._given(found), self.state, reduce=Alone)

    def refresh(self, step: int, found: Tree) -> None:
        """Prepare an update: take statistics in where some are due, then invert them."""
        with self._mode():
            self.state = self.optimizer.host(self.state, step)
            if self.plan.phase(step):
                self.state = self.absorb(self.state, self._given(found))
            for name in self.plan.programs(step):
                self.state = self.program(self.state, name)

    def update(self, grads: Tree) -> None:
        """Change the parameters."""
        with self._mode():
            updates, self.state = self.compiled(self._given(grads), self.state, self.tree)
            self.tree = optax.apply_updates(self.tree, updates)

    def _given(self, found: Tree) -> dict[str, jax.Array]:
        return {name: jnp.asarray(value, self.kind) for name, value in found.items()}


BOTH = {"torch": Torch, "jax": Jax}
