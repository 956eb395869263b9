"""Protocols between an engine and an optimizer, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from suite.contract.reduce import Reduce


class Parcel(NamedTuple):
    """A stack of statistics that can be sent during the backward pass, as soon as its rows are complete.

    Attributes:
        rows: names of the statistics; each is of one layer.
        owners: the rank that owns each row.
        last: the parameter whose gradient is computed next after the last row.
    """

    rows: tuple[str, ...]
    owners: tuple[int, ...]
    last: str


class Plan:
    """An optimizer's work in each step; pure Python, shared by both backends. This plan contains no such work.

    `phase(step)` is a sorted tuple of words, part of a compiled step's key. The engine uses two words: `statistics`
    (observe and absorb the ordinary backward pass) and `sampled` (observe and absorb one more pass, with labels drawn
    from the model). `programs(step)` names programs that run before the update, on the state after this step's `absorb`
    and `collect`; in jax they run before the gradient if the optimizer has neither. They are compiled separately from
    the step.

    Attributes:
        warm_start: number of batches whose mean statistics `prepare` receives before the first step.
        together: whether all programs of a step are compiled as one, because every step that has programs has the same.
    """

    warm_start: int = 0
    together: bool = True

    def parcels(self, step: int) -> dict[str, Parcel]:
        """Return the stacks of statistics that `absorb` sends to owners in this step, by the names of these calls."""
        return {}

    def phase(self, step: int) -> tuple[str, ...]:
        """Return the words that apply to this step."""
        return ()

    def programs(self, step: int) -> tuple[str, ...]:
        """Return the names of the programs to run in this step, in order."""
        return ()


# Names that an optimizer may list in NEEDS (`optimizers/<name>/__init__.py`).
# Arguments at construction: `layers` {name: Layer}, `shapes` {parameter: shape}, `tables` (names of the embeddings),
# `world` (ranks), `samples` (size of the training split), `objective` (jax: an `Objective`),
# `model` (torch: the module).
CONSTRUCTION = ("layers", "shapes", "tables", "world", "samples", "objective", "model")
# Arguments of each update, see `Asked`.
UPDATE = ("evaluate", "reduce", "phase", "key", "context")
# A promise: each element is updated independently. A rank may then receive its rows of a table only, with a sparse
# gradient (torch: a sparse tensor, jax: `Rows`; the optimizer may convert either to a dense one).
PROMISED = ("rows",)
# A warning: the optimizer is another package's. The engine tries it before the first step, seeds what it draws, and
# evaluates where it says.
WARNED = ("outside",)
# Methods of the optimizer that the engine calls, see `TorchOptimizer` and `JaxOptimizer`.
OFFERED = ("observe", "absorb", "collect", "prepare", "program", "host", "forward_params", "reset", "facts")


class Objective(NamedTuple):
    """Loss of one rank's batch as a pure jax function, for optimizers that trace or differentiate it themselves.

    Attributes:
        value: (params, context, *, labels="given" | "sampled", tap=…) to (summed loss, (number of terms, new buffers,
            new carry)); `tap(name, x, y)` receives each layer's input and output, and its result replaces the output.
        context: shapes of the loss's inputs except the parameters: `batch` (not split into micro-batches), `buffers`,
            `patterns`, `carry` and `key`. `update` receives the arrays of each step.
    """

    value: Callable[..., Any]
    context: Mapping[str, Any]


class Rows(NamedTuple):
    """A jax gradient or update of some rows of a table: values (m, d) to add at ids (m,), which may recur."""

    ids: Any
    values: Any


class Asked(Protocol):
    """Arguments that the engine passes to torch's `step` or jax's `update`, if NEEDS names them.

    Attributes:
        phase: the plan's words for this step, without the two that the engine uses.
        key: (seed, step), for `suite.stream`.
        reduce: communication between ranks.
        context: this step's inputs of the `Objective` (jax only).
    """

    phase: tuple[str, ...]
    key: tuple[int, int]
    reduce: Reduce[Any]
    context: Mapping[str, Any]

    def evaluate(
        self,
        *params: Any,
        labels: str = "given",
        observe: Callable[..., Any] | None = None,
        per_term: bool = False,
    ) -> Any:
        """Compute (loss, gradients, statistics) of the step's batch again, at the current weights.

        Same random numbers; buffers do not change. The gradients are this rank's share: `reduce.mean` of the shares is
        the sum over all samples divided by their summed weight.

        Args:
            params: jax only: the parameters to evaluate at.
            labels: "given", or "sampled" from the model's own distribution.
            observe: makes the statistics; the optimizer's own `observe` if not given.
            per_term: divide the statistics' sums by the number of terms of the loss, such as words, not by the samples.
        """
        ...


class TorchOptimizer(Protocol):
    """A `torch.optim.Optimizer` with the further methods that its NEEDS names. The engine calls no others.

    In each step the engine calls, in this order: `host`, `forward_params` around the forward pass, `observe` for each
    layer, `collect`, `absorb`, `program` for each of `plan.programs(step)`, and `step`.
    """

    plan: Plan
    param_groups: list[dict[str, Any]]

    def step(self, closure: Callable[[], Any] | None = None, **asked: Any) -> Any:
        """Update the parameters from their gradients; `asked` is described by `Asked`."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """As in torch."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch."""
        ...

    def observe(self, taps: Mapping[tuple[str, int], tuple[Any, Any]], weight: Any) -> dict[str, Any]:
        """Return sums over samples of one layer's statistics; they add up over micro-batches.

        Args:
            taps: (input, output gradient) of each call of a layer, see `Layer`.
            weight: (n,) weights of the samples.
        """
        ...

    def absorb(self, statistics: Mapping[str, Any], *, reduce: Reduce[Any]) -> None:
        """Average this rank's statistics over ranks and add them to the optimizer's.

        Args:
            statistics: the sums of `observe`, divided by the samples' summed weight.
            reduce: communication between ranks.
        """
        ...

    def collect(self) -> None:
        """Add the step's gradient, averaged over ranks and clipped, to the optimizer's statistics."""
        ...

    def prepare(self, statistics: Mapping[str, Any], *, reduce: Reduce[Any]) -> None:
        """Initialise the statistics with their mean over `plan.warm_start` batches at the initial weights."""
        ...

    def program(self, name: str, *, reduce: Reduce[Any]) -> None:
        """Run one of `plan.programs(step)`."""
        ...

    def host(self, step: int) -> None:
        """Prepare a step on the host."""
        ...

    def drain(self) -> None:
        """Wait until no work is under way on the host; called where NEEDS names `host`."""
        ...

    def forward_params(self, key: tuple[int, int]) -> AbstractContextManager[Any]:
        """Return a context in which the parameters have the values for the forward pass."""
        ...

    def reset(self, moved: Mapping[Any, Any]) -> None:
        """Clear the state of blocks that have moved: {parameter (n, …): (n,) booleans}."""
        ...

    def facts(self) -> dict[str, float]:
        """Return numbers counted so far, for the result."""
        ...


