"""What is timed, and what is not.

The training clock runs from the first batch request to the moment the last step's outputs are ready on the device.
It stops for evaluation, checkpoints and logging, and only after the device has caught up: work that an asynchronous
step left in the queue is billed to training, never to whoever happens to wait for it. All-in wall time runs beside it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Clock:
    """A stopwatch with a reason for every pause; its state goes into the checkpoint.

    Args:
        synchronize: waits until the device, and host work the optimizer has under way, is done.
        now: seconds from any origin, monotonic.
    """

    def __init__(self, synchronize: Callable[[], None], now: Callable[[], float] = time.perf_counter):
        self._synchronize, self._now = synchronize, now
        self._billed = 0.0  # training seconds up to the last pause
        self._wall = 0.0  # wall seconds of earlier segments
        self._running_since: float | None = None
        self._born = now()
        self.excluded: dict[str, float] = {}  # seconds by cause

    def start(self) -> None:
        """Begin billing; call once, before the first batch is asked for."""
        self._running_since = self._now()

    @property
    def seconds(self) -> float:
        """Training seconds so far. Does not wait for the device: exact only after a pause or `settle`."""
        running = 0.0 if self._running_since is None else self._now() - self._running_since
        return self._billed + running

    @property
    def wall(self) -> float:
        """All-in seconds since the loop was entered, earlier segments included; Python and data come before."""
        return self._wall + self._now() - self._born

    def settle(self) -> float:
        """Wait for the device, billing the wait to training; returns the training seconds."""
        self._synchronize()
        return self.seconds

    @contextmanager
    def paused(self, cause: str) -> Iterator[None]:
        """Stop the clock for `cause`, after the device has caught up."""
        self._billed = self.settle()
        since, self._running_since = self._now(), None
        try:
            yield
        finally:
            self._running_since = self._now()
            self.excluded[cause] = self.excluded.get(cause, 0.0) + self._running_since - since

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps. Call inside `paused`."""
        return {"billed": self._billed, "wall": self.wall, "excluded": dict(self.excluded)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; call before `start`."""
        self._billed, self._wall, self.excluded = state["billed"], state["wall"], dict(state["excluded"])
        self._born = self._now()
