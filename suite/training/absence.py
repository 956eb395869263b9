"""Seconds in which this process did not run, although its clock went on.

A thread looks at the clocks every `BEAT` seconds. If a look comes much later than that, and the process did not compute
meanwhile, it was absent. A stop (SIGSTOP, Ctrl-Z) is confirmed by the SIGCONT that ends it. The cause of other gaps is
unknown: a frozen container, a machine without a free core, or a library that kept Python's lock while it waited.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple

BEAT = 0.1  # seconds between two looks; a stop is known with this accuracy
LEAST = 0.5  # seconds of the shortest gap that counts
CONFIRMATION = 2.0  # seconds within which SIGCONT follows the end of a gap


class Absences(NamedTuple):
    """Seconds of this process so far.

    Attributes:
        stopped: between a stop and its SIGCONT.
        suspended: of the whole system; monotonic clocks stand still meanwhile.
        gaps: without progress for an unknown reason.
    """

    stopped: float = 0.0
    suspended: float = 0.0
    gaps: float = 0.0


class Watch:
    """Finds absences. Any thread may call `look`.

    Args:
        read_signals: returns the numbers of the signals received since the last call.
        now: returns monotonic seconds, without suspensions.
        processor: returns processor seconds of this process.
        suspended: returns the seconds for which the system has been suspended, from any origin.
    """

    def __init__(
        self,
        read_signals: Callable[[], bytes],
        now: Callable[[], float] = time.perf_counter,
        processor: Callable[[], float] = time.process_time,
        suspended: Callable[[], float] | None = None,
    ):
        self._read_signals, self._now, self._processor = read_signals, now, processor
        self._read_suspended = suspended or read_suspended
        self._lock = threading.Lock()
        self._seen, self._computed, self._awake = now(), processor(), self._read_suspended()
        self._stopped = self._gaps = 0.0
        self._pending, self._until = 0.0, 0.0  # seconds of the last gap, until it is confirmed or too old

    def look(self) -> Absences:
        """Return the absences so far. After a stop, the main thread finds it at its first look."""
        with self._lock:
            continued = signal.SIGCONT in self._read_signals()  # first: a stop after this line is confirmed next time
            now, computed = self._now(), self._processor()
            lost = (now - self._seen) - (computed - self._computed)
            self._seen, self._computed = now, computed
            if lost > LEAST or now > self._until:
                self._gaps += self._pending
                self._pending, self._until = (lost, now + CONFIRMATION) if lost > LEAST else (0.0, now)
            if continued:
                self._stopped += self._pending
                self._pending = 0.0
            suspended = self._read_suspended() - self._awake
            return Absences(self._stopped, suspended if suspended > LEAST else 0.0, self._gaps + self._pending)


def read_suspended() -> float:
    """Return the seconds for which the system has been suspended since it was started; 0 where that is unknown."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    while True:
        before = time.monotonic()
        since_start = time.clock_gettime(time.CLOCK_BOOTTIME)
        if time.monotonic() - before < BEAT:  # otherwise, another process ran between the two readings
            return since_start - before


@contextmanager
def watch_absences() -> Generator[Callable[[], Absences]]:
    """Watch inside the context, which only a main thread may enter; yields the function that returns the absences.

    Python's own handler runs late while a library computes. The system's handler does not: it writes each signal's
    number into a pipe before the process does anything else.
    """
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    over = threading.Event()

    def read_signals() -> bytes:
        try:
            return os.read(reader, 4096)
        except BlockingIOError:
            return b""

    def look_regularly() -> None:
        while not over.wait(BEAT):
            watch.look()

    earlier_handler = signal.signal(signal.SIGCONT, lambda number, frame: None)
    earlier_pipe = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watch = Watch(read_signals)
    thread = threading.Thread(target=look_regularly, name="absence", daemon=True)
    thread.start()
    try:
        yield watch.look
    finally:
        over.set()
        thread.join()
        signal.set_wakeup_fd(earlier_pipe)
        signal.signal(signal.SIGCONT, earlier_handler)
        os.close(reader)
        os.close(writer)
