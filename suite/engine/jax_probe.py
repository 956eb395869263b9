"""Tries an optimizer of another package on small parameters, before a run makes its first step with it."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from suite.comm.transport.jax import AXIS
from suite.contract import UserError
from suite.engine import jax_snapshot
from suite.engine.jax_device import Layout
from suite.engine.jax_step import apply_update
from suite.engine.probing import AFTER, BEFORE, FACTORS, choose_shapes, describe_error, draw_normal

Tree = dict[str, Any]


class Probe:
    """Tries an optimizer.

    Args:
        name: of the optimizer, for messages.
        make: makes it.
        params: of the run, by name.
        device: one of this process.
        varies: whether the run's schedule changes the learning rate.
    """

    def __init__(self, name: str, make: Callable[[], Any], params: Mapping[str, Array], device: Any, *, varies: bool):
        self.name, self.optimizer, self.varies, self._make = name, make(), varies, make
        self.shapes = choose_shapes(value.ndim for value in params.values())
        self.layout, self.kind = Layout(Mesh(np.array([[device]]), AXIS), ()), jnp.result_type(float)
        self._init, self._step = jax.jit(self.optimizer.init), jax.jit(self._make_step)
        self._evaluated = jax.jit(self.optimizer.evaluated_params)

    def evaluated(self, run: Tree) -> Tree:
        """Return a run's parameters to evaluate."""
        return self._evaluated(run["params"], run["opt"])

    def check(self) -> float:
        """Make some steps, save, load into a new state, and compare the next steps.

        Returns:
            The seconds that this took, nearly all of them to compile.

        Raises:
            UserError: a run would stop, or train otherwise than the package says; the message says why.
        """
        began = time.perf_counter()
        try:
            start = self._begin()
            one = self._advance(start, range(BEFORE))
            self.evaluated(one)
        except Exception as error:
            raise self._refuse(f"fails on small parameters, {describe_error(error)}") from error
        if _list_types(one["opt"]) != _list_types(start["opt"]):
            raise self._refuse("a step changes the shapes or types of its state, which a compiled step cannot take")
        if _equal(one, start):
            raise self._refuse(f"{BEFORE} steps from gradients alone move nothing")
        try:
            two = self._copy(one)
        except Exception as error:
            raise self._refuse(f"its state cannot be saved and loaded, {describe_error(error)}") from error
        rest = range(BEFORE, BEFORE + AFTER)
        end, step = self._advance(one, rest), self._step
        # as a resumed run, which traces anew: jax would not trace the same method again
        self.optimizer, self._step = self._make(), jax.jit(lambda *given: self._make_step(*given))
        if not _equal(self._advance(two, rest), end):
            raise self._refuse(
                "continues otherwise after its state is loaded, or draws random numbers while it is traced"
            )
        self._step = step
        # in the first steps, because a schedule of the optimizer's own may have ended at 0 after them
        if self.varies and _equal(self._advance(self._advance(start, range(1)), range(1, BEFORE), 0.5), one):
            raise self._refuse(
                "does not read the learning rate after its first step, so it cannot follow this schedule; "
                "set schedule.shape=constant schedule.warmup=0"
            )
        return time.perf_counter() - began

    def _begin(self) -> Tree:
        params = self.layout.place({name: self._draw(name, 0) for name in self.shapes})
        state = self.layout.place(self._init(params))
        self.lr = float(state["hyper"]["lr"]) or 1e-3
        return {"params": params, "opt": state}

    def _draw(self, name: str, step: int) -> np.ndarray:
        return draw_normal(name, step, self.shapes[name]).astype(self.kind)

    def _advance(self, run: Tree, steps: range, factor: float = 1.0) -> Tree:
        for step in steps:
            noise = {name: self._draw(name, step + 1) for name in self.shapes}
            run = self._step(run, noise, np.asarray(factor * self.lr * FACTORS[step % len(FACTORS)], self.kind))
        return run

    def _make_step(self, run: Tree, noise: Tree, lr: Array) -> Tree:
        """Make one step, as the engine does; the loss is Σ (w - noise)² / 2."""
        grads = {name: value - noise[name] for name, value in run["params"].items()}
        state = run["opt"] | {"hyper": run["opt"]["hyper"] | {"lr": lr}}
        updates, state = self.optimizer.update(grads, state, run["params"])
        return {"params": {n: apply_update(v, updates[n]) for n, v in run["params"].items()}, "opt": state}

    def _copy(self, run: Tree) -> Tree:
        """Return a new state that has loaded the other's from the bytes of a file."""
        from safetensors.numpy import load, save

        arrays, _ = jax_snapshot.list_arrays(run, self.layout, (), replicated=True)
        return jax_snapshot.replace_arrays(self._begin(), self.layout, load(save(arrays)))

    def _refuse(self, words: str) -> UserError:
        return UserError(f"optimizer={self.name}: {words}")


def _equal(one: Tree, other: Tree) -> bool:
    pairs = zip(one["params"].values(), other["params"].values(), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def _list_types(state: Any) -> list[tuple[str, tuple[int, ...], Any]]:
    return [(jax.tree_util.keystr(path), leaf.shape, leaf.dtype) for path, leaf in jax.tree.leaves_with_path(state)]
