"""Protocols of a task's model in each framework. `tasks/<name>/torch.py` and `jax.py` end in `make(task) -> model`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

Tree = dict[str, Any]  # arrays by name


class Model(Protocol):
    """Functions that models of both frameworks offer. The arrays are the framework's own."""

    def loss(self, outputs: Tree, batch: Tree) -> tuple[Any, Any]:
        """Return (summed loss, number of terms), both scalars; samples of weight 0 add nothing to either."""
        ...

    def sample(self, outputs: Tree, key: Any, batch: Tree) -> Tree:
        """Return outputs whose targets are drawn from the model's distribution; `key` is (seed, step)."""
        ...

    def lookups(self, batch: Tree) -> Mapping[str, Any]:
        """Return the rows that a batch reads of each table with `placement="rows"`: {parameter: ids (n, …)}.

        Only models with such tables offer it.
        """
        ...


class TorchModel(Model, Protocol):
    """A `torch.nn.Module` of plain layers."""

    def __call__(self, batch: Tree, carry: Tree | None = None, key: tuple[int, int] | None = None) -> tuple[Tree, Tree]:
        """Return (outputs, next carry). Training updates the buffers in place; evaluation passes no key."""
        ...


class JaxModel(Model, Protocol):
    """Pure functions of parameters by name."""

    def apply(
        self,
        params: Tree,
        buffers: Tree,
        carry: Tree,
        batch: Tree,
        *,
        train: bool,
        key: Any,
        tap: Callable[[str, Any, Any], Any],
    ) -> tuple[Tree, Tree, Tree]:
        """Return (outputs, next buffers, next carry).

        Each layer passes its name, input and output to `tap`, and uses what `tap` returns as its output.
        """
        ...

    def encode(self, params: Tree, batch: Tree) -> Any:
        """Return the state from which sequences are generated; only models of tasks that generate offer it."""
        ...

    def decode_step(self, params: Tree, state: Any, rows: Any, token: Any, position: Any) -> tuple[Any, Any]:
        """(log-probabilities (R, words), next state) of the next token; see `Generates.generate`."""
        ...
