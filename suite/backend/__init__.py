"""The two engines; nothing else in `suite/` imports a framework.

Each offers an `Engine` with `warm`, `prepare`, `step`, `losses`, `evaluate`, `synchronize`, `snapshot`, `restore`,
`facts` and `ranks`; and for policies `use`, `exchange` and `code`. What concerns its processes alone is in `ranks/`.
"""

import math
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from suite.contract import Counts, Sparse, Task, UserError

LAST = 2**32 - 1  # keys are made of 32-bit words


class RanksDiffer(RuntimeError):
    """Ranks do not hold the same weights any more."""


def digest(arrays: Iterable[np.ndarray], so_far: int = 0) -> int:
    """A checksum of some arrays' bytes, one after another."""
    for array in arrays:
        so_far = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, so_far)
    return so_far


def compare(digests: Sequence[int]) -> None:
    """Refuse to go on where ranks hold different weights, though all computed them from the same means.

    Args:
        digests: of every rank's weights and buffers, in rank order; a table that lies by rows is left out.

    Raises:
        RanksDiffer: naming the ranks that differ from more than half of all; where no weights are held by so many, what
            each holds, because the wrong ones cannot be told from the right ones.
    """
    held: dict[int, list[int]] = {}
    for rank, value in enumerate(digests):
        held.setdefault(value, []).append(rank)
    if len(held) == 1:
        return
    most, world = max(held, key=lambda value: len(held[value])), len(digests)
    cause = "a byte changed on its way or in memory, or a machine computes otherwise"
    if 2 * len(held[most]) > world:
        wrong = ", ".join(str(rank) for rank, value in enumerate(digests) if value != most)
        raise RanksDiffer(f"rank {wrong} of {world}: holds other weights than most; {cause}")
    each = "; ".join(f"{value:08x} on rank {', '.join(map(str, ranks))}" for value, ranks in held.items())
    raise RanksDiffer(f"{world} ranks hold different weights ({each}), which are right cannot be told; {cause}")


def parameters(task: Task) -> int:
    """How many numbers are trained, over all devices."""
    return sum(math.prod(spec.shape) for spec in task.shapes().values() if spec.kind == "parameter")


def flops(task: Task) -> float | None:
    """Operations of one sample, forward and backward; None where the task does not count them."""
    return task.flops() if isinstance(task, Counts) else None


def tables(task: Task, needs: tuple[str, ...], optimizer: Mapping[str, Any]) -> list[str]:
    """The parameters that are placed by rows.

    Raises:
        UserError: where the optimizer does not update each element by itself.
    """
    found = [name for name, spec in task.shapes().items() if spec.placement == "rows"]
    if found and "rows" not in needs:
        raise UserError(
            f"optimizer={optimizer.get('name', optimizer['module'])}: cannot update a table by rows; "
            "type task.placement=replicated, or optimizer=sgd"
        )
    return found


def embeddings(task: Task) -> list[str]:
    """The parameters whose rows are looked up, whether or not they are used in other places too."""
    layers = (layer.parameters for layer in task.layers().values() if layer.kind == "embedding")
    known = {name for parameters in layers for name in parameters}
    return [name for name, spec in task.shapes().items() if spec.table or name in known]


def sparse(task: Task, needs: tuple[str, ...], optimizer: Mapping[str, Any]) -> Sparse | None:
    """The task again where some of its matrices are stored as blocks.

    Raises:
        UserError: where the optimizer cannot forget what it knew of a block that has moved.
    """
    if not isinstance(task, Sparse) or not task.matrices():
        return None
    if "reset" not in needs:
        raise UserError(
            f"optimizer={optimizer.get('name', optimizer['module'])}: looks at whole matrices; of a sparse one only "
            "blocks are stored, which may move; type task.sparsity=dense, or optimizer=adamw, or optimizer=sgd"
        )
    return task


def moved(
    task: Sparse,
    key: tuple[int, int],
    weights: Mapping[str, np.ndarray],
    patterns: Mapping[str, np.ndarray],
    gradients: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Move blocks, the same on every rank: the new patterns, and by weight which blocks moved.

    Args:
        task: whose blocks they are.
        key: (seed, step).
        weights: by name of the matrix, (n, b, b).
        patterns: the patterns and places visited, by their own names.
        gradients: of whole matrices, by name of the matrix; {} where none are asked for.
    """
    new, which = dict(patterns), {}
    for name, weight in weights.items():
        pattern, mask = task.move(*key, name, weight, patterns[f"{name}.pattern"], gradients.get(name))
        visited = patterns[f"{name}.visited"].copy()
        visited[pattern] = 1
        new[f"{name}.pattern"], new[f"{name}.visited"] = pattern, visited
        which[f"{name}.weight"] = mask
    return new, which


def explored(patterns: Mapping[str, np.ndarray]) -> float | None:
    """Share of all places where a block has ever stood; None where blocks cannot move."""
    visited = [value for name, value in patterns.items() if name.endswith(".visited")]
    return float(sum(value.sum() for value in visited) / sum(value.size for value in visited)) if visited else None


def editable(hyper: Iterable[str], held: Collection[str], optimizer: Mapping[str, Any]) -> None:
    """Refuse a hyper-parameter of a step that the optimizer does not look up in each one: it would be ignored.

    Args:
        hyper: names that a step was given.
        held: names that the optimizer reads in each step.
        optimizer: its configuration.

    Raises:
        UserError: naming the first of those that are not held.
    """
    for name in hyper:
        if name not in held:
            raise UserError(
                f"optimizer={optimizer.get('name', optimizer['module'])}: {name} cannot be changed while it runs, only "
                f"{', '.join(sorted(held))}; set optimizer.{name} before the run, and where that is 0 and shall not "
                f"stay so, begin with a small one, optimizer.{name}=1e-6"
            )


def preparation(seed: int, batches: Iterable[Mapping[str, np.ndarray]]) -> Iterator[tuple[tuple[int, int], Any]]:
    """Batches looked at before the first step, each with a key of random numbers that no step has: (key, batch)."""
    return (((seed, LAST - number), batch) for number, batch in enumerate(batches))


def share(task: Task, seed: int, name: str, rank: int, world: int) -> np.ndarray:
    """Rank's initial rows of a table, (k, d), with zeros below its end."""
    rows = task.shapes()[name].shape[0]
    each = -(-rows // world)
    made = task.init(seed, name, slice(min(rank * each, rows), min((rank + 1) * each, rows)))
    return np.concatenate([made, np.zeros((each - len(made), *made.shape[1:]), made.dtype)])
