"""Detects whether this process still computes, because the clock must not stop before it has finished."""

import contextlib
import itertools
import threading
import time
from pathlib import Path

WINDOW = 0.002  # seconds of one observation
WINDOWS = 5  # idle observations in a row; on a loaded machine, a thread may wait for a core for that long
BUSY_SHARE = 0.1  # of one core during an observation; waiting threads use less than 0.01
PATIENCE = 10.0  # seconds to wait for threads that compute
THREADS = Path("/proc/self/task")


def wait_until_idle(patience: float = PATIENCE) -> bool:
    """Wait until no other thread of this process and no child process computes.

    Args:
        patience: the most seconds to wait.

    Returns:
        Whether the process became idle.
    """
    deadline, idle_windows = time.monotonic() + patience, 0
    while idle_windows < WINDOWS:
        idle_windows = 0 if _busy() else idle_windows + 1
        if not idle_windows and time.monotonic() > deadline:
            return False
    return True


def _busy() -> bool:
    """Return whether another thread computes during one observation, or waits for a core."""
    began, before = time.monotonic(), time.process_time()
    time.sleep(WINDOW)
    return time.process_time() - before > BUSY_SHARE * (time.monotonic() - began) or _runnable()


def _runnable() -> bool:
    """Return whether Linux counts another thread of this process or of a child as running; false on other systems."""
    others = [path for path in THREADS.glob("[0-9]*/stat") if path.parent.name != str(threading.get_native_id())]
    children = (path for pid in _children() for path in Path("/proc", pid, "task").glob("[0-9]*/stat"))
    return any(_state(path) == "R" for path in itertools.chain(others, children))


def _children() -> list[str]:
    """Ids of the processes that this process's threads have started."""
    ids: list[str] = []
    for path in THREADS.glob("[0-9]*/children"):
        with contextlib.suppress(OSError):  # the thread has just ended
            ids += path.read_text().split()
    return ids


def _state(stat: Path) -> str:
    try:
        return stat.read_text().rpartition(") ")[2][:1]
    except OSError:  # the thread has just ended
        return ""
