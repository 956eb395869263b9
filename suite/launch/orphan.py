"""Ends a rank when the process that started it ends, so that no rank trains and writes without its launcher.

On Linux the kernel ends it at once. On every system a thread also does: it waits until a pipe that the launcher keeps
open is closed, or until the parent process changes.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PAUSE = 0.5  # seconds between two checks of the parent process


def end_with_pipe(pipe: int) -> None:
    """End this process, and all processes it started, when the other end of a pipe is closed.

    Call this in a child whose launcher keeps the other end open. The launcher must have started the child from its main
    thread, because Linux sends the signal when that thread ends.

    Args:
        pipe: descriptor to read from; the launcher must not write to it any more.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _watch(lambda: os.read(pipe, 1))


def end_with_parent() -> None:
    """End this process, and all processes it started, when its parent ends; for a parent without a pipe."""
    parent = os.getppid()

    def wait_for_end() -> None:
        while os.getppid() == parent:
            time.sleep(PAUSE)

    _watch(wait_for_end)


def _watch(wait: Callable[[], object]) -> None:
    """Kill this process when `wait` returns; if it leads a session, kill the whole session."""

    def body() -> None:
        wait()
        process = os.getpid()
        (os.killpg if os.getsid(0) == process else os.kill)(process, signal.SIGKILL)

    threading.Thread(target=body, name="parent", daemon=True).start()