class JaxOptimizer(Protocol):
    """An `optax.GradientTransformationExtraArgs` with the further functions that its NEEDS names.

    They are those of `TorchOptimizer`, as pure functions: each takes the state, and returns the next one.
    """

    plan: Plan

    def init(self, params: Any) -> Any:
        """As in optax."""
        ...

    def update(self, updates: Any, state: Any, params: Any = None, **asked: Any) -> tuple[Any, Any]:
        """Return the changes of the parameters and the next state; `asked` is described by `Asked`."""
        ...

    def observe(self, taps: Mapping[tuple[str, int], tuple[Any, Any]], weight: Any) -> dict[str, Any]:
        """Return sums over samples of all layers' statistics; they add up over micro-batches."""
        ...

    def absorb(self, statistics: Mapping[str, Any], state: Any, *, reduce: Reduce[Any]) -> Any:
        """Return the state after the statistics have been averaged over ranks and added."""
        ...

    def collect(self, grads: Any, state: Any, params: Any) -> Any:
        """Return the state after the step's averaged, clipped gradient has been added to the statistics."""
        ...

    def prepare(self, statistics: Mapping[str, Any], state: Any, *, reduce: Reduce[Any]) -> Any:
        """Return the state, initialised with these statistics."""
        ...

    def program(self, name: str, state: Any, *, reduce: Reduce[Any]) -> Any:
        """Return the state after one of `plan.programs(step)`."""
        ...

    def host(self, state: Any, step: int) -> Any:
        """Return the state prepared for a step; runs outside compiled code."""
        ...

    def drain(self) -> None:
        """Wait until no work is under way on the host; called where NEEDS names `host`."""
        ...

    def forward_params(self, params: Any, state: Any, key: Any) -> Any:
        """Return the weights for the forward pass."""
        ...

    def reset(self, state: Any, moved: Mapping[str, Any]) -> Any:
        """Return the state with zeros for blocks that have moved: {parameter: (n,) booleans}."""
        ...

    def facts(self, state: Any) -> dict[str, float]:
        """Return numbers counted so far, for the result."""
        ...
