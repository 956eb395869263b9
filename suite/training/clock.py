"""Training clock.

It runs from the first batch request until the last step's outputs are ready on the device. It stops for evaluation,
checkpoints and logging, after the device has finished: queued work of asynchronous steps is billed to training. Work
in the background is billed to training, too: batches that a thread makes while the clock is stopped, and what an
optimizer's own threads compute before an evaluation begins. The clock also counts wall time, which includes the pauses.
Time in which the process was stopped or the system suspended is neither training nor part of a pause.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NotRequired, Protocol, TypedDict

from suite.threads import read_queued_seconds
from suite.training.absence import Absences
from suite.training.idle import PATIENCE

SHORT = 0.05  # shorter waits for idleness, in seconds, are not billed: detecting it takes 10 ms


class Background(Protocol):
    """Work for training that continues while the clock is stopped.

    Attributes:
        waited: seconds in which training waited for the work.
    """

    waited: float

    def seconds(self) -> float:
        """Return the seconds worked so far."""
        ...

    def wait(self) -> None:
        """Wait until all requested work is done."""
        ...


class ClockState(TypedDict):
    """State of a `Clock` in a checkpoint."""

    billed: float
    wall: float
    excluded: dict[str, float]
    processor: dict[str, float]
    busy_pauses: int
    gaps: float
    waited: NotRequired[float]  # for the background; absent from older checkpoints, as the next one
    queued: NotRequired[float]


class Clock:
    """A stopwatch that records the cause of each pause. Checkpoints contain its state.

    Args:
        synchronize: waits until the device and the optimizer's work on the host are done.
        now: returns monotonic seconds from any origin.
        background: the thread that makes batches, if there is one.
        wait_until_idle: waits until the process is idle, at most the given seconds, and returns whether it is. The
            clock calls it before each pause except those for logging, which are too short and too frequent.
        patience: the most seconds to wait; after a busy pause, later pauses do not wait.
        absences: returns the seconds in which this process did not run.

    Attributes:
        excluded: seconds of the pauses, by cause.
        processor: processor seconds of this process while the clock ran (`training`) and was stopped (`excluded`).
        busy_pauses: number of pauses that began while the process still computed, after `patience` seconds. If there
            are any, the training seconds are too low.
        gaps: seconds in which this process did not run for an unknown reason. They are billed like all others.
    """

    def __init__(
        self,
        synchronize: Callable[[], None],
        now: Callable[[], float] = time.perf_counter,
        *,
        background: Background | None = None,
        wait_until_idle: Callable[[float], bool] | None = None,
        patience: float = PATIENCE,
        absences: Callable[[], Absences] = Absences,
    ):
        self._synchronize, self._now, self._absences = synchronize, now, absences
        self._background, self._wait_until_idle, self._patience = background, wait_until_idle, patience
        self._billed = 0.0  # training seconds up to the last pause
        self._wall = 0.0  # wall seconds of earlier segments
        self._running_since: float | None = None
        self._processor_since = 0.0
        self._born, self._absent = now(), absences()
        self._awake = self._absent.suspended
        self.excluded: dict[str, float] = {}
        self.processor = {"training": 0.0, "excluded": 0.0}
        self.busy_pauses, self.gaps = 0, 0.0
        self._waited = self._queued = 0.0  # for the background and for a core, in earlier segments
        self._queued_before = read_queued_seconds()

    def start(self) -> None:
        """Start the clock; call once, before the first batch is requested."""
        self._absent, self._queued_before = self._absences(), read_queued_seconds()
        self._running_since, self._processor_since = self._present(), time.process_time()

    @property
    def seconds(self) -> float:
        """Training seconds so far, exact only after a pause or `settle`, because this does not wait for the device."""
        running = 0.0 if self._running_since is None else self._present() - self._running_since
        return self._billed + running

    @property
    def wall(self) -> float:
        """Seconds since the loop was entered, with earlier segments, without the start of Python and of the data."""
        return self._wall + self._now() - self._born + self._absences().suspended - self._awake

    @property
    def waited(self) -> float:
        """Training seconds in which the loop waited for the background."""
        return self._waited + (self._background.waited if self._background else 0.0)

    @property
    def queued(self) -> float:
        """Seconds since the start for which threads of this process were ready to run and waited for a core."""
        return self._queued + read_queued_seconds() - self._queued_before

    def _present(self) -> float:
        """Monotonic seconds in which this process was not stopped."""
        return self._now() - self._absences().stopped

    def settle(self) -> float:
        """Wait for the device, bill the wait to training, and return the training seconds."""
        self._synchronize()
        return self.seconds

    @contextmanager
    def paused(self, cause: str) -> Generator[None]:
        """Stop the clock inside the context, after the device is done and, except for logging, the process is idle.

        Seconds in which the background works during the pause are billed.

        Args:
            cause: the key of the pause's seconds in `excluded`.
        """
        self._billed = self.settle() if cause == "logging" else self._finish()
        since, self._running_since = self._present(), None
        worked = self._background.seconds() if self._background else 0.0
        self._count_processor("training")
        try:
            yield
        finally:
            self._count_processor("excluded")
            self._running_since = self._present()
            duration = self._running_since - since
            overlap = min(self._background.seconds() - worked, duration) if self._background else 0.0
            self._billed += overlap
            self.excluded[cause] = self.excluded.get(cause, 0.0) + duration - overlap

    def _finish(self) -> float:
        """Wait for the device, the background and the rest of the process; return the training seconds."""
        if self._background:
            self._background.wait()
        billed = self.settle()
        if self._wait_until_idle:
            since = self._present()
            if not self._wait_until_idle(0.0 if self.busy_pauses else self._patience):
                self.busy_pauses += 1
            waited = self._present() - since
            billed += waited if waited > SHORT else 0.0
        return billed

    def _count_processor(self, state: str) -> None:
        now = time.process_time()
        self.processor[state] += now - self._processor_since
        self._processor_since = now

    def _count_absences(self) -> None:
        """Add the absences since the last call to `excluded` and `gaps`."""
        before, self._absent = self._absent, self._absences()
        for cause, seconds in (
            ("stopped", self._absent.stopped - before.stopped),
            ("suspended", self._absent.suspended - before.suspended),
        ):
            if seconds > 0:
                self.excluded[cause] = self.excluded.get(cause, 0.0) + seconds
        self.gaps += self._absent.gaps - before.gaps

    def facts(self) -> dict[str, float | dict[str, float]]:
        """Return the entries of the result that describe time. Call inside `paused`."""
        self._count_absences()
        return {
            "train_seconds": self.seconds,
            "wall_seconds": self.wall,
            "excluded_seconds": dict(self.excluded),
            "processor_seconds": dict(self.processor),
            "busy_pauses": self.busy_pauses,
            "gap_seconds": self.gaps,
            "input_seconds": self.waited,
            "queued_seconds": self.queued,
        }

    def state(self) -> ClockState:
        """Return the state for a checkpoint. Call inside `paused`."""
        self._count_absences()
        return {
            "billed": self._billed,
            "wall": self.wall,
            "excluded": dict(self.excluded),
            "processor": dict(self.processor),
            "busy_pauses": self.busy_pauses,
            "gaps": self.gaps,
            "waited": self.waited,
            "queued": self.queued,
        }

    def restore(self, state: ClockState) -> None:
        """Continue from a checkpoint's state; call before `start`."""
        self._billed, self._wall, self.excluded = state["billed"], state["wall"], dict(state["excluded"])
        self.processor, self.busy_pauses, self.gaps = dict(state["processor"]), state["busy_pauses"], state["gaps"]
        self._waited, self._queued = state.get("waited", 0.0), state.get("queued", 0.0)
        self._born, self._awake = self._now(), self._absences().suspended
