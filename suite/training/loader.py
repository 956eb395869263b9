"""Makes training batches in order, in advance if a thread may, and keeps validation batches if they are small."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

Batch = dict[str, Any]
KEPT_BYTES = 2**27  # of validation batches, in each process


class Loader:
    """Training batches in order; the clock's `Background`.

    A context manager; entering it returns an iterator over the batches.

    Args:
        batch: makes a batch from a split and its number.
        steps: the numbers of the batches.
        ahead: batches that one thread makes in advance; 0: make each when it is requested.
    """

    def __init__(self, batch: Callable[[str, int], Batch], steps: range, ahead: int):
        self._batch, self._steps, self._ahead = batch, steps, ahead
        self._pool = ThreadPoolExecutor(1) if ahead else None
        self._queue: deque[Future[Batch]] = deque()
        self._lock = threading.Lock()  # guards the next two
        self._worked = 0.0  # seconds for finished batches
        self._began: float | None = None  # when the thread began its current batch

    def __enter__(self) -> Iterator[Batch]:
        return self._from_thread(self._pool) if self._pool else (self._batch("train", step) for step in self._steps)

    def __exit__(self, *error: Any) -> None:
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def seconds(self) -> float:
        """Return the seconds that the thread has worked."""
        with self._lock:
            return self._worked + (time.perf_counter() - self._began if self._began is not None else 0.0)

    def wait(self) -> None:
        """Wait until the requested batches are made."""
        wait(self._queue)

    def _make(self, step: int) -> Batch:
        with self._lock:
            self._began = began = time.perf_counter()
        try:
            return self._batch("train", step)
        finally:
            with self._lock:
                self._began, self._worked = None, self._worked + time.perf_counter() - began

    def _from_thread(self, pool: ThreadPoolExecutor) -> Iterator[Batch]:
        self._queue.extend(pool.submit(self._make, step) for step in self._steps[: self._ahead])
        for step in self._steps:
            following = step + self._ahead
            if following in self._steps:
                self._queue.append(pool.submit(self._make, following))
            yield self._queue.popleft().result()


class Validation:
    """The batches of the validation split, an iterable. It makes the first ones only once, up to `most_bytes` of them.

    Args:
        batch: makes a batch from a split and its number.
        count: number of batches.
        most_bytes: kept in memory.
    """

    def __init__(self, batch: Callable[[str, int], Batch], count: int, most_bytes: int = KEPT_BYTES):
        self._batch, self._count, self._room = batch, count, most_bytes
        self._kept: list[dict[str, np.ndarray]] = []

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._kept:
            yield {name: array.copy() for name, array in batch.items()}  # a model may change its input in place
        for index in range(len(self._kept), self._count):
            batch = self._batch("valid", index)
            self._keep(index, batch)
            yield batch

    def _keep(self, index: int, batch: Batch) -> None:
        """Keep a copy of the batch if those before it are kept, and there is room."""
        if index > len(self._kept) or not all(isinstance(value, np.ndarray) for value in batch.values()):
            return
        size = sum(array.nbytes for array in batch.values())
        if size <= self._room:
            self._kept.append({name: array.copy() for name, array in batch.items()})
            self._room -= size
