"""The kernel's count of what left a host."""

from pathlib import Path

INTERFACE = "e0"  # of every host of a test bed


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
