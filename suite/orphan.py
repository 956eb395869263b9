"""Ends a process when the one that started it ends, so that no process trains and writes without its launcher.

On Linux the kernel ends it at once. For ranks, a thread also does on every system: it waits until a pipe that the
launcher keeps open is closed, or until the parent process changes.
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
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def bind_to_parent(parent: int) -> None:
    """On Linux, let the kernel kill this process when its parent ends, also while it is stopped; for `preexec_fn`.

    The parent must start it from its main thread, because Linux sends the signal when that thread ends.

    Args:
        parent: id of the process that starts this one, read there: it may have ended already, and then no signal comes.
    """
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


def end_with_pipe(pipe: int) -> None:
    """End this process, and all processes it started, when the other end of a pipe is closed.

    Call this in a child whose launcher keeps the other end open, and has started it as `bind_to_parent` asks.
    A launcher that has ended before this call has closed the pipe.

    Args:
        pipe: descriptor to read from; the launcher must not write to it any more.
    """
    bind_to_parent(os.getppid())
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
