"""Makes batches in order, in advance if threads may, and keeps validation batches if they are small."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np

from suite.contract import Batch
from suite.threads import count_cores

KEPT_BYTES = 2**27  # of validation batches, in each process


def count_spare_cores() -> int:
    """Return how many threads may make batches while this process trains on one core."""
    return max(1, count_cores() - 1)


class Loader:
    """Batches of a split in order; the clock's `Background`.

    A context manager; entering it returns an iterator over the batches.

    Args:
        batch: makes a batch from a split and its number; threads may call it at the same time.
        steps: the numbers of the batches.
        ahead: batches that threads make in advance; 0: make each when it is requested.
        split: of the batches.
        threads: the most that work at the same time.

    Attributes:
        waited: seconds in which the consumer waited for batches.
    """

    def __init__(
        self, batch: Callable[[str, int], Batch], steps: range, ahead: int, *, split: str = "train", threads: int = 1
    ):
        self._batch, self._steps, self._ahead, self._split = batch, steps, ahead, split
        self._pool = ThreadPoolExecutor(min(ahead, threads)) if ahead else None
        self._queue: deque[Future[Batch]] = deque()
        self.waited = 0.0
        self._lock = threading.Lock()  # guards the next three
        self._worked = 0.0  # seconds in which some thread has worked, until all rested
        self._working = 0  # threads that make a batch
        self._began = 0.0  # when the first of them began

    def __enter__(self) -> Iterator[Batch]:
        if self._pool:
            return self._time_waits(self._from_threads(self._pool))
        return self._time_waits(self._batch(self._split, step) for step in self._steps)

    def __exit__(self, *error: object) -> None:
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def seconds(self) -> float:
        """Return the seconds in which at least one thread has worked."""
        with self._lock:
            return self._worked + (time.perf_counter() - self._began if self._working else 0.0)

    def wait(self) -> None:
        """Wait until the requested batches are made."""
        wait(self._queue)

    def _make(self, step: int) -> Batch:
        with self._lock:
            if not self._working:
                self._began = time.perf_counter()
            self._working += 1
        try:
            return self._batch(self._split, step)
        finally:
            with self._lock:
                self._working -= 1
                if not self._working:
                    self._worked += time.perf_counter() - self._began

    def _time_waits(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches, and count the seconds until each of them has come."""
        while True:
            since = time.perf_counter()
            batch = next(batches, None)
            self.waited += time.perf_counter() - since
            if batch is None:
                return
            yield batch

    def _from_threads(self, pool: ThreadPoolExecutor) -> Iterator[Batch]:
        self._queue.extend(pool.submit(self._make, step) for step in self._steps[: self._ahead])
        for step in self._steps:
            following = step + self._ahead
            if following in self._steps:
                self._queue.append(pool.submit(self._make, following))
            yield self._queue.popleft().result()


class Validation:
    """Batches of the validation split, an iterable. It makes the first ones only once, up to `most_bytes` of them.

    Args:
        batch: makes a batch from a split and its number.
        count: number of batches.
        most_bytes: kept in memory.
        ahead: batches that threads make in advance, as in `Loader`.
        threads: as in `Loader`.
    """

    def __init__(
        self,
        batch: Callable[[str, int], Batch],
        count: int,
        most_bytes: int = KEPT_BYTES,
        *,
        ahead: int = 0,
        threads: int = 1,
    ):
        self._batch, self._count, self._room = batch, count, most_bytes
        self._ahead, self._threads = ahead, threads
        self._kept: list[dict[str, np.ndarray]] = []

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._kept:
            yield {name: array.copy() for name, array in batch.items()}  # a model may change its input in place
        rest = range(len(self._kept), self._count)
        with Loader(self._batch, rest, self._ahead, split="valid", threads=self._threads) as batches:
            for index, batch in zip(rest, batches, strict=True):
                self._keep(index, batch)
                yield batch

    def _keep(self, index: int, batch: Batch) -> None:
        """Keep a copy of the batch if it has arrays only, those before it are kept, and there is room."""
        values: list[object] = list(batch.values())  # a task from elsewhere may have others
        if index > len(self._kept) or not all(isinstance(value, np.ndarray) for value in values):
            return
        size = sum(array.nbytes for array in batch.values())
        if size <= self._room:
            self._kept.append({name: array.copy() for name, array in batch.items()})
            self._room -= size
