"""The kernel's count of what left a host."""

import os
import time
from pathlib import Path

INTERFACE = "e0"  # of every host of a test bed
VARIABLE = "SUITE_TESTBED"  # is set where that is so, for a run to count by itself
QUIET = 0.05  # seconds without a byte, after which nothing more is on its way


def sent(devices: str | None = None) -> int:
    """Bytes that this process's host (its network namespace) has sent so far, headers included.

    Not read from /sys/class/net, which shows the outer namespace unless it is mounted anew.

    Args:
        devices: the text of another host's /proc/net/dev.
    """
    for line in (devices or Path("/proc/self/net/dev").read_text()).splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == INTERFACE:
            return int(numbers.split()[8])  # 8 columns of what was received come first
    raise OSError(f"no interface {INTERFACE}: this process is not on a test bed's host")


class Counter:
    """What this process's host sends from now on."""

    def __init__(self) -> None:
        self.before = sent()

    @staticmethod
    def here() -> "Counter | None":
        """One, if this is a test bed's host."""
        return Counter() if VARIABLE in os.environ else None

    def total(self) -> int:
        """Bytes so far, once what a slow link has not let out yet is out; at most ten seconds are waited."""
        until, last = time.monotonic() + 10, -1
        while (now := sent()) != last and time.monotonic() < until:
            last = now
            time.sleep(QUIET)
        return now - self.before
