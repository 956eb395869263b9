"""Threads of a process: the cores that it may use, and how long an idle thread spins. Standard library only."""

import math
import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path

# Times that an idle thread of libgomp looks for work before it sleeps. By default it looks for milliseconds, which
# takes the cores from other programs (pytorch#57715, #80777). tests/bench/test_spinning.py compares it with the
# default, with other counts, and with `OMP_WAIT_POLICY=passive`, the usual advice.
SPINS = "10000"
BLOCK_MILLISECONDS = "1"  # the same of Intel's and LLVM's runtimes, whose default is 200
CHOSEN_BY_USER = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def limit_spinning(variables: MutableMapping[str, str]) -> None:
    """Let idle threads of OpenMP sleep soon, unless the user has chosen; call before a library loads OpenMP.

    Args:
        variables: of the environment.
    """
    if not any(name in variables for name in CHOSEN_BY_USER):
        variables.update({"GOMP_SPINCOUNT": SPINS, "KMP_BLOCKTIME": BLOCK_MILLISECONDS})


def count_cores() -> int:
    """Return the number of cores that this process may use: by its affinity, and by the CPU quotas of its cgroups."""
    allowed = len(os.sched_getaffinity(0))
    return max(1, math.floor(min([allowed, *_list_quotas(Path("/proc/self"))])))


def _list_quotas(process: Path) -> Iterator[float]:
    """Yield the quota, in cores, of each cgroup that contains a process.

    A quota is microseconds of processor time in a period (Linux's Documentation/admin-guide/cgroup-v2.rst, cpu.max, and
    scheduler/sched-bwc.rst, cpu.cfs_quota_us). A container may see its own cgroup as the root.

    Args:
        process: its folder in /proc.
    """
    try:
        lines = (process / "cgroup").read_text().splitlines()
        mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
    except OSError:  # not Linux, or a sandbox without them
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        kind = "cgroup" if controllers else "cgroup2"
        for mount in mounts:
            options = mount[mount.index("-") + 3].split(",")
            if mount[mount.index("-") + 1] == kind and (not controllers or "cpu" in options):
                folder = Path(mount[4]) / os.path.relpath(path, mount[3])
                for level in (folder, *folder.parents):
                    if level.is_relative_to(mount[4]) and (quota := _read_quota(level)):
                        yield quota


def _read_quota(folder: Path) -> float | None:
    """Return a cgroup's quota in cores; None if it has none, or cannot be read."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return int(quota) / int(period) if quota not in ("max", "-1") else None
    except (OSError, ValueError):
        return None


def read_queued_seconds() -> float:
    """Return the seconds for which this process's threads were ready to run and waited for a core; 0 if unknown.

    The sum over all threads; the second number of each (Linux's Documentation/scheduler/sched-stats.rst).
    """
    total = 0
    for file in Path("/proc/self/task").glob("*/schedstat"):
        try:
            total += int(file.read_text().split()[1])
        except (OSError, IndexError, ValueError):  # the thread has just ended, or the kernel does not count
            continue
    return total / 1e9
