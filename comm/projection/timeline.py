"""Projected time of a step, from jobs on two lines: the device, and the channel, which sends in order.

The schedules in `comm/schedules` offer `project_sync`, `project_overlap` and `project_double_buffering` of this file
as `projected`. Forward takes a third of the time of forward and backward together, because backward has two matrix
products for each product of forward (for the gradients of the inputs and of the weights).
"""

import itertools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FORWARD = 1 / 3


@dataclass(frozen=True)
class Job:
    """Occupies a line for `seconds`. It starts when the jobs named in `after` have ended and the line is free."""

    name: str
    line: str
    seconds: float
    after: tuple[str, ...] = ()


def compute_ends(jobs: Iterable[Job]) -> dict[str, float]:
    """Return the time at which each job ends, by name, in seconds.

    A line runs its jobs in the given order; `after` may only name earlier jobs.
    """
    free: dict[str, float] = {}
    end_times: dict[str, float] = {}
    for job in jobs:
        start = max([free.get(job.line, 0.0), *(end_times[name] for name in job.after)])
        free[job.line] = end_times[job.name] = start + job.seconds
    return end_times


@dataclass(frozen=True)
class Bucket:
    """Gradients that are sent together.

    Attributes:
        backward: seconds of the part of backward that computes them.
        travel: seconds of sending them.
    """

    backward: float
    travel: float


@dataclass(frozen=True)
class Refresh:
    """Refresh of one bucket of factors of a curvature method.

    Attributes:
        to_owners: seconds of sending its statistics to their owners.
        work: seconds of the busiest owner.
        gather: seconds of gathering the results.
        ready: the share of backward after which its statistics are complete; None: they are sent after all gradients.
    """

    to_owners: float
    work: float
    gather: float
    ready: float | None = None


@dataclass(frozen=True)
class Step:
    """Seconds of the parts of one step on one device.

    Refreshes follow the gradients one after another; `overlap` sends some of their statistics earlier.

    Attributes:
        forward: seconds of the forward pass.
        buckets: the buckets of gradients, in the order of backward.
        refreshes: the refreshes of a curvature method.
        contention: seconds lost for each second in which the device and the channel are both busy.
    """

    forward: float
    buckets: Sequence[Bucket]
    refreshes: Sequence[Refresh] = ()
    contention: float = 0.0

    @property
    def backward(self) -> float:
        """Seconds of the backward pass."""
        return sum(bucket.backward for bucket in self.buckets)

    @property
    def compute(self) -> float:
        """Seconds of forward, backward and the owners' work on the refreshes."""
        return self.forward + self.backward + sum(refresh.work for refresh in self.refreshes)

    @property
    def travel(self) -> float:
        """Seconds of all communication."""
        return sum(bucket.travel for bucket in self.buckets) + self.exchanged

    @property
    def exchanged(self) -> float:
        """Seconds of communication of the refreshes."""
        return sum(refresh.to_owners + refresh.gather for refresh in self.refreshes)


def step(
    compute: float,
    shares: Sequence[float],
    travel: Sequence[float],
    refreshes: Sequence[Refresh] = (),
    contention: float = 0.0,
) -> Step:
    """Make a step from the compute time and the shares of the buckets.

    Args:
        compute: seconds of forward and backward together.
        shares: each bucket's share of backward; their sum is 1.
        travel: seconds of sending each bucket.
        refreshes: the refreshes of a curvature method.
        contention: as in `Step`.
    """
    backward = (1 - FORWARD) * compute
    buckets = [Bucket(backward * share, seconds) for share, seconds in zip(shares, travel, strict=True)]
    return Step(FORWARD * compute, buckets, refreshes, contention)


def project_sync(parts: Step) -> float:
    """Seconds of a step that computes and communicates one after the other."""
    return parts.compute + parts.travel


def project_overlap(parts: Step) -> float:
    """Seconds of a step that sends each bucket and each stack of statistics during backward.

    Sending starts when backward has filled the bucket or stack and the previous one has arrived.
    """
    jobs = [Job("forward", "device", parts.forward)]
    before = 0.0
    for number, (filled, travel) in enumerate(_filled(parts)):
        jobs.append(Job(f"backward/{number}", "device", filled - before))
        jobs.append(Job(f"travel/{number}", "channel", travel, (f"backward/{number}",)))
        before = filled
    last = tuple(job.name for job in jobs)
    for number, item in enumerate(parts.refreshes):
        sent = item.to_owners if item.ready is None else 0.0
        jobs.append(Job(f"owners/{number}", "channel", sent, last))
        jobs.append(Job(f"work/{number}", "device", item.work, (f"owners/{number}",)))
        jobs.append(Job(f"gather/{number}", "channel", item.gather, (f"work/{number}",)))
        last = (f"gather/{number}",)
    return _contended(parts, max(compute_ends(jobs).values()))


def _filled(parts: Step) -> list[tuple[float, float]]:
    """Return the buckets and statistics in the order in which backward completes them.

    Each is (seconds of backward until then, seconds of sending).
    """
    reached = itertools.accumulate(bucket.backward for bucket in parts.buckets)
    sends = [(seconds, bucket.travel) for seconds, bucket in zip(reached, parts.buckets, strict=True)]
    sends += [(item.ready * parts.backward, item.to_owners) for item in parts.refreshes if item.ready is not None]
    return sorted(sends, key=operator.itemgetter(0))  # the order of equal times does not change the total


def _contended(parts: Step, end: float) -> float:
    """Return the end of the step plus the time that is lost while the device and the channel are both busy."""
    return end + parts.contention * (project_sync(parts) - end)


def project_double_buffering(parts: Step) -> float:
    """Seconds of a step that sends the last step's gradients during forward and backward; refreshes follow both."""
    travel = sum(bucket.travel for bucket in parts.buckets)
    work = sum(item.work for item in parts.refreshes)
    return _contended(parts, max(parts.compute - work, travel) + parts.exchanged + work)
