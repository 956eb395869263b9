"""Order of rows in a run: random for training, sequential and padded for evaluation; any batch can be computed."""

import functools
from collections.abc import Callable
from typing import Protocol

import numpy as np

from suite import stream

Select = Callable[..., tuple[np.ndarray, np.ndarray]]  # rows and numbers of a training batch
EPOCH = int.from_bytes(b"epoch")  # high word of the counter: separates these draws from others with the same key


@functools.lru_cache(maxsize=2)  # a batch may contain the end of one epoch and the start of the next
def draw_permutation(samples: int, *, seed: int, epoch: int) -> np.ndarray:
    """A random order of the rows 0…samples-1 for one epoch, (samples,) int64, read-only.

    It sorts raw Philox words (Salmon et al. 2011). NumPy guarantees their stream between versions, but not that of
    `Generator.permutation`.
    """
    words = np.random.Philox(key=[seed, epoch], counter=[0, 0, 0, EPOCH]).random_raw(samples)
    rows = np.argsort(words, kind="stable")
    rows.setflags(write=False)
    return rows


def select_training_rows(samples: int, *, batch_size: int, seed: int, index: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of training batch `index`; epochs follow without a gap, so no row is dropped or padded.

    Args:
        samples: rows in the split.
        batch_size: global batch size.
        seed: the run's seed; each epoch of each seed has its own order.
        index: number of the batch in the run, from 0.

    Returns:
        Rows (batch_size,) int64 and the samples' numbers in the run, (batch_size,) int64.
    """
    numbers = np.arange(index * batch_size, (index + 1) * batch_size)
    epochs, places = np.divmod(numbers, samples)
    rows = np.empty_like(numbers)
    for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
        in_epoch = epochs == epoch
        rows[in_epoch] = draw_permutation(samples, seed=seed, epoch=epoch)[places[in_epoch]]
    return rows, numbers


def select_evaluation_rows(samples: int, *, batch_size: int, index: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of evaluation batch `index`, in order; the last batch is padded with row 0 at weight 0.

    Returns:
        Rows (batch_size,) int64 and weights (batch_size,) float32, 1 or 0.
    """
    rows = np.arange(index * batch_size, (index + 1) * batch_size)
    real = rows < samples
    return np.where(real, rows, 0), real.astype(np.float32)


ROUNDS = 6  # of the Feistel network in `compute_training_rows`; Luby and Rackoff (1988) need 4


def compute_training_rows(samples: int, *, batch_size: int, seed: int, index: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the training batch `index` of a split too large for `draw_permutation`.

    It is like `select_training_rows`, in memory of one batch.

    A Feistel network keyed by (seed, epoch), on the next power of 4, maps a place in the epoch to a row. It is applied
    again until the row is below `samples` (Black and Rogaway 2002, §3: cycle walking), so each epoch has each row once.

    Returns:
        Rows (batch_size,) int64 and the samples' numbers in the run, (batch_size,) int64.
    """
    numbers = np.arange(index * batch_size, (index + 1) * batch_size)
    epochs, rows = np.divmod(numbers, samples)
    half = max(1, ((samples - 1).bit_length() + 1) // 2)
    low = (1 << half) - 1
    walking = np.ones(len(rows), bool)
    while walking.any():
        left, right, key = rows[walking] >> half, rows[walking] & low, (seed, epochs[walking])
        for turn in range(ROUNDS):
            left, right = right, left ^ (stream.bits(np, key, f"order/{turn}", right) & np.uint32(low)).astype(np.int64)
        rows[walking] = left << half | right
        walking = rows >= samples
    return rows, numbers


class Sizes(Protocol):
    """Global batch sizes, of a task."""

    batch_size: int
    eval_batch_size: int


def take_share(
    task: Sizes, samples: int, split: str, seed: int, index: int, rank: int, world: int, select: Select | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a rank's share of batch `index` of a split.

    Args:
        task: whose batch sizes are taken.
        samples: rows in the split.
        split: "train", or one in the order of evaluation.
        seed: the run's seed.
        index: number of the batch, from 0.
        rank: which share.
        world: number of shares.
        select: the order of training; `select_training_rows` by default.

    Returns:
        Rows (n,) int64, the samples' numbers (n,) int64, and weights (n,) float32.
    """
    if split == "train":
        rows, numbers = (select or select_training_rows)(samples, batch_size=task.batch_size, seed=seed, index=index)
        weight = np.ones(len(rows), np.float32)
    else:
        rows, weight = select_evaluation_rows(samples, batch_size=task.eval_batch_size, index=index)
        numbers = index * task.eval_batch_size + np.arange(len(rows))
    share = len(rows) // world
    local = slice(rank * share, (rank + 1) * share)
    return rows[local], numbers[local], weight[local]
