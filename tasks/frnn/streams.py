"""Parallel streams of shots: says which chunk of which shot is in a batch, for any batch without the earlier ones."""

from bisect import bisect_right

import numpy as np

from suite.tasks._data import order


class Streams:
    """Endless queues of whole shots, cut into chunks of equal length; a batch contains one chunk of each stream.

    In every epoch, in random order, each shot is assigned to the stream that is free first (the lowest one at a tie),
    and occupies it for as many batches as it has chunks. No shot is dropped, shortened or read twice in an epoch, and
    no stream is idle. The assignment is a pure function of the arguments; it is computed when needed, and stored.

    Args:
        chunks: (shots,) chunks of each shot.
        streams: number of parallel streams.
        seed: the run's seed.
    """

    def __init__(self, chunks: np.ndarray, *, streams: int, seed: int):
        self._chunks, self._seed, self._epochs = chunks, seed, 0
        self._free = np.zeros(streams, np.int64)  # the batch at which each stream's queue ends
        self._starts: list[list[int]] = [[] for _ in range(streams)]
        self._shots: list[list[int]] = [[] for _ in range(streams)]

    def at(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Shot and chunk of each stream in batch `index`, (streams,) int64 each; a chunk of 0 begins a shot."""
        while self._free.min() <= index:
            self._extend()
        places = [bisect_right(starts, index) - 1 for starts in self._starts]
        shots = np.array([shots[place] for shots, place in zip(self._shots, places, strict=True)])
        begun = np.array([starts[place] for starts, place in zip(self._starts, places, strict=True)])
        return shots, index - begun

    def _extend(self) -> None:
        for shot in order.draw_permutation(len(self._chunks), seed=self._seed, epoch=self._epochs):
            stream = int(self._free.argmin())
            self._starts[stream].append(int(self._free[stream]))
            self._shots[stream].append(int(shot))
            self._free[stream] += self._chunks[shot]
        self._epochs += 1
