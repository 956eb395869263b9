"""Which row of a split stands where in a run: random access for training, one padded pass for evaluation."""

import functools

import numpy as np

EPOCH = int.from_bytes(b"epoch")  # high word of the counter: keeps these draws apart from others under the same key


@functools.lru_cache(maxsize=2)  # a batch may hold the end of one epoch and the start of the next
def permutation(samples: int, *, seed: int, epoch: int) -> np.ndarray:
    """A random order of the rows 0…samples-1 for one epoch, (samples,) int64, read-only.

    It sorts raw Philox words (Salmon et al. 2011), whose stream NumPy guarantees between versions, which it does not
    for `Generator.permutation`.
    """
    words = np.random.Philox(key=[seed, epoch], counter=[0, 0, 0, EPOCH]).random_raw(samples)
    rows = np.argsort(words, kind="stable")
    rows.setflags(write=False)
    return rows


def take(samples: int, *, batch_size: int, seed: int, index: int) -> tuple[np.ndarray, np.ndarray]:
    """The training batch `index`: epochs follow one another without a gap, so no row is dropped or padded.

    Args:
        samples: rows in the split.
        batch_size: global batch size.
        seed: the run's seed; each epoch of each seed has an order of its own.
        index: number of the batch in the run, from 0.

    Returns:
        Rows (batch_size,) int64 and the samples' numbers in the run, (batch_size,) int64.
    """
    numbers = np.arange(index * batch_size, (index + 1) * batch_size)
    epochs, places = np.divmod(numbers, samples)
    rows = np.empty_like(numbers)
    for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
        here = epochs == epoch
        rows[here] = permutation(samples, seed=seed, epoch=epoch)[places[here]]
    return rows, numbers


def sweep(samples: int, *, batch_size: int, index: int) -> tuple[np.ndarray, np.ndarray]:
    """The evaluation batch `index`: rows in order, the last batch padded with row 0 at weight 0.

    Returns:
        Rows (batch_size,) int64 and weights (batch_size,) float32, 1 or 0.
    """
    rows = np.arange(index * batch_size, (index + 1) * batch_size)
    real = rows < samples
    return np.where(real, rows, 0), real.astype(np.float32)
