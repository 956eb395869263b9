"""Two engines, and what they share.

`suite.engine.torch` and `suite.engine.jax` implement `suite.contract.Engine`; `suite/engine/ranks/` contains what the
processes of a run agree on. This file has the parts of both engines that need no framework.
"""

import math
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from suite.contract import Counts, SendsBytes, Sparse, Task, UserError
from suite.nodes import OptimizerSettings
from suite.settings.run import Run

LAST = 2**32 - 1  # the largest step: keys are pairs of 32-bit words


# Kinds of arrays that differ between ranks in a snapshot, as messages name them.
RESIDUALS, CARRY, TABLES, SLICES = (
    "residuals and delayed gradients",
    "carry",
    "rows of tables",
    "slices of optimizer state",
)


class RanksDiffer(RuntimeError):
    """Ranks hold different weights."""


def compute_digest(arrays: Iterable[np.ndarray], so_far: int = 0) -> int:
    """Return the CRC-32 of some arrays' bytes, one after another.

    Args:
        arrays: of any shape and type.
        so_far: the checksum of what precedes them.
    """
    for array in arrays:
        so_far = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, so_far)
    return so_far


def compare_digests(digests: Sequence[int]) -> None:
    """Check that all ranks hold the same weights.

    Args:
        digests: checksums of each rank's weights and buffers, in rank order, without the tables placed by rows.

    Raises:
        RanksDiffer: the weights differ. The message names the ranks that differ from the majority, or every rank's
            checksum if no checksum has a majority.
    """
    held: dict[int, list[int]] = {}
    for rank, value in enumerate(digests):
        held.setdefault(value, []).append(rank)
    if len(held) == 1:
        return
    most, world = max(held, key=lambda value: len(held[value])), len(digests)
    cause = "a byte was corrupted in transit or in memory, or a machine computes differently"
    if 2 * len(held[most]) > world:
        wrong = ", ".join(str(rank) for rank, value in enumerate(digests) if value != most)
        raise RanksDiffer(f"rank {wrong} of {world}: holds different weights than most ranks; {cause}")
    groups = "; ".join(f"{value:08x} on rank {', '.join(map(str, ranks))}" for value, ranks in held.items())
    fault = f"{world} ranks hold different weights ({groups}), and no majority shows which are right"
    raise RanksDiffer(f"{fault}; {cause}")


def compare_exchanges(sent: np.ndarray, received: np.ndarray) -> None:
    """Check that every rank received the bytes that were sent to it.

    `compare` cannot detect a byte corrupted before a sum, because all ranks then hold the same wrong value.

    Args:
        sent: (world, world) checksums; [r, q] is of the bytes that rank r has sent to rank q.
        received: (world, world) checksums; [q, r] is of the bytes that rank q has received from rank r.

    Raises:
        RanksDiffer: some checksums differ; the message names receivers and senders.
    """
    pairs = np.argwhere(sent != received.T).tolist()
    if pairs:
        faults = "; ".join(f"rank {to} received different bytes from rank {by} than rank {by} sent" for by, to in pairs)
        raise RanksDiffer(f"{faults}; a byte was corrupted in transit or in memory")


def count_parameters(task: Task) -> int:
    """Return the number of trained values, over all devices."""
    return sum(math.prod(spec.shape) for spec in task.shapes().values() if spec.kind == "parameter")


def count_flops(task: Task) -> float | None:
    """Return the FLOPs of one sample, forward and backward; None if the task does not count them."""
    return task.flops() if isinstance(task, Counts) else None


def list_tables(task: Task, needs: tuple[str, ...], optimizer: OptimizerSettings) -> list[str]:
    """Return the names of the parameters that are placed by rows.

    Args:
        task: the task.
        needs: the optimizer's NEEDS.
        optimizer: its settings.

    Raises:
        UserError: there are such tables, and the optimizer cannot update them by rows.
    """
    names = [name for name, spec in task.shapes().items() if spec.placement == "rows"]
    if names and "rows" not in needs:
        raise UserError(
            f"optimizer={optimizer.name}: cannot update a table by rows; "
            "set task.placement=replicated, or optimizer=sgd"
        )
    return names


def list_embeddings(task: Task) -> list[str]:
    """Return the names of the parameters whose rows are looked up, including those with other uses."""
    layers = (layer.parameters for layer in task.layers().values() if layer.kind == "embedding")
    known = {name for parameters in layers for name in parameters}
    return [name for name, spec in task.shapes().items() if spec.table or name in known]


def list_rounded(task: Task) -> list[str]:
    """Return the names of the parameters that a jax model gets in bfloat16: matrices and filters that it multiplies.

    Biases, coefficients of normalisations and tables stay in float32. Their gradients are sums over all places where a
    value is added or looked up, and jax adds in the value's type; products alone are summed in float32.
    """
    kept = {*list_embeddings(task)}
    specs = {name: spec for name, spec in task.shapes().items() if spec.kind == "parameter" and name not in kept}
    return [name for name, spec in specs.items() if len(spec.shape) > 1 and spec.placement != "rows"]


