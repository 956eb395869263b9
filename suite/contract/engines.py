"""Protocols of an engine, for the training loop, the policies and the launcher. Both backends implement it alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    NotRequired,
    Protocol,
    SupportsFloat,
    TypeAlias,
    TypedDict,
    TypeVar,
    runtime_checkable,
)

from suite.contract.optimizers import Plan

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")
Batch: TypeAlias = "dict[str, np.ndarray]"  # by name, as `Task.batch` makes them
Loss = SupportsFloat  # a number on the engine's device, which may not be computed yet


class Skeleton(TypedDict):
    """JSON of a snapshot; that of a checkpoint has only the tree."""

    tree: Any  # the state, with names in the place of arrays
    own: NotRequired[dict[str, str]]  # by name, in words, the kind of each array that differs between ranks
    rank: NotRequired[dict[str, int]]  # by name, the rank of each array that one rank alone has


Snapshot: TypeAlias = "tuple[dict[str, np.ndarray], Skeleton]"  # arrays by name, and the rest


class Ranks(Protocol):
    """Agreement of the processes of a run. Every process makes the same calls in the same order."""

    def broadcast(self, value: T) -> T:
        """Broadcast process 0's value, which `suite.messages` can encode."""
        ...

    def gather(self, value: T) -> list[T]:
        """Gather every process's value, which `suite.messages` can encode, in the order of the processes."""
        ...

    def slowest(self, seconds: float) -> float:
        """Return the largest value over processes."""
        ...

    def agree(self, signal: str | None) -> str | None:
        """Return a signal that any process has received; None if there is none. All processes return the same."""
        ...


@dataclass(frozen=True)
class Group:
    """Ranks that average the same gradients.

    Attributes:
        names: of the parameters.
        ranks: ascending.
    """

    names: tuple[str, ...]
    ranks: tuple[int, ...]


@runtime_checkable
class Pins(Protocol):
    """An engine that copies batches to its device faster from other memory."""

    def pin_batch(self, batch: Batch) -> Batch:
        """Return the batch in this memory; threads may call it at the same time."""
        ...


class Engine(Protocol):
    """A model, its optimizer and their communication, on this process's devices.

    Attributes:
        share: (rank, world) of this process's share of a batch.
        local_ranks: the ranks of this process's devices.
        ranks: communication between processes outside training steps.
        plan: the optimizer's schedule of work.
        kinds: kind of layer of each replicated parameter, by name.
        takes_bytes: whether it normalises the images of `SendsBytes` on its device.
    """

    share: tuple[int, int]
    local_ranks: tuple[int, ...]
    plan: Plan
    kinds: Mapping[str, str]
    takes_bytes: bool

    @property
    def groups(self) -> Sequence[Group]:
        """Who averages which gradients; the groups do so at the same time."""
        ...

    @property
    def ranks(self) -> Ranks:
        """Communication between processes outside training steps."""
        ...

    def warm(self, batch: Batch, steps: range, hyper: Mapping[str, float]) -> None:
        """Compile or run once what these steps need, so that no step pays for first calls."""
        ...

    def prepare(self, batches: Iterable[Batch]) -> None:
        """Initialise the optimizer's statistics with their mean over batches at the current weights."""
        ...

    def step(self, step: int, batch: Batch, hyper: Mapping[str, float]) -> Loss:
        """Make update number `step` (from 0) and return its mean loss."""
        ...

    def losses(self, pending: list[Loss]) -> list[float]:
        """Copy losses that `step` returned to the host; waits for the device."""
        ...

    def evaluate(self, batches: Iterable[Batch], generate: Callable[..., Batch] | None = None) -> Iterator[Batch]:
        """Yield the model's outputs in evaluation mode for each batch, gathered over all ranks.

        Args:
            batches: this process's share of each.
            generate: `Generates.generate`; its result is added to the outputs.

        Raises:
            RanksDiffer: the ranks hold different weights.
        """
        ...

    def compare(self) -> None:
        """Check that all ranks hold the same weights and have received what others sent.

        Raises:
            RanksDiffer: naming the ranks that do not.
        """
        ...

    def synchronize(self) -> None:
        """Wait until the device and the optimizer's work on the host are done."""
        ...

    def weights(self) -> Mapping[str, np.ndarray | Iterator[np.ndarray]]:
        """Return parameters, buffers and patterns by name, as NumPy arrays. All ranks call it.

        A table split by rows is an iterator over arrays: on process 0 the ranks' rows, one rank at a time; on other
        processes nothing. All processes exhaust these iterators, in the order of the names.
        """
        ...

    def snapshot(self, *, replicated: bool = True) -> Snapshot:
        """Return this process's state: NumPy arrays by name, and a JSON skeleton. All ranks call it.

        Args:
            replicated: whether to include the arrays that are equal on all ranks.

        Raises:
            RanksDiffer: the ranks hold different weights.
        """
        ...

    def restore(self, arrays: dict[str, np.ndarray], skeleton: Skeleton) -> None:
        """Restore a snapshot of this process; nothing is sent."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return sizes, device, memory, bytes and compile time, for the log and the result."""
        ...

    def use(self, mode: str | Mapping[str, str]) -> None:
        """Send gradients in this communication mode from now on: one for all, or one for each kind of layer."""
        ...

    def exchange(self, kind: str) -> None:
        """Average arrays of the size of all gradients of one kind of layer, and discard the result."""
        ...

    def code(self, kind: str) -> None:
        """Encode and decode arrays of the size of all gradients of one kind of layer; nothing is sent."""
        ...
