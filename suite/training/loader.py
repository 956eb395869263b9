"""Makes training batches in order, in advance if a thread may."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

Batch = dict[str, Any]


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