def select_update_words(phase: tuple[str, ...]) -> tuple[str, ...]:
    """Return a plan's words for a step without those that the engine uses: the rest are for the update."""
    return tuple(word for word in phase if word not in ("statistics", "sampled"))


def find_sparse(task: Task, needs: tuple[str, ...], optimizer: OptimizerSettings) -> Sparse | None:
    """Return the task if some of its matrices are block-sparse, else None.

    Args:
        task: the task.
        needs: the optimizer's NEEDS.
        optimizer: its settings.

    Raises:
        UserError: there are such matrices, and the optimizer cannot reset its state for blocks that have moved.
    """
    if not isinstance(task, Sparse) or not task.matrices():
        return None
    if "reset" not in needs:
        raise UserError(
            f"optimizer={optimizer.name}: needs whole matrices; of a sparse one only "
            "blocks are stored, which may move; set task.sparsity=dense, or optimizer=adamw, or optimizer=sgd"
        )
    return task


def move_blocks(
    task: Sparse,
    key: tuple[int, int],
    weights: Mapping[str, np.ndarray],
    patterns: Mapping[str, np.ndarray],
    gradients: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Move blocks of sparse matrices. All ranks compute the same result.

    Args:
        task: the task.
        key: (seed, step).
        weights: {matrix: (n, b, b)}.
        patterns: the current patterns and the visited places, by buffer name.
        gradients: {matrix: gradient of the whole matrix}; {} unless `task.by_gradient`.

    Returns:
        The new patterns by buffer name, and {weight: (n,) booleans}, true for the blocks that moved.
    """
    new_patterns, masks = dict(patterns), {}
    for name, weight in weights.items():
        pattern, mask = task.move(*key, name, weight, patterns[f"{name}.pattern"], gradients.get(name))
        visited = patterns[f"{name}.visited"].copy()
        visited[pattern] = 1
        new_patterns[f"{name}.pattern"], new_patterns[f"{name}.visited"] = pattern, visited
        masks[f"{name}.weight"] = mask
    return new_patterns, masks


def list_levels(task: Task) -> np.ndarray | None:
    """Return the value of each byte of the task's images, (channels, 256) float32; None if it sends no bytes."""
    if not isinstance(task, SendsBytes) or not task.moments:
        return None
    mean, deviation = task.moments
    return (np.arange(256, dtype=np.uint8) - mean[:, 0]) / deviation[:, 0]


def share_explored(patterns: Mapping[str, np.ndarray]) -> float | None:
    """Return the share of all places that a block has ever occupied; None if blocks cannot move."""
    visited = [value for name, value in patterns.items() if name.endswith(".visited")]
    return float(sum(value.sum() for value in visited) / sum(value.size for value in visited)) if visited else None


def check_editable(hyper: Iterable[str], held: Collection[str], optimizer: OptimizerSettings) -> None:
    """Reject hyper-parameters that the optimizer does not read in each step, because a change would have no effect.

    Args:
        hyper: names of the hyper-parameters that a step was given.
        held: names of those that the optimizer reads in each step.
        optimizer: its settings.

    Raises:
        UserError: a name is not in `held`.
    """
    for name in hyper:
        if name not in held:
            raise UserError(
                f"optimizer={optimizer.name}: {name} cannot be changed while it runs, only "
                f"{', '.join(sorted(held))}; set optimizer.{name} before the run. If it is 0 now "
                f"and changes later, begin with a small one, optimizer.{name}=1e-6"
            )


def key_batches(seed: int, batches: Iterable[Mapping[str, np.ndarray]]) -> Iterator[tuple[tuple[int, int], Any]]:
    """Yield (key, batch) for the batches of `Engine.prepare`; no step uses these keys of random numbers."""
    return (((seed, LAST - number), batch) for number, batch in enumerate(batches))


def make_share(task: Task, seed: int, name: str, rank: int, world: int) -> np.ndarray:
    """Return a rank's initial rows of a table, (⌈rows / world⌉, d); rows past the table's end are zero."""
    rows = task.shapes()[name].shape[0]
    share_rows = -(-rows // world)
    values = task.init(seed, name, slice(min(rank * share_rows, rows), min((rank + 1) * share_rows, rows)))
    return np.concatenate([values, np.zeros((share_rows - len(values), *values.shape[1:]), values.dtype)])


def has_channels_last(run: Run, task: Task, device: str) -> bool:
    """Return whether a run stores images with channels last: in torch on a GPU, for networks of 2-d convolutions.

    Args:
        run: the run; in jax, the compiler chooses how arrays are stored.
        task: made from it.
        device: kind of the device, such as `cuda`.
    """
    images = any(layer.kind == "conv2d" for layer in task.layers().values())
    return images and device == "cuda" and run.backend == "torch" and run.partition is None
