"""Count by the kernel of the bytes that a host has sent."""

import os
import time
from pathlib import Path

INTERFACE = "e0"  # the interface of every host of a test bed
VARIABLE = "SUITE_TESTBED"  # environment variable that is set on these hosts; a run then counts its bytes
QUIET = 0.05  # seconds without a byte sent, after which the queue is taken to be empty


def count_sent(devices: str | None = None) -> int:
    """Return the bytes that a host (a network namespace) has sent so far, headers included.

    The count is read from /proc/net/dev, because /sys/class/net shows the outer namespace unless it is mounted again.

    Args:
        devices: the text of another host's /proc/net/dev; by default this process's host is read.

    Raises:
        OSError: if the process is not on a test bed's host.
    """
    for line in (devices or Path("/proc/self/net/dev").read_text()).splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == INTERFACE:
            return int(numbers.split()[8])  # after 8 columns for receiving
    raise OSError(f"no interface {INTERFACE}: this process is not on a test bed's host")


class Counter:
    """Counts the bytes that this process's host sends from now on."""

    def __init__(self) -> None:
        self.before = count_sent()

    @staticmethod
    def here() -> "Counter | None":
        """Make a counter, or return None if this is not a test bed's host."""
        return Counter() if VARIABLE in os.environ else None

    def total(self) -> int:
        """Return the bytes sent so far, after the queue of a slow link is empty, or after ten seconds."""
        until, last = time.monotonic() + 10, -1
        while (now := count_sent()) != last and time.monotonic() < until:
            last = now
            time.sleep(QUIET)
        return now - self.before
